"""The faults, by the word that names them; a module of this package that defines one adds it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from notifyq.chaos.faults.base import Fault

__all__ = ["Fault", "catalogue"]


def catalogue() -> dict[str, type[Fault]]:
    """All faults by name, in the order of their numbers."""
    found: set[type[Fault]] = set()
    for module in pkgutil.iter_modules(__path__):
        names = vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        found |= {it for it in names if inspect.isclass(it) and issubclass(it, Fault)}
    named = (fault for fault in found if hasattr(fault, "name"))
    return {fault.name: fault for fault in sorted(named, key=lambda fault: fault.rank())}
