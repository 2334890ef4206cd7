"""The faults by name; each class in these modules with a `name` is one."""

from __future__ import annotations

import importlib

from notifyq.chaos.faults.base import Fault

__all__ = ["Fault", "catalogue"]

_MODULES = ("processes", "sessions", "network", "machine")


def catalogue() -> dict[str, type[Fault]]:
    """Return all faults by name, in the order of their definition."""
    modules = [importlib.import_module(f"{__name__}.{name}") for name in _MODULES]
    classes = [it for module in modules for it in vars(module).values() if isinstance(it, type)]
    return {it.name: it for it in classes if issubclass(it, Fault) and hasattr(it, "name")}
