"""A message queue and event stream inside PostgreSQL.

An `INSERT` publishes, a trigger sends `NOTIFY`, workers claim rows, finished messages move to an
archive. SQL functions in schema `messages` do the work; this package calls them.
"""

import lazy_loader

__version__ = "0.1.0"

# The names that the package exports are in __init__.pyi. Each module is imported at the first use
# of a name of it, so that a command or a program loads only what it needs.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
