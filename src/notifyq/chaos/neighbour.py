"""A second database on the server, to measure in: its messages are in no history.

It shares the server and its locks with the database under test, but no tables and no listeners.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from notifyq import schema
from notifyq.chaos.server import session
from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database
from notifyq.dsn import with_database
from notifyq.models.outcome import Success
from notifyq.queues.admin import Admin, Policy
from notifyq.queues.publisher import Publisher
from notifyq.worker.fetch import Claims

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.queues.admin import Notify

_NAME = "neighbour"
_QUEUE = "default"
_BATCH = 10
_COLD = 5
"""Claims of a new session that do not count: its plans are not cached yet."""


@asynccontextmanager
async def neighbour(dsn: str) -> AsyncIterator[str]:
    """Create the database on the server of `dsn`, give its DSN, and drop it."""
    address = with_database(dsn, _NAME)
    async with session(dsn, _NAME) as owner:
        try:
            await owner.execute(f"drop database if exists {_NAME} with (force)")
            await owner.execute(f"create database {_NAME} template template0")
            async with session(address, _NAME) as connection:
                await schema.install(connection)
            yield address
        finally:
            await owner.execute(f"drop database if exists {_NAME} with (force)")


@asynccontextmanager
async def suppressed(dsn: str) -> AsyncIterator[None]:
    """Suppress notifications of the queue, as a worker under load does."""
    async with session(dsn, _NAME) as connection:
        await connection.fetchval("select notifyq.suppress($1)", _QUEUE)
        yield


async def set_notify(dsn: str, notify: Notify) -> None:
    """Set the queue option `notify`."""
    async with _database(dsn, 1) as database:
        await Admin(database).alter_queue(_QUEUE, Policy(notify=notify))


async def publish_rate(dsn: str, publishers: int, seconds: float) -> float:
    """Let so many sessions publish single messages; return messages a second."""
    async with _database(dsn, publishers) as database:
        publisher = Publisher(database)
        published = 0

        async def publish_until(deadline: float) -> None:
            nonlocal published
            while time.monotonic() < deadline:
                await publisher.publish(_QUEUE, 1)
                published += 1

        # First a short run that does not count: it connects all sessions.
        await asyncio.gather(*(publish_until(time.monotonic() + 0.1) for _ in range(publishers)))
        published, began = 0, time.monotonic()
        await asyncio.gather(*(publish_until(began + seconds) for _ in range(publishers)))
        return published / (time.monotonic() - began)


async def work_through(dsn: str, seconds: float) -> list[float]:
    """Publish, claim and finish batches for so long; return the seconds of each claim."""
    async with _database(dsn, 1) as database:
        publisher, claims = Publisher(database), Claims(database, _NAME)
        times: list[float] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(times) <= _COLD:
            await publisher.publish_many(_QUEUE, [1] * _BATCH)
            began = time.monotonic()
            messages = await claims.claim([_QUEUE], _BATCH)
            times.append(time.monotonic() - began)
            await asyncio.gather(*(claims.settler.add(message, Success()) for message in messages))
        await claims.close()
        return times[_COLD:]


def _database(dsn: str, sessions: int) -> Database:
    settings = DatabaseSettings.load(pool_size=sessions)
    return Database(dsn, settings=settings, name=_NAME)


def p99(values: list[float]) -> float:
    """The 99th percentile; of fewer than two values, the greatest."""
    return max(values) if len(values) < 2 else statistics.quantiles(values, n=100)[98]
