"""Real workers that never poll, publishers at random chance: every message is handled."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from notify.protocol import waiting
from notifyq import App
from notifyq.telemetry import QueueSuppressed, QueueUnsuppressed
from notifyq.worker import wake
from notifyq.worker.wake import Suppression
from support.database import Connect, Connection, publish, rows, until
from support.running import Events, working

QUEUES = ("default", "b")
SECONDS = float(os.environ.get("NOTIFYQ_STRESS_SECONDS", "6"))
"""How long to publish; a night is better."""
BEAT = 0.15
"""Seconds from one burst to the next."""
PATIENCE = 20
"""Seconds without one that is handled; a worker that relied on the poll would need 60."""


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    """Give an App with a handler of two queues that takes no time, a little, or a while."""
    app = App(database, retry_for=30)
    chance = random.Random(1)

    async def handle(_payload: int) -> None:
        await asyncio.sleep(chance.choice([0, 0, 0, 0.001, 0.03]))

    for queue in QUEUES:
        app.handler(queue)(handle)
    yield app
    await app.close()


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers suppress at the first sign of load and end it soon, as often as possible."""
    eager = "select notifyq.suppress(queue => $1, eager => true or $2)"
    monkeypatch.setattr(Suppression, "_suppress", eager)
    monkeypatch.setattr(wake, "_LOADED", 1)
    monkeypatch.setattr(wake, "_LINGER", 0.03)
    monkeypatch.setattr(wake, "_RETRY_SUPPRESS", 0.02)


async def publish_at_random(session: Connection, seed: int, seconds: float) -> int:
    """Publish in bursts with pauses, one or many at a time, and return how many were committed."""
    chance = random.Random(seed)
    clock = asyncio.get_running_loop().time
    ends, published = clock() + seconds, 0
    while clock() < ends:
        for _ in range(chance.choice([0, 1, 1, 10, 40])):
            published += await _publish_once(session, chance)
        # To a common beat: all pauses are long enough that a worker ends the suppression.
        await asyncio.sleep(BEAT - clock() % BEAT + chance.choice([0, chance.uniform(0, BEAT / 2)]))
    return published


async def _publish_once(session: Connection, chance: random.Random) -> int:
    transaction = session.transaction(
        isolation=chance.choice(["read_committed", "read_committed", "repeatable_read"])
    )
    await transaction.start()
    for queue in chance.sample(QUEUES, chance.choice([1, 1, 2])):
        await publish(session, chance.choice([1, 1, 1, 5]), queue)
        if chance.random() < 0.1:
            await _publish_in_savepoint(session, chance, queue)
    await asyncio.sleep(chance.choice([0, 0, 0, 0.002, 0.02]))
    if chance.random() < 0.1:
        await transaction.rollback()
        return 0
    await transaction.commit()
    return 1


async def _publish_in_savepoint(session: Connection, chance: random.Random, queue: str) -> None:
    savepoint = session.transaction()
    await savepoint.start()
    await publish(session, 1, queue)
    if chance.random() < 0.5:
        await savepoint.rollback()
    else:
        await savepoint.commit()


async def until_empty(session: Connection) -> None:
    """Wait until every message is handled; fail if none is handled for `PATIENCE`."""
    while left := await session.fetchval("select count(*) from messages.message"):

        async def fewer(before: int = left) -> bool:
            count = await session.fetchval("select count(*) from messages.message")
            return bool(count < before)

        try:
            await until(fewer, "one of them is handled", PATIENCE)
        except TimeoutError:
            waits = {queue: await waiting(session, queue) for queue in QUEUES}
            pytest.fail(f"messages wait without a notification: {waits}")


@pytest.mark.timeout(120 + 5 * SECONDS)
@pytest.mark.parametrize(("workers", "concurrency"), [(1, 10), (3, 1), (3, 10), (8, 2)])
async def test_without_polls_nothing_is_left(
    app: App,
    connection: Connection,
    connect: Connect,
    restless: None,
    workers: int,
    concurrency: int,
) -> None:
    for queue in QUEUES[1:]:
        await rows(connection, "create_queue", name=queue)
    events = Events()
    publishers = [await connect() for _ in range(4)]

    async with AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(
                working(app, events, concurrency=concurrency, ping=timedelta(seconds=30))
            )
        counts = await asyncio.gather(
            *(publish_at_random(it, seed, SECONDS) for seed, it in enumerate(publishers))
        )
        assert sum(counts) > 100
        await until_empty(connection)
    begun, ended = events.of(QueueSuppressed), events.of(QueueUnsuppressed)
    print(f"{sum(counts)} transactions, suppressed {len(begun)} times, ended {len(ended)}")
    assert len(begun) >= 2, "hardly a queue was suppressed"
    assert len(ended) >= 2
