from .binaries import debian_binaries as debian_binaries, wheel_binaries as wheel_binaries
from .folder import State as State, home as home
from .server import Server as Server, development as development

__all__: list[str]
