"""The annotations of functions that users pass."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from notifyq.errors import ConfigurationError


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The resolved annotations of a function."""
    try:
        # Of these Python 3.14 gives none, older ones raise an error.
        if isinstance(function, partial) or not (
            inspect.isroutine(function) or hasattr(function, "__annotations__")
        ):
            raise TypeError(f"{function!r} has none")
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{name(function)} has an annotation that cannot be resolved: {error}"
        ) from error


def name(function: Callable[..., Any]) -> str:
    """Module and name of a function, for errors."""
    while isinstance(function, partial):
        function = function.func
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
