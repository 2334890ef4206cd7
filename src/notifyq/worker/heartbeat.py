"""Extends the locks of running messages in time, and detects when a lock is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.refusals import PAUSE, Refusals
from notifyq.models.message import Message, newest

if TYPE_CHECKING:
    from notifyq.notify.session import Session
    from notifyq.worker.settle import Key

log = logging.getLogger("notifyq.worker")

_TICK = 0.1
"""Seconds between two checks: locks shorter than about half a second are not extended in time."""
_MARGIN = 0.05
"""Part of a lock that does not count, for the time that its claim took."""


class Lock:
    """A message with its lock, in monotonic time of this process: clocks of machines differ."""

    def __init__(self, message: Message, since: float, *, extends: bool = True) -> None:
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
    """Extends the locks of messages that are held, on the listener's session and loop.

    There a handler that blocks the main loop does not lose its lock. On the listener's loop,
    `on_lost` gets the key of a lock that was lost, `on_extended` how many were extended.
    """

    def __init__(
        self,
        held: Mapping[Key, Lock],
        on_lost: Callable[[Key], None],
        on_extended: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._held = held
        self._on_lost = on_lost
        self._on_extended = on_extended
        self._refusals = Refusals(log)

    def hurry(self, message_id: str) -> None:
        """Extend the lock of a message at once, which shows whether it was cancelled."""
        for lock in list(self._held.values()):
            if str(lock.message.id) == message_id:
                lock.extend_at = 0

    def expired(self) -> list[Lock]:
        """Locks that are over as far as this process knows."""
        now = time.monotonic()
        return [lock for lock in list(self._held.values()) if lock.deadline <= now]

    async def serve(self, session: Session) -> None:
        """Extend locks when it is time to."""
        while True:
            await asyncio.sleep(_TICK)
            await self.beat(session)

    async def beat(self, session: Session) -> None:
        """Extend the locks whose time has come, in one call for each length of lock."""
        now = time.monotonic()
        due: dict[float, list[Lock]] = {}
        for lock in list(self._held.values()):
            if lock.extends and lock.extend_at <= now:
                due.setdefault(lock.seconds, []).append(lock)
        for seconds, locks in due.items():
            sent = time.monotonic()
            with self._refusals.noted("extending locks", "they expire"):
                rows = await session.fetch(
                    sql.EXTEND_MANY,
                    [lock.message.id for lock in locks],
                    [lock.message.lock_token for lock in locks],
                    timedelta(seconds=seconds),
                )
                self._extended(locks, rows, sent)
            for lock in locks:
                if lock.extend_at <= now:  # it was refused
                    lock.extend_at = sent + PAUSE

    def _extended(self, locks: list[Lock], rows: list[asyncpg.Record], sent: float) -> None:
        held = newest([lock.key for lock in locks], rows)
        self._on_extended(len(held))
        for lock in locks:
            if lock.key in held:
                lock.renew(sent)
            elif lock.key in self._held:
                self._on_lost(lock.key)
