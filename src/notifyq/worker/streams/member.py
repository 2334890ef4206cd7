"""One member of a subscription: its batch, and when to fetch the next one."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.database.pool import Database
from notifyq.streams.subscription import Subscription
from notifyq.telemetry import TelemetryHandler

if TYPE_CHECKING:
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.worker.streams.delivery import Delivery

_TAKEOVER = timedelta(hours=1)
"""After which a batch that a removed member has open is taken over."""
_LOADED = 5
"""Batches in a row after which a member rests between two."""
_LULL = 0.05
"""Seconds from one batch to the next that end such a row."""


class Member:
    """A member slot of a subscription, which this worker holds or does not."""

    def __init__(
        self,
        subscriber: Subscriber[Any],
        number: int,
        database: Database,
        telemetry: TelemetryHandler,
    ) -> None:
        self.subscriber = subscriber
        self.number = number
        self.lock = self.lock_of(number)
        self.is_held = False
        self.was_held = False
        """Whether this worker held it before the session was lost: then its batch goes on."""
        self.task: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = None
        self.not_before = 0.0
        self.rests_until = 0.0
        self._in_a_row = 0
        self._opened_at = 0.0
        self.due_at: float | None = None
        """When the next retry of an event is due, in monotonic seconds."""
        self.is_inherited = False
        """Whether its batch may be one that a worker left behind."""
        self.may_have_retries = False
        """Whether retries may be due that `due_at` does not include."""
        self.failures = 0
        self.refused_with: Exception | None = None
        """Why the server refuses it: its stream does not exist, for example."""
        self.is_surplus = False
        """Whether it goes to another worker when its batch is over."""
        self.subscription = Subscription(
            database,
            *subscriber.subscription,
            member=None if subscriber.members == 1 else str(number),
            takeover=None if subscriber.members == 1 else _TAKEOVER,
            telemetry=telemetry,
        )

    @property
    def stream(self) -> str:
        """Its stream."""
        return self.subscriber.stream

    @property
    def name(self) -> str:
        """Its subscription, for a log."""
        stream, subscriber = self.subscriber.subscription
        return f"subscriber {subscriber!r} of stream {stream!r}"

    def lock_of(self, number: int) -> str:
        """The name of the lock of a member slot; 0 is the one that all workers share."""
        stream, name = self.subscriber.subscription
        return f"{len(stream)}:{stream}:{name}:{number}"

    @property
    def is_idle(self) -> bool:
        """Whether its next batch may be fetched now."""
        now = time.monotonic()
        return self.is_free and now >= self.not_before and now >= self.rests_until

    @property
    def is_free(self) -> bool:
        """Whether this worker holds it and no batch of it runs."""
        return self.is_held and self.task is None

    @property
    def is_resting(self) -> bool:
        """Whether it lets events gather, until `rests_until`."""
        now = time.monotonic()
        return self.is_free and self.not_before <= now < self.rests_until

    def opened(self) -> None:
        """Record that a batch was opened."""
        now = time.monotonic()
        if now - self._opened_at > max(_LULL, 2 * self.subscriber.rest):
            self._in_a_row = 0
        self._in_a_row += 1
        self._opened_at = now

    def rest(self, events: int) -> None:
        """After a batch of so many events: under load, let more events gather for the next.

        A fetch costs about the same however many events it finds.
        """
        if self._in_a_row >= _LOADED and events < self.subscriber.quantity:
            self.rests_until = self._opened_at + self.subscriber.rest

    async def recover(self) -> None:
        """Recover the batch of the worker that held this slot before."""
        subscriber = self.subscriber
        await self.subscription.recover(subscriber.max_attempts, ordered=subscriber.ordered)
        self.is_inherited = False

    def retry_in(self, seconds: float) -> None:
        """Record that a retry is due in so many seconds."""
        self.may_have_retries = True
        self.due_at = min(self.due_at or math.inf, time.monotonic() + seconds)

    async def fetch_due(self) -> None:
        """Find out when the first retry is due, also of events of other workers."""
        self.may_have_retries = False
        if (left := await self.subscription.next_retry()) is not None:
            self.retry_in(left.total_seconds())

    def cancel(self) -> None:
        """Cancel the batch that runs: it is delivered again, here or elsewhere."""
        if self.delivery is not None:
            self.delivery.cancel()
