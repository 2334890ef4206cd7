"""Handlers: functions that handle the messages of a queue and publish into it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Protocol, TypeVar, Unpack, overload

from pydantic import ValidationError

from notifyq.durable.recorder import Publisher
from notifyq.errors import PayloadError
from notifyq.models.message import Message
from notifyq.models.payload import Json, encode
from notifyq.telemetry.tracebacks import explain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from pydantic import TypeAdapter

    from notifyq.handlers.retries import Retries
    from notifyq.queues.policy import Policy
    from notifyq.queues.publish_options import MessageOptions
    from notifyq.queues.publisher import PublishManyOptions, PublishOptions
    from notifyq.queues.results import Handle
    from notifyq.telemetry.tracing import Tracing

    AroundSync = Callable[[], AbstractContextManager[Any]]
    Middleware = Callable[[Message, Callable[[], Awaitable[Any]]], Awaitable[Any]]

F = TypeVar("F", bound=Callable[..., Any])
F_co = TypeVar("F_co", bound=Callable[..., Any], covariant=True)
R = TypeVar("R")
T = TypeVar("T")


class Publishing(Publisher, Protocol):
    """Publishes for a handler: an App."""

    def publish_sync(
        self, queue: str, payload: Any, **options: Unpack[MessageOptions]
    ) -> Handle[Any]:
        """Publish one message, and block until it is done."""

    async def publish_many(
        self, queue: str, payloads: Iterable[Any], **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Handler(Generic[F_co]):
    """A function that handles the messages of a queue; calling it calls the function."""

    queue: str
    function: Callable[..., Any]
    policy: Policy
    """The policy of the queue, for the worker that creates it."""
    retries: Retries = field(repr=False)
    timeout: timedelta | None
    """After this time the handler is stopped, and the attempt has failed."""
    heartbeat: bool
    """Whether the lock is extended while the handler runs."""
    lock_duration: timedelta | None
    """Overrides the lock_duration of the queue for claims of this worker."""
    publisher: Publishing = field(repr=False)
    payload: TypeAdapter[Any] | None = field(repr=False)
    """Validates the payload; None passes the decoded JSON."""
    result: TypeAdapter[Any] | None = field(repr=False)
    takes: tuple[str, ...]
    """The positional arguments in order: `payload`, `message`, `transaction` or `steps`."""
    names: tuple[tuple[str, str], ...]
    """Parameters that receive one of these by name, and which one."""
    resources: tuple[tuple[str, Any], ...]
    """Parameters that receive a resource, and the type of each."""
    takes_payload: bool
    """Whether the function uses the payload; else it is not decoded."""
    validate: bool
    """Whether the publish functions of the handler refuse payloads that the function would."""
    is_async: bool
    """Whether the function runs on the event loop; otherwise it runs in a thread."""
    is_transactional: bool
    """Whether the function takes the transaction that finishes its messages."""
    takes_steps: bool
    """Whether the function takes the recorded steps of its message."""
    process: tuple[str, str] | None
    """Module and name, for a handler process that imports it; None: it runs in this process."""
    batch: int | None
    """Most messages of one call; None: the function takes one message, not a list."""
    linger: timedelta
    """How long the first message of a batch waits for others."""
    middleware: tuple[Middleware, ...] = ()
    """Runs around the function, the outermost first; a worker sets it."""
    tracing: Tracing | None = field(default=None, repr=False)
    """Makes a span of each call; a worker sets it."""

    if TYPE_CHECKING:

        @property
        def __call__(self) -> F_co:
            """The function itself, with its own signature."""
    else:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Call the function itself, as in a unit test."""
            return self.function(*args, **kwargs)

    def publish_sync(
        self, payload: Any = None, /, **options: Unpack[MessageOptions]
    ) -> Handle[Any]:
        """Publish a message to this handler's queue as `App.publish_sync` does."""
        handle = self.publisher.publish_sync(self.queue, self._checked(payload), **options)
        return handle.typed(self.result)

    async def _publish(self, payload: Any, options: PublishOptions) -> Handle[Any]:
        handle = await self.publisher.publish(self.queue, self._checked(payload), **options)
        return handle.typed(self.result)

    async def _publish_many(
        self, payloads: Iterable[Any], options: PublishManyOptions
    ) -> list[Handle[Any]]:
        checked = [self._checked(payload) for payload in payloads]
        handles = await self.publisher.publish_many(self.queue, checked, **options)
        return [handle.typed(self.result) for handle in handles]

    def _checked(self, payload: Any) -> Any:
        """The payload, if the function accepts what it will be as JSON."""
        if not self.validate or self.payload is None or not self.takes_payload:
            return payload
        encoded = encode(payload)
        try:
            self.payload.validate_json(encoded)
        except ValidationError as error:
            raise PayloadError(f"handler {self.function.__qualname__}: {explain(error)}") from error
        return Json(encoded)


