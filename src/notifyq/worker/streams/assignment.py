"""The places of subscriptions: which of them this worker has, and what is going on there.

A place is an advisory lock of the listening session, so it ends with the session, and another
worker takes it: within a second or so, for those without a place keep trying.
"""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING, Any

from notifyq.database import advisory_locks
from notifyq.telemetry import SubscriptionLeft, SubscriptionTaken
from notifyq.worker.streams.member import Member
from notifyq.worker.streams.rebalance import Rebalancer
from notifyq.worker.streams.transaction_lock import TransactionLock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from notifyq.database.pool import AnyConnection, Database
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.notify.session import Session
    from notifyq.notify.suppression import Suppression
    from notifyq.telemetry import Sink

_TRY_EVERY = 0.7
"""Seconds between two tries for places that others have."""
_ALONE = 1.0
"""Seconds without a session after which another worker may serve what this one does."""


class Assignment:
    """The places of all subscriptions of a worker, and its tries to get them."""

    def __init__(
        self,
        subscribers: Sequence[Subscriber[Any]],
        promises: Suppression,
        sink: Sink,
        database: Database,
    ) -> None:
        self._all = [
            Member(subscriber, number, database, sink)
            for subscriber in subscribers
            for number in range(1, subscriber.members + 1)
        ]
        self._promises = promises
        self._sink = sink
        self._vigil = TransactionLock(database)
        self._session: Session | AnyConnection | None = None
        self._session_seen = time.monotonic()
        self._try_at = 0.0
        self._shares = {
            subscriber.subscription: Rebalancer(
                [it for it in self._all if it.subscriber is subscriber], promises
            )
            for subscriber in subscribers
            if subscriber.members > 1
        }

    def __iter__(self) -> Iterator[Member]:
        return iter(self._all)

    @property
    def is_complete(self) -> bool:
        """Whether no other worker has any of them."""
        return all(place.is_taken for place in self._all)

    @property
    def next_try(self) -> float:
        """When `take` has something to do again, in monotonic seconds."""
        if self._session is None:
            return time.monotonic() + _TRY_EVERY
        looks = [share.next_look for share in self._shares.values()]
        return min([math.inf if self.is_complete else self._try_at, *looks])

    async def take(self) -> list[Member]:
        """Try for those that are missing, and return what was got; leave others their share."""
        now = time.monotonic()
        if self._promises.is_deaf:
            await self._vigil.keep()
        if not self._has_session(now):
            return []
        taken = await self._try() if now >= self._try_at and not self.is_complete else []
        for share in self._shares.values():
            place = await share.surplus()
            if place is not None and place.task is None:
                await self.give_up([place])
            elif place is not None:
                place.is_owed = True
        return taken

    async def _try(self) -> list[Member]:
        pause = _TRY_EVERY * random.uniform(0.8, 1.2)  # noqa: S311  nothing secret
        self._try_at = time.monotonic() + pause
        wanted = self._wanted()
        if not wanted:
            return []
        choices = [place.lock for place in wanted], list(wanted.values())
        if self._promises.is_deaf:
            granted = await self._vigil.call(advisory_locks.LEAD_IN_TRANSACTION, *choices)
        else:
            granted = await self._promises.call(advisory_locks.LEAD_ONE_OF_EACH, *choices)
        if granted is None:
            return []
        taken = []
        for place in wanted:
            if place.lock in granted:
                taken.append(place)
                self._taken(place)
            elif place.was_taken:
                place.was_taken = False
                place.break_off()
                self._report(SubscriptionLeft, place)
        return taken

    def holds(self, place: Member) -> bool:
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

    def _wanted(self) -> dict[Member, int]:
        """What was ours, and of each subscription one place more: others want some, too.

        Of those with the same number one is wanted, whichever is free.
        """
        wanted = {}
        choices: dict[tuple[str, str], int | None] = {}
        for number, place in enumerate(random.sample(self._all, len(self._all))):
            if place.is_taken:
                continue
            if place.was_taken:
                wanted[place] = number
                continue
            subscription = place.subscriber.subscription
            if subscription not in choices:
                share = self._shares.get(subscription)
                may_grow = share is None or share.may_grow()
                choices[subscription] = number if may_grow else None
            if (choice := choices[subscription]) is not None:
                wanted[place] = choice
        return wanted

    def _taken(self, place: Member) -> None:
        if not place.was_taken:
            place.is_inherited = place.may_owe = True
            if share := self._shares.get(place.subscriber.subscription):
                share.has_grown(place)
            self._report(SubscriptionTaken, place)
        place.is_taken = place.was_taken = True
        place.is_owed = False

    def break_off(self) -> None:
        """Break off the batches in hand."""
        for place in self._all:
            place.break_off()

    async def give_up(self, places: Iterable[Member]) -> None:
        """Leave places to other workers."""
        left = [place for place in places if place.is_taken]
        if not left:
            return
        for place in left:
            place.is_taken = place.was_taken = place.is_owed = False
            if share := self._shares.get(place.subscriber.subscription):
                share.has_left(place)
        if not self._promises.is_deaf:  # else they end with the transaction
            await self._promises.call(advisory_locks.UNLEAD, [place.lock for place in left])
        for place in left:
            self._report(SubscriptionLeft, place)

    async def stand_down(self) -> None:
        """Say that no more places are wanted here."""
        for share in self._shares.values():
            await share.stand_down()

    async def close(self) -> None:
        """Give up what is left."""
        await self._vigil.close()

    def _report(
        self, kind: type[SubscriptionTaken] | type[SubscriptionLeft], place: Member
    ) -> None:
        stream, name = place.subscriber.subscription
        self._sink(kind(stream=stream, subscriber=name, member=place.number))
