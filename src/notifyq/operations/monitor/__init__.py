"""Reads the state of an installation for metrics, dashboard, `top` and `doctor`.

Each function takes a `Database` or a connection and makes one call. `acting` wraps changes that
belong into the audit.
"""

import lazy_loader

# The names are in __init__.pyi; each module is imported at the first use of a name of it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
