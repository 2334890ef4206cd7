"""Maintenance by workers: enough without pg_cron, and never in the way of messages."""

import asyncio
import gc
from collections import Counter
from datetime import timedelta

import pytest
from prometheus_client import generate_latest

from notifyq import App
from notifyq.operations.metrics import WorkerMetrics
from notifyq.telemetry import LocksExpired, MaintenanceDone, MessageFinished, SchedulesFired
from notifyq.worker.maintenance import Maintenance
from support.database import Connect, Connection, expire, make_due, publish, rows, until, value
from support.refusing import refusing
from support.running import Events, statuses, working


async def test_a_worker_reaps_what_another_left_behind(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    (gone,) = await publish(connection, 1)
    await rows(connection, "claim", worker="gone")
    await expire(connection, gone)
    async with working(app, events, maintenance=0.05):
        await events.wait(MaintenanceDone, reaped=1)
    assert await statuses(connection) == {"lock_expired": 1}


async def test_maintenance_that_fails_is_tried_again_and_stops_no_message(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events, maintenance=0.02):
        async with refusing(connection, "notifyq.maintain", "P0001"):
            before = len(events.of(MaintenanceDone))
            for number in range(1, 6):
                await app.publish("q", None)
                await events.wait(MessageFinished, number)
            assert len(events.of(MaintenanceDone)) <= before + 1  # one was under way
        await events.wait(MaintenanceDone, before + 2)


async def test_expired_locks_and_due_messages_do_not_wait_for_retention(
    app: App, events: Events, connection: Connection, connect: Connect
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    await connection.execute(
        "create or replace function notifyq.retain("
        "quantity bigint default 10000, few integer default 50000) returns bigint language plpgsql "
        "as 'begin perform pg_advisory_xact_lock(1); return 0; end'"
    )
    holder = await connect()
    await holder.execute("select pg_advisory_lock(1)")
    # The run that stays in retention also records the position, every ten seconds.
    await connection.execute("update notifyq.origin set noted_at = now() - interval '1 minute'")
    async with working(app, events, maintenance=0.05):
        await until(
            lambda: connection.fetchval(
                "select exists (select from pg_stat_activity where wait_event = 'advisory' "
                "and query like '%notifyq.maintain(%' "
                "and datname = current_database())"
            ),
            "maintenance is in retention",
        )
        (gone,) = await publish(connection, 1)
        await rows(connection, "claim", worker="gone")
        await expire(connection, gone)
        await events.wait(MaintenanceDone, reaped=1)
        due = await app.publish("default", 1, delay=timedelta(hours=1))
        await make_due(connection, due)
        await events.wait(MaintenanceDone, staged=1)
        await holder.execute("select pg_advisory_unlock(1)")


async def test_expired_locks_are_made_known(
    app: App, events: Events, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """As after a kill -9: the worker that reaps the locks of another one logs them."""
    await value(connection, "create_queue", name="once", max_attempts=1)
    await value(
        connection, "create_queue", name="twice", max_attempts=2, backoff=timedelta(hours=1)
    )
    for queue in ("once", "twice"):
        await connection.execute(
            "select messages.publish_many($1, array_fill('1'::jsonb, array[15]))", queue
        )
        await connection.execute(
            "select count(*) from messages.claim(array[$1], 15, worker => 'web-1\x1b:7')", queue
        )
    ids = await connection.fetch(
        "update messages.message set lock_expires_at = now() - interval '1 s' returning id, queue"
    )
    app.handler("other")(lambda: None)
    await app.create_queues()
    metrics = WorkerMetrics()
    async with working(app, events, maintenance=0.05, metrics=metrics):
        await events.wait(LocksExpired)
    [expired] = events.of(LocksExpired)
    assert (expired.quantity, expired.by_queue) == (30, {"once": 15, "twice": 15})
    lines = {(it.levelname, it.getMessage()) for it in caplog.records if "lock" in it.getMessage()}
    once = min(row["id"] for row in ids if row["queue"] == "once")
    twice = min(row["id"] for row in ids if row["queue"] == "twice")
    start = "the lock of message {} expired in attempt 1, held by web-1?:7;"
    assert {
        ("ERROR", f"queue 'once': {start.format(once)} that was its last attempt"),
        ("WARNING", f"queue 'twice': {start.format(twice)} it comes again"),
        ("WARNING", "10 more locks expired"),
    } <= lines
    assert len(lines) == 21
    seen = generate_latest(metrics.registry).decode()
    assert 'notifyq_locks_expired_total{queue="once"} 15.0' in seen


async def test_a_queue_that_only_schedules_fill_is_logged_once(
    app: App, events: Events, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker that fires the schedule may serve other queues only."""
    app.handler("other")(lambda: None)
    await app.create_queues()
    await publish(connection, 1)
    await connection.execute("update messages.message set available_at = now() - interval '1 hour'")
    await value(connection, "schedule", name="tick", cron="* * * * * *", queue="default")
    async with working(app, events, maintenance=0.05):
        await events.wait(SchedulesFired, 2)
    found = [it for it in caplog.records if "no worker serves" in it.getMessage()]
    assert [(it.levelname, it.getMessage()) for it in found] == [
        (
            "WARNING",
            "no worker serves queue default, where messages wait and schedule tick publishes more",
        )
    ]


async def test_one_session_maintains_at_a_time(
    app: App, events: Events, connection: Connection
) -> None:
    maintenance = Maintenance(app.database, 1, events)
    async with connection.transaction():
        await connection.execute("select from notifyq.schema_version for update")
        assert not await maintenance.run_once()
    assert await maintenance.run_once()
    assert len(events.of(MaintenanceDone)) == 1


async def test_a_long_run_does_not_pile_up_objects(app: App, connection: Connection) -> None:
    handled = 0
    counts: list[Counter[str]] = []

    @app.handler("q")
    async def handle() -> None:
        nonlocal handled
        handled += 1
        if handled % 10_000 == 0:
            gc.collect()
            counts.append(Counter(type(thing).__name__ for thing in gc.get_objects()))
        if handled == 50_000:
            done.set()

    done = asyncio.Event()
    await app.create_queues()
    await connection.execute(
        "insert into messages.message (queue, message) select 'q', 'null' "
        "from generate_series(1, 50000)"
    )
    worker = app.worker(concurrency=100, telemetry=lambda _: None)
    task = asyncio.create_task(app.work(worker))
    async with asyncio.timeout(60):
        await done.wait()
    worker.stop()
    await task
    # A hundred messages are handled at a time, a thousand more are at hand, and as many wait to be
    # settled; a leak would be one for each of the forty thousand in between.
    for kind in ("Task", "Execution", "Lock", "Message", "Future", "_Finish", "dict", "list"):
        first, last = counts[0][kind], counts[-1][kind]
        assert last < first + 2500, f"{kind}: {[count[kind] for count in counts]}"
