"""What the handlers of a worker share: opened when it starts, closed in reverse when it ends."""

from __future__ import annotations

import inspect
import typing
from collections import abc
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError, ResourceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping

_ITERATORS = {
    abc.AsyncGenerator,
    abc.AsyncIterable,
    abc.AsyncIterator,
    abc.Generator,
    abc.Iterable,
    abc.Iterator,
}


@dataclass(frozen=True, slots=True)
class _Resource:
    function: Callable[..., Any]
    needs: tuple[tuple[str, Hashable], ...]
    """Parameters of the function, and the types that they are given."""


class Resources:
    """Functions by the type of what they give."""

    def __init__(self) -> None:
        self._resources: dict[Hashable, _Resource] = {}

    def __contains__(self, kind: Any) -> bool:
        return isinstance(kind, abc.Hashable) and kind in self._resources

    def add(self, function: Callable[..., Any]) -> None:
        """Register a function for the type that its annotation says it returns or yields."""
        annotations = hints(function)
        kind = _given(annotations.get("return"))
        if kind is None or kind is Any or not isinstance(kind, abc.Hashable):
            raise ConfigurationError(
                f"{name(function)} must say what it gives: annotate it with a type, or with "
                "AsyncIterator of a type where it yields"
            )
        if (other := self._resources.get(kind)) is not None:
            raise ConfigurationError(
                f"{name(other.function)} gives {_text(kind)} already: give "
                f"{name(function)} a type of its own, as with typing.NewType"
            )
        needs = []
        for parameter in inspect.signature(function).parameters.values():
            if annotations.get(parameter.name) in self:
                needs.append((parameter.name, annotations[parameter.name]))
            elif parameter.default is parameter.empty:
                raise ConfigurationError(
                    f"parameter {parameter.name!r} of {name(function)} would get nothing: a "
                    "resource may take resources that are registered before it"
                )
        self._resources[kind] = _Resource(function, tuple(needs))

    @asynccontextmanager
    async def opened(
        self, wanted: Iterable[Hashable], given: Mapping[Any, Any]
    ) -> AsyncIterator[dict[Any, Any]]:
        """Open what is wanted and what that needs; what is `given` is used as it is."""
        values = dict(given)
        needed = self._needed(wanted, values)
        stack = AsyncExitStack()
        try:
            # What a resource needs was registered before it.
            for kind, resource in self._resources.items():
                if kind in needed:
                    arguments = {parameter: values[need] for parameter, need in resource.needs}
                    values[kind] = await _open(stack, resource.function, arguments)
            yield values
        finally:
            # Not with the error that ends the worker, if there is one: what stands behind a `yield`
            # is to run all the same.
            await stack.aclose()

    def _needed(self, wanted: Iterable[Hashable], given: Mapping[Any, Any]) -> set[Hashable]:
        needed: set[Hashable] = set()
        left = list(wanted)
        while left:
            kind = left.pop()
            if kind not in needed and kind not in given:
                needed.add(kind)
                left.extend(need for _, need in self._resources[kind].needs)
        return needed


async def _open(
    stack: AsyncExitStack, function: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    try:
        if inspect.isasyncgenfunction(function):
            return await stack.enter_async_context(asynccontextmanager(function)(**arguments))
        if inspect.isgeneratorfunction(function):
            return stack.enter_context(contextmanager(function)(**arguments))
        value = function(**arguments)
        return await value if inspect.iscoroutinefunction(function) else value
    except Exception as error:
        raise ResourceError(
            f"resource {name(function)} could not be opened: {type(error).__name__}: {error}"
        ) from error


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; one that cannot be resolved is an error."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{name(function)} has an annotation that cannot be resolved: {error}"
        ) from error


def name(function: Callable[..., Any]) -> str:
    """A function's module and name, for errors."""
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def _given(annotation: Any) -> Any:
    """What a function with this return annotation gives: the item, where it yields."""
    if typing.get_origin(annotation) in _ITERATORS:
        return typing.get_args(annotation)[0]
    return None if annotation is type(None) else annotation


def _text(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
