"""The broker as a process: woken by the notification, and back after the loss of its session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest

from broker.procedures import is_running, prepare, register, seen, send, until_seen
from notifyq.broker import Broker
from notifyq.config import BrokerSettings
from notifyq.server import Server
from notifyq.telemetry import (
    BrokerLost,
    BrokerStarted,
    BrokerStopped,
    ListenerConnected,
    ProcedureFailed,
    TelemetryEvent,
)
from support.database import Connection, session, until

# So that what wakes a broker can only be the notification.
NO_POLL = BrokerSettings.load(poll=timedelta(minutes=10))
KILLS = (
    "if messages.dequeue(null::text) = 'die' then "
    "perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(5); end if;"
)


@pytest.fixture
async def app(connection: Connection) -> Connection:
    await prepare(connection, "s")
    return connection


@asynccontextmanager
async def serving(
    dsn: str, events: list[TelemetryEvent], settings: BrokerSettings | None = None
) -> AsyncIterator[Broker]:
    async with Broker(dsn, settings=settings, telemetry=events.append) as broker:
        task = asyncio.create_task(broker.serve())
        try:
            yield broker
        finally:
            broker.stop()
            await task


async def pid_of(connection: Connection) -> int | None:
    pid: int | None = await connection.fetchval("select pid from messages.status_broker()")
    return pid


async def test_a_notification_wakes_the_broker(app: Connection, database: str) -> None:
    events: list[TelemetryEvent] = []
    await register(app, "a")
    await send(app, "before")
    async with serving(database, events, NO_POLL):
        await until_seen(app, "before")
        assert await is_running(app)
        for number in range(3):
            await send(app, str(number))
            await until_seen(app, str(number))
    assert not await is_running(app)
    assert [type(it) for it in events if isinstance(it, BrokerStarted | BrokerStopped)] == [
        BrokerStarted,
        BrokerStopped,
    ]


async def test_a_failure_is_a_telemetry_event_and_other_procedures_continue(
    app: Connection, database: str
) -> None:
    events: list[TelemetryEvent] = []
    await register(app, "fails", "raise exception 'no stock';")
    await register(app, "works")
    async with serving(database, events):
        await send(app, "1")
        await until_seen(app, "1")
        await until(lambda: _has(events, ProcedureFailed), "the failure is reported")
    [failed] = [it for it in events if isinstance(it, ProcedureFailed)]
    assert "subscriber fails" in failed.warning
    assert "app.fails: no stock (SQLSTATE P0001)" in failed.warning


async def _has(events: list[TelemetryEvent], kind: type[TelemetryEvent]) -> bool:
    return any(isinstance(event, kind) for event in events)


async def test_the_broker_reconnects_after_a_procedure_ended_its_session(
    app: Connection, database: str
) -> None:
    events: list[TelemetryEvent] = []
    await register(app, "kills", KILLS)
    async with serving(database, events, NO_POLL):
        await send(app, "1", "die", "2")
        await until_seen(app, "1", "2", seconds=5)
        assert await app.fetchval("select array_agg(message) from messages.dead_message") == ["die"]
        pid = await pid_of(app)
        await app.execute("select pg_terminate_backend($1)", pid)
        await send(app, "3")
        await until_seen(app, "3", seconds=5)
        assert await pid_of(app) != pid
    assert len([it for it in events if isinstance(it, BrokerLost)]) >= 4
    assert await seen(app) == ["1", "2", "3"]


async def test_stop_broker_stops_the_process(app: Connection, database: str) -> None:
    async with Broker(database) as broker:
        task = asyncio.create_task(broker.serve())
        await until(lambda: is_running(app), "it runs")
        async with asyncio.timeout(20):
            assert await app.fetchval("select messages.stop_broker()")
            await task
    assert not await is_running(app)


async def test_stop_broker_ends_a_long_procedure(app: Connection, database: str) -> None:
    events: list[TelemetryEvent] = []
    await register(app, "long", "perform pg_sleep(60);")
    async with Broker(database, telemetry=events.append) as broker:
        task = asyncio.create_task(broker.serve())
        await send(app, "1")
        await until(
            lambda: app.fetchval(
                "select count(*) from pg_stat_activity where wait_event = 'PgSleep' "
                "and pid = (messages.status_broker()).pid"
            ),
            "the procedure runs",
        )
        async with asyncio.timeout(20):
            await app.execute("select messages.stop_broker(patience => '0.1 s')")
            await task
    assert not await is_running(app)
    assert await seen(app) == []


async def test_a_second_broker_of_the_role_is_refused(app: Connection, database: str) -> None:
    async with Broker(database):
        assert await is_running(app)
        with pytest.raises(asyncpg.ObjectInUseError, match="runs in this database already"):
            async with Broker(database):
                pass
    async with Broker(database):
        assert await is_running(app)


async def test_notifications_cause_at_most_a_hundred_calls_a_second(
    database: str, app: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events of other streams send notifications on the same channel."""
    runs = 0
    run = Broker._run

    async def counted(broker: Broker) -> bool:
        nonlocal runs
        runs += 1
        return await run(broker)

    monkeypatch.setattr(Broker, "_run", counted)
    await register(app, "p")

    async def has_run() -> bool:
        await app.execute("select pg_notify('new_event', 'other')")
        return runs > 3

    async with serving(database, [], NO_POLL):
        await until(has_run, "a notification wakes the broker")
        before, began = runs, time.monotonic()
        while time.monotonic() < began + 1:
            await app.execute("select pg_notify('new_event', 'other')")
        assert runs - before <= 20 + 100 * (time.monotonic() - began)


@pytest.mark.timeout(120)
async def test_a_stop_does_not_wait_for_a_server_that_is_away(
    mortal_server: Server,
) -> None:
    async with session(mortal_server.dsn) as there:
        await prepare(there, "s")
        await register(there, "p")
    events: list[TelemetryEvent] = []
    async with Broker(mortal_server.dsn, settings=NO_POLL, telemetry=events.append) as broker:
        task = asyncio.create_task(broker.serve())

        async def has(kind: type[TelemetryEvent]) -> bool:
            return any(isinstance(event, kind) for event in events)

        await until(lambda: has(ListenerConnected), "it listens", 30)
        await asyncio.to_thread(mortal_server.stop, force=True)
        await until(lambda: has(BrokerLost), "the session is lost", 30)
        broker.stop()
        async with asyncio.timeout(20):
            await task
