"""Resources that the handlers of a worker share: opened at its start, closed at its end."""

from __future__ import annotations

import inspect
import typing
from collections import abc
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from notifyq.errors import ConfigurationError, ResourceError
from notifyq.models.annotations import hints, name

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
    """Parameters of the function and their types, which are resources too."""


class Resources:
    """Functions that make resources, by the type that they return or yield."""

    def __init__(self) -> None:
        self._resources: dict[Hashable, _Resource] = {}

    def __contains__(self, kind: Any) -> bool:
        return isinstance(kind, abc.Hashable) and kind in self._resources

    def add(self, function: Callable[..., Any]) -> None:
        """Register a function for the type that it returns or yields, by its annotation."""
        annotations = hints(function)
        kind = _given(annotations.get("return"))
        if kind is None or kind is Any or not isinstance(kind, abc.Hashable):
            raise ConfigurationError(
                f"{name(function)} needs a return annotation: the type of the resource, or "
                "AsyncIterator of that type where it yields"
            )
        if (other := self._resources.get(kind)) is not None:
            raise ConfigurationError(
                f"{name(other.function)} already makes {_text(kind)}: give "
                f"{name(function)} a type of its own, for example by typing.NewType"
            )
        needs = []
        for parameter in inspect.signature(function).parameters.values():
            if annotations.get(parameter.name) in self:
                needs.append((parameter.name, annotations[parameter.name]))
            elif parameter.default is parameter.empty:
                raise ConfigurationError(
                    f"parameter {parameter.name!r} of {name(function)} has no value: a "
                    "resource may take resources that are registered before it"
                )
        self._resources[kind] = _Resource(function, tuple(needs))

    @asynccontextmanager
    async def opened(
        self, wanted: Iterable[Hashable], given: Mapping[Any, Any]
    ) -> AsyncIterator[dict[Any, Any]]:
        """Open the wanted resources and what those need; use those in `given` as they are."""
        values = dict(given)
        needed = self._needed(wanted, values)
        stack = AsyncExitStack()
        try:
            # A resource is registered after those that it needs.
            for kind, resource in self._resources.items():
                if kind in needed:
                    arguments = {parameter: values[need] for parameter, need in resource.needs}
                    values[kind] = await _open(stack, resource.function, arguments)
            yield values
        finally:
            # Without the error that ends the worker: the code behind a `yield` must run.
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


def _given(annotation: Any) -> Any:
    """The type of a resource by its return annotation: the item, where the function yields."""
    if typing.get_origin(annotation) in _ITERATORS:
        return typing.get_args(annotation)[0]
    return None if annotation is type(None) else annotation


def _text(kind: Any) -> str:
    return getattr(kind, "__qualname__", None) or str(kind)
