"""A private PostgreSQL for development, demos and tests, from a wheel or the system's programs."""

import lazy_loader

# The names are in __init__.pyi; each module is imported at the first use of a name of it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
