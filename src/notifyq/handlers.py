"""The registry: which function handles which queue, and what it takes."""

from __future__ import annotations

import inspect
import typing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

from notifyq.admin import Policy
from notifyq.errors import ConfigurationError
from notifyq.model import Message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import timedelta

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
    is_async: bool
    """Whether the function is run on the event loop; otherwise it runs in a thread."""
    message_names: tuple[str, ...] = ()
    """Parameters that are given the message by name, since their place would be another's."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as in a unit test."""
        return self.function(*args, **kwargs)

    async def publish(self, payload: Any = None, /, **options: Any) -> int:
        """Publish a message to this handler's queue; options as for `App.publish`."""
        return await self.publisher(self.queue, payload, **options)


class Registry:
    """Handlers by queue; one for each queue."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[Any, Any]] = {}

    def add(self, handler: Handler[Any, Any]) -> None:
        """Register a handler; a second one for the same queue is an error."""
        other = self._handlers.setdefault(handler.queue, handler)
        if other is not handler:
            raise ConfigurationError(
                f"queue {handler.queue!r} has the handler {_name(other.function)} already: "
                f"{_name(handler.function)} needs a queue of its own"
            )

    def __getitem__(self, queue: str) -> Handler[Any, Any]:
        return self._handlers[queue]

    def __len__(self) -> int:
        return len(self._handlers)

    def queues(self) -> tuple[str, ...]:
        """The queues that have a handler, in the order of registration."""
        return tuple(self._handlers)


def make_handler(
    queue: str,
    function: Callable[P, R],
    *,
    publisher: Callable[..., Awaitable[int]],
    policy: Policy,
    timeout: timedelta | None,
    heartbeat: bool,
    lock_timeout: timedelta | None,
) -> Handler[P, R]:
    """Read a function's signature: what it takes, and as what its payload is validated."""
    takes, message_names, payload_type = _parameters(function)
    return Handler(
        queue=queue,
        function=function,
        policy=policy,
        timeout=timeout,
        heartbeat=heartbeat,
        lock_timeout=lock_timeout,
        publisher=publisher,
        payload=_adapter(function, payload_type),
        result=_adapter(function, _hints(function).get("return", Any)),
        takes=takes,
        is_async=inspect.iscoroutinefunction(function),
        message_names=message_names,
    )


def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...], Any]:
    hints = _hints(function)
    takes: list[str] = []
    message_names: list[str] = []
    payload_type: Any = Any
    is_by_name = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            continue
        is_by_name |= parameter.kind is parameter.KEYWORD_ONLY
        if hints.get(parameter.name) is Message and is_by_name:
            message_names.append(parameter.name)
        elif hints.get(parameter.name) is Message:
            takes.append("message")
        elif "payload" not in takes and parameter.kind is not parameter.KEYWORD_ONLY:
            takes.append("payload")
            payload_type = hints.get(parameter.name, Any)
        elif parameter.default is parameter.empty:
            raise ConfigurationError(
                f"{_name(function)} cannot be a handler: it may take the payload and a "
                f"notifyq.Message, but parameter {parameter.name!r} would get nothing"
            )
        else:
            is_by_name = True  # the parameter keeps its default, so those behind it have moved
    return tuple(takes), tuple(message_names), payload_type


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, AttributeError, TypeError, SyntaxError) as error:
        raise ConfigurationError(
            f"{_name(function)} has an annotation that cannot be resolved: {error}"
        ) from error


def _adapter(function: Callable[..., Any], annotation: Any) -> TypeAdapter[Any] | None:
    if annotation is Any or annotation is object:
        return None
    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigurationError(
            f"{_name(function)}: pydantic cannot validate {annotation!r}: {error}"
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"