class MessageHandler(Handler[F_co]):
    """A handler that takes one message at a time.

    For type checkers the payload is the first parameter of the function.
    """

    __slots__ = ()

    @overload
    async def publish(
        self: _AsyncOfNothing[R], payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    @overload
    async def publish(
        self: _AsyncOf[Message, R], payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    @overload
    async def publish(
        self: _AsyncOf[T, R], payload: T, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    @overload
    async def publish(
        self: _OfNothing[R], payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    @overload
    async def publish(
        self: _Of[Message, R], payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    @overload
    async def publish(
        self: _Of[T, R], payload: T, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    async def publish(
        self, payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]:
        """Publish a message to this handler's queue; options as for `App.publish`."""
        return await self._publish(payload, options)

    @overload
    async def publish_many(
        self: _AsyncOf[Message, R],
        payloads: Iterable[Any],
        /,
        **options: Unpack[PublishManyOptions],
    ) -> list[Handle[R]]: ...
    @overload
    async def publish_many(
        self: _AsyncOf[T, R], payloads: Iterable[T], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[R]]: ...
    @overload
    async def publish_many(
        self: _Of[Message, R], payloads: Iterable[Any], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[R]]: ...
    @overload
    async def publish_many(
        self: _Of[T, R], payloads: Iterable[T], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[R]]: ...
    async def publish_many(
        self, payloads: Iterable[Any], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many, all or none; options as for `App.publish_many`."""
        return await self._publish_many(payloads, options)


class BatchHandler(Handler[F_co]):
    """A handler that takes many messages at a time, as lists."""

    __slots__ = ()

    @overload
    async def publish(
        self: _OfMany[T, R], payload: T, /, **options: Unpack[PublishOptions]
    ) -> Handle[R]: ...
    @overload
    async def publish(
        self: _OfManyMixed[T], payload: T, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]: ...
    async def publish(
        self, payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]:
        """Publish one message to this handler's queue; options as for `App.publish`."""
        return await self._publish(payload, options)

    @overload
    async def publish_many(
        self: _OfMany[T, R], payloads: Iterable[T], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[R]]: ...
    @overload
    async def publish_many(
        self: _OfManyMixed[T], payloads: Iterable[T], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]: ...
    async def publish_many(
        self, payloads: Iterable[Any], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many, all or none; options as for `App.publish_many`."""
        return await self._publish_many(payloads, options)


if TYPE_CHECKING:
    # Handlers by what their functions take, T, and return, R. Each case has its overload, since
    # mypy infers neither R from `Awaitable[R] | R`, nor a type variable from a union of handlers.
    _AsyncOf = MessageHandler[Callable[Concatenate[T, ...], Awaitable[R]]]
    _AsyncOfNothing = MessageHandler[Callable[[], Awaitable[R]]]
    _Of = MessageHandler[Callable[Concatenate[T, ...], R]]
    _OfNothing = MessageHandler[Callable[[], R]]
    _Many = Awaitable[Sequence[R]] | Sequence[R]
    _OfMany = BatchHandler[Callable[Concatenate[list[T], ...], _Many[R]]]
    _OfManyMixed = BatchHandler[Callable[Concatenate[list[T], ...], Any]]


class Register(Protocol):
    """Makes a handler of a function."""

    def __call__(self, function: F, /) -> MessageHandler[F]:
        """Register it."""


class RegisterBatch(Protocol):
    """Makes a handler of a function that takes many messages at a time."""

    def __call__(self, function: F, /) -> BatchHandler[F]:
        """Register it."""


class RegisterCron(Protocol):
    """Makes a handler of a function, or takes one, and registers a schedule for its queue."""

    @overload
    def __call__(self, function: MessageHandler[F], /) -> MessageHandler[F]: ...
    @overload
    def __call__(self, function: F, /) -> MessageHandler[F]: ...
    def __call__(self, function: Any, /) -> Any:
        """Register it."""
