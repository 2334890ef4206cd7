"""A queue moves to another server: created there as it is, under load, while relays are killed."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import pytest

from notifyq import App, Steps
from notifyq.queues.options import options
from notifyq.queues.policy import Policy
from notifyq.telemetry import MessageFinished
from relay.relaying import command, drained, payloads
from support.database import Connection, session, until, until_equal
from support.running import Events, doubles, statuses, working

POLICY = """
select messages.create_queue('orders', max_attempts => 4, backoff => '3s', retention => '7 days',
  lock_duration => '90s', key_concurrency => 5, key_rate => 100, fair => true, capacity => 1000,
  payload_schema => '{"type": "integer"}');
select messages.set_share('orders', 'gold', 3);
select messages.set_limit('orders', 'slow', concurrency => 1, rate => 2);
"""


async def test_queues_are_created_as_they_are_at_the_source(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await connection.execute(POLICY)
    await connection.execute("select messages.publish('orders', '7', key => 'gold')")
    await drained(database, far, {"orders": "incoming"}, create_queues=True)
    [old] = await connection.fetch("select * from messages.queue_info('orders')")
    [new] = await there.fetch("select * from messages.queue_info('incoming')")
    names = [it.name for it in options(Policy)]
    assert {it: new[it] for it in names} == {it: old[it] for it in names}
    assert new["waiting"] == 1
    for table in ("share", "queue_limit"):
        rows = [
            await it.fetch(f"select to_jsonb(t) - 'queue' from messages.{table} as t")
            for it in (connection, there)
        ]
        assert rows[0] == rows[1] != []


async def test_a_queue_that_is_there_stays_as_it_is(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await connection.execute(POLICY)
    await there.execute("select messages.create_queue('orders', max_attempts => 9)")
    await drained(database, far, {"orders": "orders"}, create_queues=True)
    assert await there.fetchval("select max_attempts from messages.queue_info('orders')") == 9
    assert await there.fetch("select from messages.share") == []


async def test_a_message_with_recorded_steps_ends_where_they_are(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    app = App(database)
    runs: list[str] = []

    @app.handler("default")
    async def handle(number: int, steps: Steps) -> None:
        await steps.run("first", runs.append, "first")
        await steps.wait_for("go", signal="go")
        runs.append("last")

    message = await app.publish("default", 1)
    async with working(app, maintenance=0.1):
        parked = "select count(parked_at) from messages.message"
        await until_equal(lambda: connection.fetchval(parked), 1, "it waits")
    await app.signal("go")
    await connection.execute("select messages.publish('default', '2')")
    done = await drained(database, far)
    assert done.counts["moved"] == 1
    assert await payloads(there) == [2]
    events = Events()
    async with working(app, events, maintenance=0.1):
        await events.wait(MessageFinished, message_id=message)
    assert runs == ["first", "last"]
    await app.close()


@asynccontextmanager
async def inserting(dsn: str) -> AsyncIterator[list[int]]:
    """Insert numbers as any program does, for as long as the block lasts; keep what is there."""
    sent: list[int] = []
    is_over = asyncio.Event()

    async def insert() -> None:
        async with session(dsn) as connection:
            while not is_over.is_set():
                await connection.execute(
                    "insert into messages.message (queue, message) values ('orders', $1)", len(sent)
                )
                sent.append(len(sent))

    task = asyncio.create_task(insert())
    try:
        yield sent
    finally:
        is_over.set()
        await task


@asynccontextmanager
async def killed_relay(database: str, far: str, *options: str) -> AsyncIterator[None]:
    """Run a relay and kill it at the end of the block."""
    async with command(database, far, "--queue", "orders", *options) as relay:
        yield
        relay.send_signal(signal.SIGKILL)
        await relay.wait()


def counting(app: App) -> tuple[Counter[int], asyncio.Event]:
    """Count what an App handles; -1 only after the event."""
    handled = Counter[int]()
    gate = asyncio.Event()

    @app.handler("orders")
    async def handle(number: int) -> None:
        if number == -1:
            await gate.wait()
        handled[number] += 1

    return handled, gate


@pytest.mark.timeout(120)
async def test_a_queue_moves_under_load_while_relays_are_killed(
    database: str,
    far: str,
    connection: Connection,
    there: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The locks of a killed relay.
    monkeypatch.setenv("NOTIFYQ_RELAY_LOCK_DURATION", "2s")
    await connection.execute("select messages.create_queue('orders', max_attempts => 5)")
    old, new = App(database), App(far)
    (handled, gate), (moved, _) = counting(old), counting(new)
    # One that is locked while all others go, and one that is due later.
    await connection.execute(
        "select messages.publish('orders', '-1'), messages.publish('orders', '-2', delay => '1h')"
    )

    async def until_moved(count: int) -> None:
        least = len(moved) + count
        await until(lambda: len(moved) >= least, f"{count} messages have moved", 30)

    async def has_queue() -> bool:
        return bool(await there.fetch("select from messages.queue_info('orders')"))

    async with inserting(database) as sent, AsyncExitStack() as workers:
        async with working(old, maintenance=0.1, grace=30):
            await until(lambda: len(handled) > 100, "the old server handles messages", 20)
            async with killed_relay(database, far, "--create-queues"):
                await until(has_queue, "the queue is there", 30)
                await workers.enter_async_context(working(new, maintenance=0.1))
                await until_moved(50)
            gate.set()
        for _ in range(3):
            async with killed_relay(database, far):
                await until_moved(200)
        await workers.aclose()
    async with working(new, maintenance=0.1), command(database, far, "--queue", "orders"):
        await connection.execute(
            "update messages.message set available_at = now() where state = 'scheduled'; "
            "select messages.stage_due()"
        )
        everything = {*sent, -1, -2}
        for each in (connection, there):
            left = partial(each.fetchval, "select count(*) from messages.message")
            await until_equal(left, 0, "all has ended", 30)
    assert handled.keys() | moved.keys() == everything
    assert handled[-1] == moved[-2] == 1
    assert {*(handled + moved).values()} == {1}
    for each in (connection, there):
        assert await doubles(each) == 0
    assert await statuses(connection) == {"success": len(everything)}
    assert await statuses(there) == {"success": len(moved)}
    await old.close()
    await new.close()
