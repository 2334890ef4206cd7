"""Live figures: one task looks while anybody looks on, and all pages hear what it sees.

It looks when a bell rings, which one session hears for all pages, and every few seconds: what is
claimed or finished rings none, nor does what is published while a busy worker attends its queue.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import sql
from notifyq.errors import NotifyqError
from notifyq.notify.listener import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from notifyq.database.pool import Database

    Look = Callable[[Database], Awaitable[dict[str, Any]]]

log = logging.getLogger("notifyq.dashboard")

MOST_CLIENTS = 100
_BEAT = 15.0
_CHECK = 1.0
"""Seconds after which a stream sees that its session has ended."""
_SHORTEST = 0.4
"""Seconds between two looks, however often it rings."""
_SHARE = 4
"""A look that takes long is followed by a rest of so many times that, as far as bells go."""
_AGAIN = 10.0
"""Seconds after which a session listens again where none could."""
_CHANNELS = (sql.NEW_MESSAGE, sql.NEW_EVENT, sql.DEAD_MESSAGE)


class Live:
    """Looks while there are listeners; each hears only the latest.

    With `hears` a bell wakes it, too.
    """

    def __init__(
        self, database: Database, look: Look, interval: float, *, hears: bool = False
    ) -> None:
        self._database = database
        self._look = look
        self._interval = interval
        self._hears = hears
        self._rung = asyncio.Event()
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
                self._stop(self._task)
                self._task = None

    async def stream(self, is_welcome: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """The body of an answer of server-sent events; it ends when `is_welcome` says no."""
        yield "retry: 3000\n\n"
        said_at = time.monotonic()
        async with self.listen() as queue:
            while not self._closed.is_set() and is_welcome():
                text = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK):
                        text = await queue.get()
                if text is not None and not is_welcome():
                    return  # the session ended while this waited
                if text is None and time.monotonic() - said_at < _BEAT:
                    continue
                # A proxy may close what is silent, and a browser that is gone is noticed.
                yield ": still here\n\n" if text is None else f"data: {text}\n\n"
                said_at = time.monotonic()

    def close(self) -> None:
        """End the streams: a server that stops would wait for them."""
        self._closed.set()
        for queue in self._listeners:
            _offer(queue, self._text())
        if self._task is not None:
            self._stop(self._task)

    async def end(self) -> None:
        """Close, and wait until nothing of it is left."""
        self.close()
        if self._ending:
            await asyncio.wait(self._ending)

    def _stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _run(self) -> None:
        if not self._hears:
            await self._watch()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear())
            group.create_task(self._watch())

    async def _hear(self) -> None:
        """Have bells wake the looks, for as long as the server lets us."""
        while True:
            with suppress(NotifyqError, TimeoutError, OSError, asyncpg.PostgresError):
                async with Listener(
                    self._database.listen_dsn,
                    _CHANNELS,
                    lambda *_: self._rung.set(),
                    settings=self._database.settings,
                    name="notifyq dashboard bell",
                    ping=10,
                    # That the database is away is said by the looks.
                    sink=lambda _: None,
                ) as listener:
                    await asyncio.wait({listener.failed})
            await asyncio.sleep(_AGAIN)

    async def _watch(self) -> None:
        while True:
            # Before the look: what rings meanwhile may not be in it.
            self._rung.clear()
            began = time.monotonic()
            found = await self._look_once()
            if found != self._last:
                self._revision += 1
                self._last = found
                for queue in self._listeners:
                    _offer(queue, self._text())
            rest = max(_SHORTEST, _SHARE * (time.monotonic() - began))
            await asyncio.sleep(min(rest, self._interval))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval - min(rest, self._interval)):
                    await self._rung.wait()

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
