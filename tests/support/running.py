"""Runs workers in this process, and waits for their telemetry events."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

from notifyq import App, Worker
from notifyq.errors import DatabaseUnavailableError
from notifyq.telemetry import TelemetryEvent, WorkerStarted
from support.database import Connection, session, until, value

E = TypeVar("E", bound=TelemetryEvent)


class Events:
    """A telemetry handler that keeps all events and can be waited on."""

    def __init__(self) -> None:
        self.seen: list[TelemetryEvent] = []
        self._news = asyncio.Event()

    def __call__(self, event: TelemetryEvent) -> None:
        self.seen.append(event)
        self._news.set()

    def of(self, kind: type[E], /, **values: Any) -> list[E]:
        """All events of a class so far whose fields have these values."""
        return [
            event
            for event in self.seen
            if isinstance(event, kind)
            and all(getattr(event, name) == value for name, value in values.items())
        ]

    async def wait(
        self, kind: type[E], least: int = 1, /, *, seconds: float = 20, **values: Any
    ) -> list[E]:
        """Wait until there are so many of them."""
        async with asyncio.timeout(seconds):
            while len(found := self.of(kind, **values)) < least:
                self._news.clear()
                await self._news.wait()
        return found


@asynccontextmanager
async def working(
    app: App, events: Events | None = None, *, seconds: float = 20, **settings: Any
) -> AsyncIterator[Worker]:
    """Run a worker that listens, and stop it at the end; polls are too rare to help it."""
    events = events or Events()
    worker = app.worker(telemetry=events, **{"poll": 60, "grace": 5, "maintenance": 60} | settings)
    task = asyncio.create_task(app.work(worker))
    started = asyncio.create_task(events.wait(WorkerStarted, worker=worker.name))
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        started.cancel()
        await asyncio.wait({started})
        await task
    try:
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(seconds):
            await task


async def persisting(app: App, queue: str, number: int) -> int:
    """Publish until it is acknowledged; the dedup key prevents duplicates."""
    ids = []

    async def is_acknowledged() -> bool:
        with suppress(DatabaseUnavailableError):
            ids.append(await app.publish(queue, number, dedup_key=f"{queue} {number}"))
        return bool(ids)

    await until(is_acknowledged, f"{number} is published into {queue}", 60)
    return ids[0]


def is_asleep(worker: Worker) -> bool:
    """Whether a worker with a session sleeps until a notification, with no other poll to come.

    Before that it may wait for a transaction, and polls after that.
    """
    poller, wake = worker._poller, worker._wake
    suppression = poller._suppression
    has_tried = bool(suppression.wake_slots or poller._without_slot)
    polls = suppression.suppressed or suppression.publishers or poller.needs_full_scan
    return has_tried and not polls and bool(wake._waiters) and not wake.is_set()


async def until_asleep(*workers: Worker) -> None:
    """Wait until workers sleep."""
    await until(lambda: all(map(is_asleep, workers)), "the workers sleep")


@contextmanager
def reaping(dsn: str, *, pause: float = 0.02) -> Iterator[None]:
    """Reap all the time, in a thread: event loops may be blocked."""
    enough = threading.Event()

    async def reap() -> None:
        async with session(dsn) as connection:
            while not enough.wait(pause):
                await value(connection, "reap")

    thread = threading.Thread(target=lambda: asyncio.run(reap()))
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


async def statuses(connection: Connection, queue: str | None = None) -> dict[str, int]:
    """How many messages the archive has by status."""
    rows = await connection.fetch(
        "select status::text, count(*) from messages.message_archive "
        "where $1::text is null or queue = $1 group by status",
        queue,
    )
    return {row[0]: row[1] for row in rows}


async def doubles(connection: Connection) -> int:
    """How many ids the archive has more than once."""
    count: int = await connection.fetchval(
        "select count(*) from "
        "(select from messages.message_archive group by id having count(*) > 1) as d"
    )
    return count
