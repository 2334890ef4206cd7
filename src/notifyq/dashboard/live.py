"""Live figures: one task looks while anybody looks on, and all pages hear what it sees."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.errors import NotifyqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from notifyq.database import Database

    Look = Callable[[Database], Awaitable[dict[str, Any]]]

log = logging.getLogger("notifyq.dashboard")

MOST_CLIENTS = 100
_BEAT = 15.0


class Live:
    """Looks every few seconds while there are listeners; each hears only the latest."""

    def __init__(self, database: Database, look: Look, interval: float) -> None:
        self._database = database
        self._look = look
        self._interval = interval
        self._listeners: set[asyncio.Queue[str]] = set()
        self._task: asyncio.Task[None] | None = None
        self._last: dict[str, Any] = {}
        self._revision = 0
        self._closed = asyncio.Event()

    @property
    def listeners(self) -> int:
        """How many pages listen."""
        return len(self._listeners)

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[asyncio.Queue[str]]:
        """Hear what changes; one who does not keep up misses what is out of date anyway."""
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
                self._task.cancel()
                self._task = None

    async def stream(self) -> AsyncIterator[str]:
        """The body of an answer of server-sent events."""
        yield "retry: 3000\n\n"
        async with self.listen() as queue:
            while not self._closed.is_set():
                try:
                    async with asyncio.timeout(_BEAT):
                        yield f"data: {await queue.get()}\n\n"
                except TimeoutError:
                    # A proxy may close what is silent, and a browser that is gone is noticed.
                    yield ": still here\n\n"

    def close(self) -> None:
        """End the streams: a server that stops would wait for them."""
        self._closed.set()
        for queue in self._listeners:
            _offer(queue, self._text())
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            found = await self._look_once()
            if found != self._last:
                self._revision += 1
                self._last = found
                for queue in self._listeners:
                    _offer(queue, self._text())
            await asyncio.sleep(self._interval)

    async def _look_once(self) -> dict[str, Any]:
        try:
            return {"is_away": False, **await self._look(self._database)}
        except (NotifyqError, TimeoutError, asyncpg.PostgresError) as error:
            return {"is_away": True, "reason": str(error)[:300]}
        except Exception:
            log.exception("the live figures could not be read")
            return {"is_away": True, "reason": "the figures could not be read"}

    def _text(self) -> str:
        return json.dumps({"revision": self._revision, **self._last}, default=str)


def _offer(queue: asyncio.Queue[str], text: str) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(text)
