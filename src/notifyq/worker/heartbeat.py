"""Keeping the locks of running messages: extend them in time, and know when one is over."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.models.message import newest

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.models.message import Message
    from notifyq.notify.session import Session

_TICK = 0.1
"""Seconds between two looks at the locks: locks shorter than about half a second are not held."""
_MARGIN = 0.05
"""Share of a lock that is given up for the time that its claim was under way."""


Key = tuple[int, int]
"""Id and lock token of a message."""


class Lock:
    """The lock of one message, in this process's monotonic time: clocks of machines differ."""

    __slots__ = ("deadline", "extend_at", "extends", "key", "message", "seconds")

    def __init__(self, message: Message, since: float, *, extends: bool) -> None:
        """Take the lock of a message just claimed; `since` is when the claim was sent."""
        if message.lock_expires_at is None or message.locked_at is None:
            raise ValueError(f"message {message.id} is not locked")
        self.message = message
        self.key: Key = (message.id, message.lock_token)
        self.seconds = (message.lock_expires_at - message.locked_at).total_seconds()
        self.extends = extends
        self.renew(since)

    def renew(self, since: float) -> None:
        """Count the lock's time from a request that was sent at `since`."""
        self.deadline = since + self.seconds * (1 - _MARGIN)
        self.extend_at = since + self.seconds / 3


class Heartbeat:
    """Extends the locks of messages whose handlers run, on the listener's session and loop.

    There, a handler that blocks the main loop does not cost it the lock. `lost` is called, on the
    loop of the listener, with the key of a lock that is another's or nobody's by now; `extended`
    with how many were extended.
    """

    def __init__(
        self, lost: Callable[[Key], None], extended: Callable[[int], None] = lambda _: None
    ) -> None:
        # By token too: a worker may get a message again while it still settles a lock that it lost.
        self._locks: dict[Key, Lock] = {}
        self._lost = lost
        self._extended = extended

    def add(self, lock: Lock) -> None:
        """Watch over a lock from now on."""
        self._locks[lock.key] = lock

    def remove(self, lock: Lock) -> None:
        """Watch no more: the message is about to be settled."""
        self._locks.pop(lock.key, None)

    def expired(self) -> list[Lock]:
        """Locks that are over as far as this process knows."""
        now = time.monotonic()
        return [lock for lock in list(self._locks.values()) if lock.deadline <= now]

    async def serve(self, session: Session) -> None:
        """Extend what is due, for ever."""
        while True:
            await asyncio.sleep(_TICK)
            await self.beat(session)

    async def beat(self, session: Session) -> None:
        """Extend the locks that are due, in one call for each length of lock."""
        now = time.monotonic()
        due: dict[float, list[Lock]] = {}
        for lock in list(self._locks.values()):
            if lock.extends and lock.extend_at <= now:
                due.setdefault(lock.seconds, []).append(lock)
        for seconds, locks in due.items():
            sent = time.monotonic()
            rows = await session.fetch(
                sql.EXTEND_MANY,
                [lock.message.id for lock in locks],
                [lock.message.lock_token for lock in locks],
                timedelta(seconds=seconds),
            )
            held = newest([lock.key for lock in locks], rows)
            self._extended(len(held))
            for lock in locks:
                if lock.key in held:
                    lock.renew(sent)
                elif lock.key in self._locks:
                    self._lost(lock.key)
