"""Live values: one task reads them while pages are open, and sends changes to all pages.

It reads after a notification and every few seconds, because neither claims and finishes nor
publishers whose notifications are suppressed send one.
"""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import is_refusal
from notifyq.errors import NotifyqError
from notifyq.notify.listener import Listener
from notifyq.operations import monitor
from notifyq.operations.monitor import Backlog, Lag
from notifyq.operations.texts import NONE, short, span

Read = Callable[[Database], Awaitable[dict[str, Any]]]

log = logging.getLogger("notifyq.dashboard")

MOST_CLIENTS = 100
_BEAT = 15.0
_CHECK = 1.0
"""Seconds after which a stream notices that its session has ended."""
_SHORTEST = 0.4
"""Seconds between two reads, however often notifications arrive."""
_SHARE = 4
"""After a slow read, notifications are ignored for this multiple of its duration."""
_RETRY = 10.0
"""Seconds after which a lost session listens again."""
_BEHIND = timedelta(minutes=1)
"""Lag from which on a subscriber counts as behind."""
_LONG_WAIT = timedelta(minutes=5)
"""Wait from which on the tile is coloured."""
_CHANNELS = (sql.NEW_MESSAGE, sql.NEW_EVENT, sql.DEAD_MESSAGE)


class Live:
    """Reads while there are listeners; each of them receives only the latest values."""

    def __init__(
        self, database: Database, read: Read, interval: float, *, listens: bool = False
    ) -> None:
        self._database = database
        self._read = read
        self._interval = interval
        self._listens = listens
        self._notified = asyncio.Event()
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._last: dict[str, Any] = {}
        self._revision = 0
        self._closed = asyncio.Event()

    @property
    def listeners(self) -> int:
        """How many pages listen."""
        return len(self._listeners)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[asyncio.Queue[str]]:
        """Receive changes; a slow listener misses outdated values."""
        queue: asyncio.Queue[str] = asyncio.Queue(1)
        if self._last:
            queue.put_nowait(self._text())
        self._listeners.add(queue)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        try:
            yield queue
        finally:
            self._listeners.discard(queue)
            if not self._listeners and self._task is not None:
                self._stop(self._task)
                self._task = None

    async def stream(self, is_allowed: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """The body of server-sent events; it ends when `is_allowed` returns False."""
        yield "retry: 3000\n\n"
        sent_at = time.monotonic()
        async with self.listen() as queue:
            while not self._closed.is_set() and is_allowed():
                text = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK):
                        text = await queue.get()
                if text is not None and not is_allowed():
                    return  # the session ended while this waited
                if text is None and time.monotonic() - sent_at < _BEAT:
                    continue
                # Proxies close idle connections, and sending shows whether the browser is gone.
                yield ": still here\n\n" if text is None else f"data: {text}\n\n"
                sent_at = time.monotonic()

    def close(self) -> None:
        """End the streams: a stopping server would wait for them."""
        self._closed.set()
        for queue in self._listeners:
            _offer(queue, self._text())
        if self._task is not None:
            self._stop(self._task)

    async def end(self) -> None:
        """Close, and wait until all tasks have ended."""
        self.close()
        if self._ending:
            await asyncio.wait(self._ending)

    def _stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _run(self) -> None:
        if not self._listens:
            await self._read_regularly()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._read_regularly())

    async def _listen(self) -> None:
        """Have notifications trigger reads; reconnect after an error."""
        while True:
            with suppress(NotifyqError, TimeoutError, OSError, asyncpg.PostgresError):
                async with Listener(
                    self._database,
                    _CHANNELS,
                    lambda *_: self._notified.set(),
                    name="notifyq dashboard notification",
                    # The reads report that the database is away.
                    telemetry=lambda _: None,
                    reads_only=True,
                ) as listener:
                    await asyncio.wait({listener.failed})
            await asyncio.sleep(_RETRY)

    async def _read_regularly(self) -> None:
        while True:
            # Cleared before the read, which may miss what is published meanwhile.
            self._notified.clear()
            began = time.monotonic()
            found = await self._read_once()
            if found != self._last:
                self._revision += 1
                self._last = found
                for queue in self._listeners:
                    _offer(queue, self._text())
            rest = max(_SHORTEST, _SHARE * (time.monotonic() - began))
            await asyncio.sleep(min(rest, self._interval))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval - min(rest, self._interval)):
                    await self._notified.wait()

    async def _read_once(self) -> dict[str, Any]:
        try:
            return {"is_away": False, **await self._read(self._database)}
        except (NotifyqError, TimeoutError, asyncpg.PostgresError) as error:
            return {"is_away": True, "is_refused": is_refusal(error), "reason": str(error)[:300]}
        except Exception:
            log.exception("cannot read the live values")
            return {"is_away": True, "reason": "the values could not be read"}

    def _text(self) -> str:
        return json.dumps({"revision": self._revision, **self._last}, default=str)


def _offer(queue: asyncio.Queue[str], text: str) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(text)


async def read(database: Database) -> dict[str, Any]:
    """Read the values, as the texts that pages show."""
    rows = await monitor.backlog(database)
    return {"figures": totals(rows) | behind(await lags(database))}


async def lags(database: Database) -> list[Lag]:
    """How far subscribers are behind; only the oldest event of each is read."""
    return await monitor.lags(database, most=1)


def totals(rows: list[Backlog]) -> dict[str, str]:
    """The totals of these queues."""
    sign = "" if all(row.is_exact for row in rows) else "≈ "
    oldest = min((it.oldest_waiting_at for it in rows if it.oldest_waiting_at), default=None)
    waited = None if oldest is None else max(datetime.now(UTC) - oldest, timedelta())
    return {
        "waiting": sign + short(sum(row.waiting for row in rows)),
        "scheduled": sign + short(sum(row.scheduled for row in rows)),
        "locked": short(sum(row.locked - row.expired for row in rows)),
        "expired": short(sum(row.expired for row in rows)),
        "dead": short(sum(row.dead for row in rows)),
        "paused": short(sum(row.paused for row in rows)),
        "oldest": NONE if waited is None else span(_coarse(waited)),
        "oldest_kind": "warn" if waited is not None and waited > _LONG_WAIT else "",
    }


def behind(rows: list[Lag]) -> dict[str, str]:
    """How many subscribers are behind."""
    late = sum(1 for row in rows if row.lag > _BEHIND)
    return {"behind": f"{late} of {len(rows)}" if rows else NONE}


def _coarse(value: timedelta) -> timedelta:
    """A rounded time: a value that changes every second would be sent every second."""
    seconds = value.total_seconds()
    if seconds < 10:
        return timedelta(seconds=round(seconds, 1))
    return timedelta(seconds=round(seconds) if seconds < 120 else round(seconds / 60) * 60)
