"""Waking loops and callers that wait, the limit on empty polls, and when something is due."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Generic, TypeVar

K = TypeVar("K")

_EMPTY_POLLS, _EMPTY_POLLS_RATE = 10, 100.0
"""Polls that notifications may cause although they find nothing: at once, and per second."""
_LATE = 0.02
"""Seconds that a query for what came after a poll may take to reach the server."""
_LATEST = 5.0
"""Most seconds after a poll that such a query covers; the next poll finds the rest."""


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: Any) -> None:
    """Call a function on the loop of another thread, unless that is closed: its work has ended."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return


async def at_most(seconds: float, call: Awaitable[object]) -> None:
    """Wait for a call, at most for so long: then it is cancelled."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await call


class TokenBucket:
    """Token bucket for empty polls: any session may send notifications, all the time."""

    def __init__(self, burst: int = _EMPTY_POLLS, rate: float = _EMPTY_POLLS_RATE) -> None:
        self._burst = burst
        self._rate = rate
        self._left = float(burst)
        self._since = time.monotonic()

    def spend(self) -> float:
        """Count one; return how many seconds to wait before the next one."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._since) * self._rate) - 1
        self._since = now
        return max(0.0, -self._left / self._rate)


class Wake(asyncio.Event):
    """Set by a notification, for a loop that polls and then waits."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket = TokenBucket()

    def on_event(self, stream: str, _channel: str, payload: str) -> None:
        """Take a notification for a loop that reads this stream; "": some may have been missed."""
        if payload in {"", stream}:
            self.set()

    async def rest(self, seconds: float) -> None:
        """Wait for a notification, at most for so long; a moment longer where they never end."""
        await at_most(seconds, self.wait())
        if self.is_set() and (pause := self._bucket.spend()) > 0:
            await asyncio.sleep(pause)


async def due_in(
    polled_at: float, query: Callable[[timedelta], Awaitable[timedelta | None]]
) -> float | None:
    """Seconds until something is due, for which the poll at `polled_at` was too early.

    `query` gets how long ago that was, and returns in how long something is due, if it knows.
    """
    late = _LATE
    while True:
        sent_at = time.monotonic()
        since = sent_at - polled_at + late
        due = await query(timedelta(seconds=min(since, _LATEST)))
        took = time.monotonic() - sent_at
        if took <= late or since >= _LATEST:
            return None if due is None else due.total_seconds()
        # The query may have reached the server too late to cover all of that.
        late = 2 * took


class Waiters(Generic[K]):
    """Callers that wait, by the keys that they wait for."""

    def __init__(self) -> None:
        self._events: defaultdict[K, set[asyncio.Event]] = defaultdict(set)

    @contextmanager
    def waiting(self, keys: Collection[K]) -> Iterator[asyncio.Event]:
        """Give an event that is set when one of the keys is woken."""
        event = asyncio.Event()
        for key in keys:
            self._events[key].add(event)
        try:
            yield event
        finally:
            for key in set(keys):
                self._events[key].discard(event)
                if not self._events[key]:
                    del self._events[key]

    def wake(self, matches: Callable[[K], bool] = lambda _: True) -> None:
        """Wake callers that wait for matching keys, by default all."""
        for key, events in self._events.items():
            if matches(key):
                for event in events:
                    event.set()
