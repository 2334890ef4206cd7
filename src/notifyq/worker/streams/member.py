"""One of the places of a subscription: its batch, and what becomes of that."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.streams.subscription import Subscription

if TYPE_CHECKING:
    import asyncio

    from notifyq.database.pool import Database
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.telemetry import Sink
    from notifyq.worker.streams.delivery import Delivery

_TAKEOVER = timedelta(hours=1)
"""After which the open batch of a place is taken that there is no more."""
_LOADED = 5
"""Batches in a row after which a place rests between two."""
_LULL = 0.05
"""Seconds from one batch to the next that end such a row."""


class Member:
    """A place, taken by this worker or not."""

    def __init__(
        self, subscriber: Subscriber[Any], number: int, database: Database, sink: Sink
    ) -> None:
        self.subscriber = subscriber
        self.number = number
        self.lock = self.lock_of(number)
        self.is_taken = False
        self.was_taken = False
        """Whether it was ours before the session was lost; then what runs goes on."""
        self.task: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = None
        self.not_before = 0.0
        self.rests_until = 0.0
        self._in_a_row = 0
        self._opened_at = 0.0
        self.due_at: float | None = None
        """When an event comes again that was put back, in monotonic seconds."""
        self.is_inherited = False
        """Whether its batch may be that of a worker that is gone."""
        self.may_owe = False
        """Whether events may be put off that `due_at` knows nothing of."""
        self.in_vain = 0
        self.is_missing = False
        self.is_owed = False
        """Whether it is left to another worker once nothing goes on there."""
        self.subscription = Subscription(
            database,
            *subscriber.subscription,
            member=None if subscriber.members == 1 else str(number),
            takeover=None if subscriber.members == 1 else _TAKEOVER,
            sink=sink,
        )

    @property
    def stream(self) -> str:
        """The stream that it is of."""
        return self.subscriber.stream

    def lock_of(self, number: int) -> str:
        """Name the lock of a place of its subscription, or of all that stand by, which is 0."""
        stream, name = self.subscriber.subscription
        return f"{len(stream)}:{stream}:{name}:{number}"

    @property
    def is_idle(self) -> bool:
        """Whether its next batch may be looked for."""
        now = time.monotonic()
        return self.is_free and now >= self.not_before and now >= self.rests_until

    @property
    def is_free(self) -> bool:
        """Whether it is ours, and nothing is going on there."""
        return self.is_taken and self.task is None

    @property
    def is_resting(self) -> bool:
        """Whether it leaves time for events to gather, until `rests_until`."""
        now = time.monotonic()
        return self.is_free and self.not_before <= now < self.rests_until

    def opened(self) -> None:
        """Note that a batch was opened."""
        now = time.monotonic()
        if now - self._opened_at > max(_LULL, 2 * self.subscriber.rest):
            self._in_a_row = 0
        self._in_a_row += 1
        self._opened_at = now

    def rest(self, events: int) -> None:
        """After a batch of so many events: under load, let more than a few gather for the next.

        A look costs about the same however much it finds.
        """
        if self._in_a_row >= _LOADED and events < self.subscriber.quantity:
            self.rests_until = self._opened_at + self.subscriber.rest

    async def recover(self) -> None:
        """See to the batch of the worker that had this place before."""
        subscriber = self.subscriber
        await self.subscription.recover(subscriber.max_attempts, ordered=subscriber.ordered)
        self.is_inherited = False

    def put_off(self, seconds: float) -> None:
        """Note that an event comes again after so many seconds."""
        self.may_owe = True
        self.due_at = min(self.due_at or math.inf, time.monotonic() + seconds)

    async def ask_due(self) -> None:
        """Learn when the first event comes again that was put off, maybe by another worker."""
        self.may_owe = False
        if (left := await self.subscription.next_retry()) is not None:
            self.put_off(left.total_seconds())

    def break_off(self) -> None:
        """Break off the batch in hand: it comes again, here or elsewhere."""
        if self.delivery is not None:
            self.delivery.cancel()
