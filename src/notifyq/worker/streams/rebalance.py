"""Shares of a subscription with several places: whoever has most leaves some to who came later.

A worker with two places more than another one that stands by leaves one, until there is no such
worker. Who has more than the others is in no hurry to take another place, so that they get it.
During a deployment some may know of fewer places than others: all that a worker has are counted.
"""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

from notifyq.database import advisory_locks
from notifyq.handlers.subscriber import MOST_MEMBERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.notify.session import Session
    from notifyq.notify.suppression import Suppression
    from notifyq.worker.streams.member import Member

_LOOK_EVERY = 3.0
"""Seconds between two looks at what others have."""
_LONGEST = 300.0
"""Longest time in seconds until the next place is left where nobody else took the one before: who
stands by may be stuck. It doubles each time, and begins anew with whoever comes or goes."""
_NO_HURRY = 2.5
"""Seconds between two tries of a worker that has more than others."""


class Rebalancer:
    """What this worker has of the places of one subscription."""

    def __init__(self, places: Sequence[Member], promises: Suppression) -> None:
        self._places = places
        self._standby = places[0].lock_of(0)
        self._names = [places[0].lock_of(number) for number in range(1, MOST_MEMBERS + 1)]
        self._promises = promises
        self._session: Session | None = None
        self._fewest: int | None = None
        self._standing: list[int] = []
        self._look_at = 0.0
        self._leave_in = _LOOK_EVERY
        self._leave_at = 0.0
        self._try_at = 0.0
        self._left: Member | None = None

    @property
    def next_look(self) -> float:
        """When to look at what others have, in monotonic seconds."""
        return math.inf if self._promises.is_deaf else self._look_at

    def may_grow(self) -> bool:
        """Whether to try for one place more."""
        now = time.monotonic()
        if self._fewest is None or len(self._taken) <= self._fewest:
            return True
        if now < self._try_at:
            return False
        self._try_at = now + _NO_HURRY
        return True

    def has_grown(self, place: Member) -> None:
        """Note that a place was got."""
        if place is self._left:
            self._left = None
            self._leave_in = min(2 * self._leave_in, _LONGEST)
            self._leave_at = time.monotonic() + self._leave_in
        else:
            self._look_at = 0.0

    def has_left(self, place: Member) -> None:
        """Note that a place is free: what was left to others is theirs to take first."""
        if place is self._left:
            self._try_at = time.monotonic() + _NO_HURRY

    async def surplus(self) -> Member | None:
        """Look at what others have; return the place to leave to them, if there is one."""
        now = time.monotonic()
        if now < self._look_at or self._promises.is_deaf:
            return None
        self._look_at = now + _LOOK_EVERY * random.uniform(0.8, 1.2)  # noqa: S311  nothing secret
        if not await self._stand_by():
            return None
        answer = await self._promises.call(
            advisory_locks.OTHERS, self._standby, self._names, len(self._places)
        )
        if answer is None:
            return None
        others, self._fewest, *standing = answer
        if standing != self._standing:
            self._standing, self._leave_in, self._leave_at = standing, _LOOK_EVERY, 0.0
        taken = self._taken
        if others + len(taken) < len(self._places):
            return None  # there is one to be had
        self._left = None
        if self._fewest is None or len(taken) < self._fewest + 2:
            self._leave_in = _LOOK_EVERY
            return None
        if now < self._leave_at:
            return None
        # What has nothing in hand goes at once.
        self._left = min(taken, key=lambda place: place.task is not None)
        return self._left

    async def stand_down(self) -> None:
        """Take no more places from others."""
        if self._session is not None and self._session is self._promises.session:
            await self._promises.call(advisory_locks.STAND_DOWN, self._standby)

    @property
    def _taken(self) -> list[Member]:
        return [place for place in self._places if place.is_taken and not place.is_owed]

    async def _stand_by(self) -> bool:
        session = self._promises.session
        if self._session is not session:
            is_there = await self._promises.call(advisory_locks.STAND_BY, self._standby)
            self._session = session if is_there else None
        return self._session is not None
