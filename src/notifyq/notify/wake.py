"""How many messages to have at hand before a slot is free, and how many looks may be in vain.

And what came too late for a look.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

PATIENCE = 1.0
"""Seconds that a message may wait for a slot before another worker may have it."""
_VAIN, _VAIN_RATE = 10, 100.0
"""Bells that may be about nothing, at once and a second: anybody may ring, all the time."""
_LATE = 0.02
"""Seconds that a question for what has come since a look may take to reach the server."""
_LATEST = 5.0
"""Most seconds since a look that such a question is for; the poll finds the rest."""


class TokenBucket:
    """So many looks may be in vain at once, and so many a second after that: a token bucket."""

    def __init__(self, burst: int = _VAIN, rate: float = _VAIN_RATE) -> None:
        self._burst = burst
        self._rate = rate
        self._left = float(burst)
        self._since = time.monotonic()

    def spend(self) -> float:
        """Note one; return for how many seconds there should be no other."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._since) * self._rate) - 1
        self._since = now
        return max(0.0, -self._left / self._rate)


class Wake(asyncio.Event):
    """Set by a bell, for a loop that looks and then waits for the next one."""

    def __init__(self) -> None:
        super().__init__()
        self._vain = TokenBucket()

    async def rest(self, seconds: float) -> None:
        """Wait until it rings, or for so long; and a moment longer where it rings all the time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
        if self.is_set() and (pause := self._vain.spend()) > 0:
            await asyncio.sleep(pause)


async def due_in(
    looked_at: float, ask: Callable[[timedelta], Awaitable[timedelta | None]]
) -> float | None:
    """Ask in how many seconds something comes; what came since the last look counts: it missed it.

    `ask` is given how long ago that was, and answers in how long something comes, if it can tell.
    """
    late = _LATE
    while True:
        asked_at = time.monotonic()
        since = asked_at - looked_at + late
        told = await ask(timedelta(seconds=min(since, _LATEST)))
        took = time.monotonic() - asked_at
        if took <= late or since >= _LATEST:
            return None if told is None else told.total_seconds()
        # It may have reached the server too late to count all of that.
        late = 2 * took
