"""Subscribers: functions that handle the events of a stream and publish into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Protocol, TypeVar, Unpack, overload

from notifyq.handlers.handler import Handler
from notifyq.models.event import Event

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.queues.publisher import PublishManyOptions, PublishOptions
    from notifyq.queues.results import Handle
    from notifyq.streams.admin import StreamPolicy

F = TypeVar("F", bound="Callable[..., Any]")
T = TypeVar("T")
F_co = TypeVar("F_co", bound="Callable[..., Any]", covariant=True)

MOST_MEMBERS = 64
"""Most members of one subscription."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subscriber(Handler[F_co], Generic[F_co]):
    """A function that handles the events of a stream; calling it calls the function."""

    name: str
    quantity: int
    """Most events of one batch."""
    concurrency: int
    """Most calls at the same time, within a batch."""
    ordered: bool
    """Whether an event that fails blocks later ones with the same key."""
    members: int
    """Most batches at the same time, over all workers."""
    max_attempts: int
    rest: float
    """Least seconds between two batches while events arrive one by one."""
    position: str
    """Where the subscription starts, if the worker creates it."""
    stream_policy: StreamPolicy | None

    @property
    def stream(self) -> str:
        """The name of the stream; `publish` publishes into it."""
        return self.queue

    @property
    def subscription(self) -> tuple[str, str]:
        """Stream and name of the subscriber."""
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

        For type checkers the payload is the first parameter of the function, or its item.
        """
        return await self._publish(payload, options)

    async def publish_many(
        self, payloads: Iterable[Any], /, **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many, all or none; options as for `App.publish_many`."""
        return await self._publish_many(payloads, options)


if TYPE_CHECKING:
    # Subscribers as `publish` sees them, by the parameters of their functions.
    _Of = Subscriber[Callable[Concatenate[T, ...], Any]]
    _OfNothing = Subscriber[Callable[[], Any]]


class RegisterSubscriber(Protocol):
    """Makes a subscriber of a function."""

    def __call__(self, function: F, /) -> Subscriber[F]:
        """Register it."""
