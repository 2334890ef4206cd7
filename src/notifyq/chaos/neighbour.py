"""A database beside the one under test, to measure in: it leaves no mark in any history.

Sessions of both share the server with its locks, but neither tables nor listeners.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from notifyq import schema
from notifyq.config import DatabaseSettings, with_database
from notifyq.database.pool import Database, connect
from notifyq.models.outcome import Success
from notifyq.queues.admin import Admin, Policy
from notifyq.queues.claim_client import ClaimClient
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.queues.admin import Bell

_NAME = "neighbour"
_QUEUE = "default"
_BATCH = 10
_COLD = 5
"""Claims of a fresh session that do not count: it has no plans yet."""


@asynccontextmanager
async def neighbour(dsn: str) -> AsyncIterator[str]:
    """Make the database on the server of `dsn`, give its address, and drop it."""
    address = with_database(dsn, _NAME)
    owner = await connect(dsn, name="neighbour")
    try:
        await owner.execute(f"drop database if exists {_NAME} with (force)")
        await owner.execute(f"create database {_NAME} template template0")
        try:
            connection = await connect(address, name="neighbour")
            try:
                await schema.install(connection)
            finally:
                connection.terminate()
            yield address
        finally:
            await owner.execute(f"drop database if exists {_NAME} with (force)")
    finally:
        owner.terminate()


@asynccontextmanager
async def attended(dsn: str) -> AsyncIterator[None]:
    """Attend the queue, as a worker under load does, so that publishers need not ring."""
    session = await connect(dsn, name="neighbour")
    try:
        await session.fetchval("select notifyq.suppress($1)", _QUEUE)
        yield
    finally:
        session.terminate()


async def set_bell(dsn: str, bell: Bell) -> None:
    """Make the queue's bell auto, always or off."""
    async with _database(dsn, 1) as database:
        await Admin(database).alter_queue(_QUEUE, Policy(bell=bell))


async def publish_rate(dsn: str, publishers: int, seconds: float) -> float:
    """Let so many sessions publish one message after the other; return how many a second."""
    async with _database(dsn, publishers) as database:
        publisher = Publisher(database)
        published = 0

        async def publish_until(deadline: float) -> None:
            nonlocal published
            while time.monotonic() < deadline:
                await publisher.publish(_QUEUE, 1)
                published += 1

        # Once each, so that all are connected when it counts.
        await asyncio.gather(*(publish_until(time.monotonic() + 0.1) for _ in range(publishers)))
        published, began = 0, time.monotonic()
        await asyncio.gather(*(publish_until(began + seconds) for _ in range(publishers)))
        return published / (time.monotonic() - began)


async def work_through(dsn: str, seconds: float) -> list[float]:
    """Publish, claim and finish in batches for so long; return how long each claim took."""
    async with _database(dsn, 1) as database:
        publisher, inbox = Publisher(database), ClaimClient(database, "neighbour")
        claims: list[float] = []
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(claims) <= _COLD:
            await publisher.publish_many(_QUEUE, [1] * _BATCH)
            began = time.monotonic()
            messages = await inbox.claim([_QUEUE], _BATCH)
            claims.append(time.monotonic() - began)
            await asyncio.gather(*(inbox.settle(message, Success()) for message in messages))
        await inbox.close()
        return claims[_COLD:]


def _database(dsn: str, sessions: int) -> Database:
    settings = DatabaseSettings.load(pool_size=sessions)
    return Database(dsn, settings=settings, name="neighbour")


def p99(values: list[float]) -> float:
    """The value that one in a hundred exceeds; of fewer than two, the greatest."""
    return max(values) if len(values) < 2 else statistics.quantiles(values, n=100)[98]
