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
        found = typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{name(function)} has an annotation that cannot be resolved: {error}"
        ) from error
    # Of these Python 3.14 gives none, older ones raise TypeError.
    is_function = inspect.isroutine(function) and not isinstance(function, partial)
    if not is_function and not hasattr(function, "__annotations__"):
        raise ConfigurationError(
            f"the annotations of {name(function)} cannot be resolved: it is not a function"
        )
    return found


def name(function: Callable[..., Any]) -> str:
    """Module and name of a function, for errors."""
    while isinstance(function, partial):
        function = function.func
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
