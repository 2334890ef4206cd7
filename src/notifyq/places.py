"""The places of subscriptions: which of them this worker has, and what is going on there.

A place is an advisory lock of the listening session, so it ends with the session, and another
worker takes it: within a second or so, for those without a place keep trying.
"""

from __future__ import annotations

import math
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq import sql
from notifyq.events import SubscriptionLeft, SubscriptionTaken
from notifyq.subscription import Subscription
from notifyq.vigil import Vigil

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator, Sequence

    from notifyq.bell import Promises
    from notifyq.database import AnyConnection, Database
    from notifyq.deliveries import Delivery
    from notifyq.events import Sink
    from notifyq.session import Session
    from notifyq.subscribers import Subscriber

_TRY_EVERY = 0.7
"""Seconds between two tries for places that others have."""
_ALONE = 1.0
"""Seconds without a session after which another worker may serve what this one does."""
_TAKEOVER = timedelta(hours=1)
"""After which the open batch of a place is taken that there is no more."""
_LOADED = 5
"""Batches in a row after which a place rests between two."""
_LULL = 0.05
"""Seconds from one batch to the next that end such a row."""


class Place:
    """One of the places of a subscription: its batch, and what becomes of that."""

    def __init__(
        self, subscriber: Subscriber[Any], number: int, database: Database, sink: Sink
    ) -> None:
        self.subscriber = subscriber
        self.number = number
        stream, name = subscriber.subscription
        self.lock = f"{len(stream)}:{stream}:{name}:{number}"
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
        self.subscription = Subscription(
            database,
            stream,
            name,
            member=None if subscriber.members == 1 else str(number),
            takeover=None if subscriber.members == 1 else _TAKEOVER,
            sink=sink,
        )

    @property
    def stream(self) -> str:
        """The stream that it is of."""
        return self.subscriber.stream

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


class Places:
    """The places of all subscriptions of a worker, and its tries to get them."""

    def __init__(
        self,
        subscribers: Sequence[Subscriber[Any]],
        promises: Promises,
        sink: Sink,
        database: Database,
    ) -> None:
        self._all = [
            Place(subscriber, number, database, sink)
            for subscriber in subscribers
            for number in range(1, subscriber.members + 1)
        ]
        self._promises = promises
        self._sink = sink
        self._vigil = Vigil(database)
        self._session: Session | AnyConnection | None = None
        self._session_seen = time.monotonic()
        self._try_at = 0.0

    def __iter__(self) -> Iterator[Place]:
        return iter(self._all)

    @property
    def is_complete(self) -> bool:
        """Whether no other worker has any of them."""
        return all(place.is_taken for place in self._all)

    @property
    def next_try(self) -> float:
        """When to try again for places that others have, in monotonic seconds."""
        return time.monotonic() + _TRY_EVERY if self._session is None else self._try_at

    async def take(self) -> list[Place]:
        """Try for those that are missing; return what was got."""
        now = time.monotonic()
        if self._promises.is_deaf:
            await self._vigil.keep()
        if not self._has_session(now) or now < self._try_at or self.is_complete:
            return []
        self._try_at = now + _TRY_EVERY * random.uniform(0.8, 1.2)  # noqa: S311  nothing secret
        wanted = self._wanted()
        locks = [place.lock for place in wanted]
        if self._promises.is_deaf:
            answers = await self._vigil.call(sql.LEAD_IN_TRANSACTION, locks)
        else:
            answers = await self._promises.call(sql.LEAD, locks)
        taken = []
        for place, is_granted in zip(wanted, answers or (), strict=False):
            if is_granted:
                taken.append(place)
                self._taken(place)
            elif place.was_taken:
                place.was_taken = False
                place.break_off()
                self._report(SubscriptionLeft, place)
        return taken

    def holds(self, place: Place) -> bool:
        """Whether a place is still ours: its session may have been lost since it was taken."""
        return place.is_taken and self._present is self._session

    @property
    def _present(self) -> Session | AnyConnection | None:
        return self._vigil.session if self._promises.is_deaf else self._promises.session

    def _has_session(self, now: float) -> bool:
        session = self._present
        if session is not self._session:
            # The locks have ended with the session that had them.
            for place in self._all:
                place.was_taken |= place.is_taken
                place.is_taken = False
            self._session, self._try_at = session, 0.0
        if session is not None:
            self._session_seen = now
        elif now - self._session_seen > _ALONE:
            self.break_off()
        return session is not None

    def _wanted(self) -> list[Place]:
        """What was ours, and of each subscription one place more: others want some, too."""
        wanted = []
        subscriptions = set()
        for place in random.sample(self._all, len(self._all)):  # not always the same one
            if place.is_taken:
                continue
            subscription = place.subscriber.subscription
            if place.was_taken or subscription not in subscriptions:
                wanted.append(place)
            if not place.was_taken:
                subscriptions.add(subscription)
        return wanted

    def _taken(self, place: Place) -> None:
        if not place.was_taken:
            place.is_inherited = place.may_owe = True
            self._report(SubscriptionTaken, place)
        place.is_taken = place.was_taken = True

    def break_off(self) -> None:
        """Break off the batches in hand."""
        for place in self._all:
            place.break_off()

    async def give_up(self, places: Iterable[Place]) -> None:
        """Leave places to other workers."""
        left = [place for place in places if place.is_taken]
        if not left:
            return
        for place in left:
            place.is_taken = place.was_taken = False
        if not self._promises.is_deaf:  # else they end with the transaction
            await self._promises.call(sql.UNLEAD, [place.lock for place in left])
        for place in left:
            self._report(SubscriptionLeft, place)

    async def close(self) -> None:
        """Give up what is left."""
        await self._vigil.close()

    def _report(self, kind: type[SubscriptionTaken] | type[SubscriptionLeft], place: Place) -> None:
        stream, name = place.subscriber.subscription
        self._sink(kind(stream=stream, subscriber=name, member=place.number))
