"""The broker of Taskiq: what is kicked arrives, is acknowledged, and never lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from taskiq.api import run_receiver_task
from taskiq.serializers import PickleSerializer

from notifyq.contrib.taskiq import NotifyqBroker
from support.database import ROOT, Connection, until, until_equal


@pytest.fixture
async def broker(database: str, connection: Connection) -> AsyncIterator[NotifyqBroker]:
    """Give one whose queue has locks of a second."""
    await connection.execute(
        "select messages.create_queue('taskiq', lock_duration => '1 s', max_attempts => 3)"
    )
    broker = NotifyqBroker(database)
    yield broker
    await broker.shutdown()


@asynccontextmanager
async def working(broker: NotifyqBroker) -> AsyncIterator[None]:
    """Run a worker of Taskiq."""
    worker = asyncio.create_task(run_receiver_task(broker, run_startup=True))
    try:
        yield
    finally:
        worker.cancel()
        await asyncio.wait([worker])


async def archived(connection: Connection, least: int) -> list[Any]:
    async def is_there() -> bool:
        count = await connection.fetchval("select count(*) from messages.message_archive")
        return bool(count >= least)

    await until(is_there, f"{least} messages are finished")
    return await connection.fetch("select * from messages.message_archive order by id")


async def test_a_kicked_task_is_called(broker: NotifyqBroker, connection: Connection) -> None:
    done: list[Any] = []

    @broker.task("add")
    async def add(a: int, b: int = 0) -> None:
        done.append(a + b)

    @broker.task("sync")
    def plain(text: str) -> None:
        done.append(text)

    for a in range(20):
        await add.kiq(a, b=100)
    async with working(broker):
        await archived(connection, 20)
        await plain.kiq("a\x00b")  # which PostgreSQL has not as JSON
        await add.kicker().with_labels(priority=3, key="k").kiq(1)
        finished = await archived(connection, 22)
    assert sorted(map(str, done)) == sorted(map(str, [*range(100, 120), "a\x00b", 1]))
    assert {row["status"] for row in finished} == {"success"}
    first, last = finished[0], finished[-1]
    assert (first["type"], first["message"]["args"], first["attempts"]) == ("add", [0], 1)
    assert first["headers"].keys() == {"task_id"}
    assert (last["priority"], last["key"]) == (3, "k")


@pytest.mark.timeout(120)
async def test_killed_workers_lose_no_message(
    broker: NotifyqBroker, connection: Connection, database: str
) -> None:
    await connection.execute("create table begun (number int, pid int)")
    await connection.execute("create table done (number int)")
    quantity = 200
    task = broker.register_task(_unused, "note")
    for number in range(quantity):
        await task.kiq(number)

    async def kill_one(dead: list[int]) -> None:
        async def begins() -> bool:
            pid = await connection.fetchval("select pid from begun where pid <> all ($1)", dead)
            dead.extend([pid] * (pid is not None))
            return pid is not None

        await until(begins, "a process has begun", 30)
        os.kill(dead[-1], signal.SIGKILL)

    # Taskiq restarts a process that has ended.
    workers = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "taskiq",
            "worker",
            "integrations.carried:carrier",
            "--workers",
            "2",
        ),
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "NOTIFYQ_DSN": database},
        stderr=asyncio.subprocess.DEVNULL,
    )
    dead: list[int] = []
    for _ in range(3):
        await kill_one(dead)
    await until_equal(
        lambda: connection.fetchval("select count(*) from messages.message"), 0, "all is done", 60
    )
    workers.terminate()
    await workers.wait()
    assert await connection.fetchval("select count(distinct number) from done") == quantity
    ended = await connection.fetch("select status::text, attempts from messages.message_archive")
    assert {row["status"] for row in ended} == {"success"}
    assert len(ended) == quantity
    assert max(row["attempts"] for row in ended) > 1


async def _unused(number: int) -> None: ...


async def test_labels_set_delay_and_priority(broker: NotifyqBroker, connection: Connection) -> None:
    @broker.task("later", delay=60)
    async def later() -> None: ...

    await later.kicker().with_labels(dedup_key="d").kiq()
    await later.kicker().with_labels(dedup_key="d").kiq()
    [message] = await connection.fetch("select * from messages.message")
    assert message["state"] == "scheduled"
    assert 50 < (message["available_at"] - message["created_at"]).total_seconds() < 61


async def test_another_serializer(broker: NotifyqBroker, connection: Connection) -> None:
    broker = broker.with_serializer(PickleSerializer())
    done: list[Any] = []

    @broker.task("set")
    async def take(values: set[int]) -> None:
        done.append(values)

    await take.kiq({1, 2})
    async with working(broker):
        await archived(connection, 1)
    assert done == [{1, 2}]


async def test_a_lock_lasts_as_long_as_the_function(
    broker: NotifyqBroker, connection: Connection
) -> None:
    called = 0
    begun, end = asyncio.Event(), asyncio.Event()

    @broker.task("slow")
    async def slow() -> None:
        nonlocal called
        called += 1
        begun.set()
        await end.wait()

    await slow.kiq()
    async with working(broker):
        await begun.wait()
        first = await connection.fetchval("select lock_expires_at from messages.message")
        await until(
            lambda: connection.fetchval(
                "select lock_expires_at - $1::timestamptz > interval '1 s' from messages.message",
                first,
            ),
            "the lock is extended",
        )
        end.set()
        await archived(connection, 1)
    assert called == 1


async def test_unacknowledged_messages_are_released(
    broker: NotifyqBroker, connection: Connection, database: str
) -> None:
    begun, end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @broker.task("stuck")
    async def stuck() -> None:
        begun.set()
        await end.wait()
        ended.set()

    await stuck.kiq()
    await stuck.kiq()
    async with working(broker):
        await begun.wait()
    await broker.shutdown()
    # Taskiq leaves it running; its end comes too late to change anything.
    end.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert ended.is_set()
    rows = await connection.fetch("select state::text, attempts from messages.message")
    assert [tuple(row) for row in rows] == [("waiting", 0)] * 2
