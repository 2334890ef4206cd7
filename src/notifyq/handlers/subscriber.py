"""Subscribers: functions that handle the events of a stream, and publish into it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

from notifyq.arguments import duration, known_options, positive, text, whole
from notifyq.errors import ConfigurationError
from notifyq.handlers.handler import Handler
from notifyq.handlers.resources import Resources, name
from notifyq.handlers.retries import Retries
from notifyq.handlers.signature import Signature, adapter
from notifyq.models.event import Event
from notifyq.queues.admin import Policy
from notifyq.streams.admin import StreamPolicy, as_position
from notifyq.streams.subscription import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from notifyq.handlers.handler import Publishing
    from notifyq.handlers.retries import Backoff
    from notifyq.queues.publisher import PublishManyOptions, PublishOptions
    from notifyq.queues.results import Handle

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")
F_co = TypeVar("F_co", bound="Callable[..., Any]", covariant=True)

MOST_MEMBERS = 64
"""Places of one subscription."""
_MOST_BATCH, _MOST_ATTEMPTS, _MOST_AT_ONCE = 10_000, 1000, 10_000
_BACKOFF = timedelta(seconds=2)
_REST, _LONGEST_REST = 0.01, 60.0


class SubscriberOptions(TypedDict, total=False):
    """What may be said of any subscriber; durations are timedeltas or seconds."""

    timeout: timedelta | float | None
    max_attempts: int
    backoff: Backoff | None
    backoff_max: timedelta | float | None
    transactional: bool
    ordered: bool
    concurrency: int
    members: int
    quantity: int
    rest: timedelta | float
    position: str | int | datetime
    policy: StreamPolicy | None
    """What the stream gets, where the worker creates it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subscriber(Handler[F_co], Generic[F_co]):
    """A function that handles the events of a stream; calling it calls the function."""

    name: str
    quantity: int
    """Most events of one batch."""
    concurrency: int
    """Most calls at a time, within a batch."""
    ordered: bool
    """Whether an event that fails holds up those behind it that have the same key."""
    members: int
    """Most batches at a time, over all workers."""
    max_attempts: int
    rest: float
    """Least seconds from one batch to the next, while events come one after the other."""
    position: str
    """Where the subscription begins, if the worker creates it."""
    stream_policy: StreamPolicy | None

    @property
    def stream(self) -> str:
        """The stream, into which `publish` publishes."""
        return self.queue

    @property
    def subscription(self) -> tuple[str, str]:
        """Stream and name."""
        return self.queue, self.name

    @overload
    async def publish(
        self: _Of[list[T]], payload: T, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]: ...
    @overload
    async def publish(
        self: _Of[Event], payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]: ...
    @overload
    async def publish(
        self: _Of[T], payload: T, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]: ...
    @overload
    async def publish(
        self: _OfNothing, payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]: ...
    async def publish(
        self, payload: Any = None, /, **options: Unpack[PublishOptions]
    ) -> Handle[Any]:
        """Publish one event into the stream; options as for `App.publish`.

        For type checkers the payload is the first parameter of the function, or an item of that.
        """
        return await self._publish(payload, options)

    async def publish_many(
        self, payloads: Iterable[Any], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many, all or none; options as for `App.publish_many`."""
        return await self._publish_many(payloads, options)


if TYPE_CHECKING:
    # What subscribers are to `publish`, by what their functions take.
    _Of = Subscriber[Callable[Concatenate[T, ...], Any]]
    _OfNothing = Subscriber[Callable[[], Any]]


class RegisterSubscriber(Protocol):
    """Makes a subscriber of a function."""

    def __call__(self, function: F, /) -> Subscriber[F]:
        """Register it."""


class _WithBatch(Resources):
    """Resources, and the batch that is being handled."""

    def __init__(self, known: Resources) -> None:
        super().__init__()
        self._known = known

    def __contains__(self, kind: Any) -> bool:
        return kind is Batch or kind in self._known


def make_subscriber(
    stream: str,
    subscriber: str,
    function: Callable[..., Any],
    *,
    resources: Resources,
    publisher: Publishing,
    batch: int | None = None,
    **options: Unpack[SubscriberOptions],
) -> Subscriber[Any]:
    """Read a function's signature: what it takes, and as what payloads are validated."""
    is_async = inspect.iscoroutinefunction(function)
    is_transactional = options.get("transactional", False)
    text("stream", stream)
    text("subscriber", subscriber)
    _check(function, batch, options, is_async=is_async)
    is_batch = batch is not None
    signature = Signature(
        function,
        _WithBatch(resources) if is_batch else resources,
        is_batch=is_batch,
        has_transaction=is_transactional,
        kind=Event,
    )
    backoff = options.get("backoff")
    return Subscriber(
        queue=stream,
        name=subscriber,
        function=function,
        policy=Policy(),
        retries=Retries(_BACKOFF if backoff is None else backoff, options.get("backoff_max")),
        timeout=duration("timeout", options.get("timeout")),
        heartbeat=False,
        lock_timeout=None,
        publisher=publisher,
        payload=adapter(function, signature.payload),
        result=None,
        takes=tuple(signature.takes),
        names=tuple(signature.names),
        resources=tuple(signature.resources),
        takes_payload=signature.takes_payload,
        is_async=is_async,
        is_transactional=is_transactional,
        process=None,
        batch=batch,
        linger=timedelta(),
        quantity=batch or options.get("quantity", 100),
        concurrency=options.get("concurrency", 1),
        ordered=options.get("ordered", False),
        members=options.get("members", 1),
        max_attempts=options.get("max_attempts", 5),
        rest=_rest(options),
        position=as_position(options.get("position", "last")),
        stream_policy=options.get("policy"),
    )


def _check(
    function: Callable[..., Any],
    batch: int | None,
    options: SubscriberOptions,
    *,
    is_async: bool,
) -> None:
    known_options("a subscriber", options, SubscriberOptions.__annotations__)
    for option, most, value in (
        ("batch", _MOST_BATCH, batch),
        ("quantity", _MOST_BATCH, options.get("quantity")),
        ("max_attempts", _MOST_ATTEMPTS, options.get("max_attempts")),
        ("members", MOST_MEMBERS, options.get("members")),
        ("concurrency", _MOST_AT_ONCE, options.get("concurrency")),
    ):
        whole(option, value, most)
    policy = options.get("policy")
    if policy is not None and not isinstance(policy, StreamPolicy):
        raise ConfigurationError(
            f"policy must be a notifyq.StreamPolicy, as in StreamPolicy(retention=3600), "
            f"not {policy!r}"
        )
    if batch is not None and (options.get("concurrency", 1) > 1 or "quantity" in options):
        raise ConfigurationError(
            f"{name(function)} takes a batch at a time: leave concurrency and quantity out, "
            "or leave batch out and take one event"
        )
    if options.get("ordered") and options.get("members", 1) > 1:
        raise ConfigurationError(
            f"{name(function)} cannot be ordered with several members, which have batches of "
            "their own at the same time"
        )
    if options.get("transactional"):
        _check_transactional(function, options, is_async=is_async)


def _rest(options: SubscriberOptions) -> float:
    rest = positive(options.get("rest", _REST))
    if rest is None or rest.total_seconds() > _LONGEST_REST:
        raise ConfigurationError(
            f"rest must be between 0, which turns it off, and {_LONGEST_REST:g} seconds, "
            f"not {options.get('rest')!r}"
        )
    return rest.total_seconds()


def _check_transactional(
    function: Callable[..., Any], options: SubscriberOptions, *, is_async: bool
) -> None:
    if not is_async:
        raise ConfigurationError(
            f"{name(function)} cannot be transactional: its connection belongs to the event loop, "
            "so it must be an async function"
        )
    if options.get("concurrency", 1) > 1:
        raise ConfigurationError(
            f"{name(function)} cannot be transactional with a concurrency: the events of a batch "
            "share one transaction. More members have more of them"
        )
