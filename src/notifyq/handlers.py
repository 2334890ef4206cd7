"""The registry: which function handles which queue, and what it takes."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

from notifyq.admin import Policy
from notifyq.errors import ConfigurationError
from notifyq.model import Message
from notifyq.resources import Resources, hints, name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from datetime import timedelta

    Middleware = Callable[[Message, Callable[[], Awaitable[Any]]], Awaitable[Any]]

P = ParamSpec("P")
R = TypeVar("R")


class Reject(Exception):  # noqa: N818  a signal of the handler's, not an error
    """Raised by a handler: this message can never be handled. It is archived as rejected."""


class Retry(Exception):  # noqa: N818  a signal of the handler's, not an error
    """Raised by a handler: try again, `after` a while of its own instead of the queue's backoff.

    The attempt counts: with none left the message is archived as failed.
    """

    def __init__(self, reason: str = "", *, after: timedelta | float | None = None) -> None:
        super().__init__(reason)
        self.after = seconds(after)


def seconds(value: timedelta | float | None) -> timedelta | None:
    """A duration; a bare number counts seconds."""
    from datetime import timedelta as duration

    return duration(seconds=value) if isinstance(value, int | float) else value


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler(Generic[P, R]):
    """A function that handles the messages of a queue; calling it calls the function."""

    queue: str
    function: Callable[P, R]
    policy: Policy
    timeout: timedelta | None
    """The handler is stopped, and the attempt has failed, after this long."""
    heartbeat: bool
    """Whether the lock is extended while the handler runs; without, it must end in time."""
    lock_timeout: timedelta | None
    """Overrides the lock timeout of the queue for claims of this worker."""
    publisher: Callable[..., Awaitable[int]] = field(repr=False)
    payload: TypeAdapter[Any] | None = field(repr=False)
    """What the payload is validated as; None hands on the decoded JSON."""
    result: TypeAdapter[Any] | None = field(repr=False)
    takes: tuple[str, ...]
    """What the function is called with, in order: `payload`, `message`, or both."""
    names: tuple[tuple[str, str], ...]
    """Parameters that are given one of them by name, since their place would be another's."""
    resources: tuple[tuple[str, Any], ...]
    """Parameters that are given a resource, and the type of each."""
    takes_payload: bool
    """Whether the payload is of any interest; else it is not even decoded."""
    is_async: bool
    """Whether the function is run on the event loop; otherwise it runs in a thread."""
    middleware: tuple[Middleware, ...] = ()
    """What runs around the function, the outermost first; a worker sets it."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as in a unit test."""
        return self.function(*args, **kwargs)

    async def publish(self, payload: Any = None, /, **options: Any) -> int:
        """Publish a message to this handler's queue; options as for `App.publish`."""
        return await self.publisher(self.queue, payload, **options)


class Registry:
    """Handlers by queue, one for each queue; what they share, and what runs around them."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[Any, Any]] = {}
        self.resources = Resources()
        self._middleware: list[Middleware] = []

    def add(self, handler: Handler[Any, Any]) -> None:
        """Register a handler; a second one for the same queue is an error."""
        other = self._handlers.setdefault(handler.queue, handler)
        if other is not handler:
            raise ConfigurationError(
                f"queue {handler.queue!r} has the handler {name(other.function)} already: "
                f"{name(handler.function)} needs a queue of its own"
            )

    def add_resource(self, function: Callable[..., Any]) -> None:
        """Register what handlers that are registered later may take."""
        self.resources.add(function)

    def add_middleware(self, function: Middleware) -> None:
        """Run this around all handlers, inside of what was added before."""
        self._middleware.append(function)

    @asynccontextmanager
    async def opened(
        self, queues: Iterable[str], given: Mapping[Any, Any] | None = None
    ) -> AsyncIterator[dict[str, Handler[Any, Any]]]:
        """Give the handlers of these queues, ready to be called, while their resources are open."""
        handlers = [self[queue] for queue in queues]
        wanted = [kind for handler in handlers for _, kind in handler.resources]
        async with self.resources.opened(wanted, given or {}) as values:
            yield {
                handler.queue: _bound(handler, values, tuple(self._middleware))
                for handler in handlers
            }

    def __getitem__(self, queue: str) -> Handler[Any, Any]:
        return self._handlers[queue]

    def __len__(self) -> int:
        return len(self._handlers)

    def queues(self) -> tuple[str, ...]:
        """The queues that have a handler, in the order of registration."""
        return tuple(self._handlers)


def _bound(
    handler: Handler[Any, Any], values: Mapping[Any, Any], middleware: tuple[Middleware, ...]
) -> Handler[Any, Any]:
    if not handler.resources and not middleware:
        return handler
    arguments = {parameter: values[kind] for parameter, kind in handler.resources}
    return replace(handler, function=partial(handler.function, **arguments), middleware=middleware)


def make_handler(
    queue: str,
    function: Callable[P, R],
    *,
    resources: Resources,
    publisher: Callable[..., Awaitable[int]],
    policy: Policy,
    timeout: timedelta | None,
    heartbeat: bool,
    lock_timeout: timedelta | None,
) -> Handler[P, R]:
    """Read a function's signature: what it takes, and as what its payload is validated."""
    signature = _Signature(function, resources)
    return Handler(
        queue=queue,
        function=function,
        policy=policy,
        timeout=timeout,
        heartbeat=heartbeat,
        lock_timeout=lock_timeout,
        publisher=publisher,
        payload=_adapter(function, signature.payload),
        result=_adapter(function, signature.hints.get("return", Any)),
        takes=tuple(signature.takes),
        names=tuple(signature.names),
        resources=tuple(signature.resources),
        takes_payload=signature.takes_payload,
        is_async=inspect.iscoroutinefunction(function),
    )


class _Signature:
    """Which parameter of a handler gets what."""

    def __init__(self, function: Callable[..., Any], known: Resources) -> None:
        self.hints = hints(function)
        self.takes: list[str] = []
        self.names: list[tuple[str, str]] = []
        self.resources: list[tuple[str, Any]] = []
        self.payload: Any = Any
        self.takes_payload = False
        # Behind a parameter that keeps its default, or gets a resource, places have moved.
        self._is_by_name = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                self._is_by_name |= parameter.kind is parameter.KEYWORD_ONLY
                if not self._add(parameter, known):
                    raise ConfigurationError(
                        f"{name(function)} cannot be a handler: it may take the payload, a "
                        f"notifyq.Message, and resources that are registered before it, but "
                        f"parameter {parameter.name!r} would get nothing"
                    )

    def _add(self, parameter: inspect.Parameter, known: Resources) -> bool:
        hint = self.hints.get(parameter.name)
        if hint is Message:
            slot = "message"
        elif hint in known:
            self.resources.append((parameter.name, hint))
            self._is_by_name = True
            return parameter.kind is not parameter.POSITIONAL_ONLY
        elif not self.takes_payload and parameter.kind is not parameter.KEYWORD_ONLY:
            slot = "payload"
            self.takes_payload = True
            self.payload = Any if hint is None else hint
        else:
            self._is_by_name = True
            return parameter.default is not parameter.empty
        if not self._is_by_name:
            self.takes.append(slot)
            return True
        self.names.append((parameter.name, slot))
        return parameter.kind is not parameter.POSITIONAL_ONLY


def _adapter(function: Callable[..., Any], annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is Any or annotation is object:
        return None
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigurationError(
            f"{name(function)}: pydantic cannot validate {annotation!r}: {error}"
        ) from error
