"""Rebalances the member slots of a subscription between workers.

A worker that has two slots more than another standby worker leaves one every few seconds. A worker
that has more than the others waits before it takes a free slot, so they get it first. During a
deployment workers may know different numbers of members: all slots that a worker holds count.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from notifyq.database import advisory_locks
from notifyq.handlers.subscriber import MOST_MEMBERS

if TYPE_CHECKING:
    from notifyq.notify.session import Session
    from notifyq.worker.streams.member import Member
    from notifyq.worker.wake import Suppression

_COUNT_EVERY = 3.0
"""Seconds between two counts of the slots that others have."""
_LONGEST = 300.0
"""Longest time in seconds until the next slot is left where no worker took the one before: it may
be stuck. The time doubles with each slot, and starts again when a worker comes or goes."""
_YIELD = 2.5
"""Seconds between two tries of a worker that has more slots than others."""


class Rebalancer:
    """The member slots of one subscription that this worker holds, and those to leave."""

    def __init__(self, members: Sequence[Member], suppression: Suppression) -> None:
        self._members = members
        self._standby = members[0].lock_of(0)
        self._locks = [members[0].lock_of(number) for number in range(1, MOST_MEMBERS + 1)]
        self._suppression = suppression
        self._session: Session | None = None
        self._fewest: int | None = None
        self._standing: list[int] = []
        self._count_at = 0.0
        self._leave_in = _COUNT_EVERY
        self._leave_at = 0.0
        self._try_at = 0.0
        self._left: Member | None = None

    @property
    def next_count(self) -> float:
        """When to count the slots of others, in monotonic seconds."""
        return math.inf if self._suppression.is_pooled else self._count_at

    def may_grow(self) -> bool:
        """Whether to try for one slot more."""
        now = time.monotonic()
        if self._fewest is None or len(self._held) <= self._fewest:
            return True
        if now < self._try_at:
            return False
        self._try_at = now + _YIELD
        return True

    def gained(self, member: Member) -> None:
        """Record that this worker has got a slot."""
        if member is self._left:
            self._left = None
            self._leave_in = min(2 * self._leave_in, _LONGEST)
            self._leave_at = time.monotonic() + self._leave_in
        else:
            self._count_at = 0.0

    def left(self, member: Member) -> None:
        """Record that a slot is free: a surplus one is for others first."""
        if member is self._left:
            self._try_at = time.monotonic() + _YIELD

    async def surplus(self) -> Member | None:
        """Count the slots of others; return the one to leave to them, if there is one."""
        now = time.monotonic()
        if now < self._count_at or self._suppression.is_pooled:
            return None
        self._count_at = now + _COUNT_EVERY * random.uniform(0.8, 1.2)  # noqa: S311  nothing secret
        if not await self._stand_by():
            return None
        answer = await self._suppression.call(
            advisory_locks.OTHERS, self._standby, self._locks, len(self._members)
        )
        if answer is None:
            return None
        others, self._fewest, *standing = answer
        if standing != self._standing:
            self._standing, self._leave_in, self._leave_at = standing, _COUNT_EVERY, 0.0
        held = self._held
        if others + len(held) < len(self._members):
            return None  # a slot is free
        self._left = None
        if self._fewest is None or len(held) < self._fewest + 2:
            self._leave_in = _COUNT_EVERY
            return None
        if now < self._leave_at:
            return None
        # One without a batch is left at once.
        self._left = min(held, key=lambda member: member.task is not None)
        return self._left

    async def stand_down(self) -> None:
        """Get no more slots from others."""
        if self._session is not None and self._session is self._suppression.session:
            await self._suppression.call(advisory_locks.STAND_DOWN, self._standby)

    @property
    def _held(self) -> list[Member]:
        return [it for it in self._members if it.is_held and not it.is_surplus]

    async def _stand_by(self) -> bool:
        session = self._suppression.session
        if self._session is not session:
            is_standby = await self._suppression.call(advisory_locks.STAND_BY, self._standby)
            self._session = session if is_standby else None
        return self._session is not None
