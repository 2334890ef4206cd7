"""Behind PgBouncer in transaction mode, with its default configuration."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import pytest

from notifyq import App, ConfigurationError
from notifyq.database.connect import Route
from notifyq.database.pool import Database, connect
from notifyq.dsn import with_database
from notifyq.notify.session import Session
from notifyq.operations.doctor import Finding, Level, examine
from notifyq.telemetry import ListenerConnected, ListenerLost, MessageFinished, NotificationsLost
from support.database import Connection, until
from support.database import session as opened
from support.poolers import Pooler, pooler
from support.running import Events, persisting, statuses, working


@pytest.fixture
def bouncer(database: str) -> Iterator[Pooler]:
    """Give a pooler of transactions with three sessions of the server."""
    with pooler(database, default_pool_size="3") as running:
        yield running


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def beside(bouncer: Pooler, database: str) -> AsyncIterator[App]:
    """Give an App behind the pooler that listens beside it."""
    app = App(bouncer.dsn, listen_dsn=database, retry_for=30)
    yield app
    await app.close()


@pytest.fixture
async def behind(bouncer: Pooler) -> AsyncIterator[App]:
    """Give an App that reaches the server through the pooler only."""
    app = App(bouncer.dsn, retry_for=30)
    yield app
    await app.close()


async def until_none_is_left(connection: Connection) -> None:
    """Wait until no advisory lock is held; a session of the pooler would keep it without end."""
    await until(
        lambda: connection.fetchval(
            "select not exists (select from pg_locks as l where l.locktype = 'advisory' and "
            "l.database = (select oid from pg_database where datname = current_database()))"
        ),
        "no promise is held",
    )


async def test_with_a_listen_dsn_notifications_arrive_behind_a_pooler(
    beside: App, events: Events
) -> None:
    beside.handler("q")(lambda n: 2 * n)
    async with working(beside, events):  # which polls once a minute
        for number in range(20):
            handle = await beside.publish("q", number)
            assert await handle.result(timeout=20) == 2 * number
    assert not events.of(NotificationsLost)


async def test_without_a_listen_dsn_a_worker_polls_and_warns_once(
    behind: App,
    bouncer: Pooler,
    events: Events,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("notifyq.notify.session._ARRIVES_WITHIN", 0.3)
    behind.handler("q")(lambda n: n)

    @behind.subscriber("orders", "warehouse")
    async def keep(_event: str) -> None:
        return

    async with working(behind, events, poll=0.1):
        await events.wait(NotificationsLost)
        handle = await behind.publish("q", 1)
        assert await handle.result(timeout=20) == 1
        bouncer.kill()
        await events.wait(ListenerLost)
        bouncer.start()
        await events.wait(ListenerConnected, again=True)
        handle = await behind.publish("q", 2)
        assert await handle.result(timeout=20) == 2
    assert len(events.of(NotificationsLost)) == 1
    await until_none_is_left(connection)


@pytest.mark.parametrize("is_pooled", [True, False])
async def test_a_notification_read_with_another_call_proves_nothing(
    database: str, connection: Connection, *, is_pooled: bool
) -> None:
    """What was promised after it would outlive the worker, on a session that others are lent."""
    calls: list[asyncio.Task[Any]] = []

    async def notify(channel: str) -> bool:
        # The pooler has one server session, and the first notification is sent there.
        await connection.execute("select pg_advisory_lock(1)")
        if not calls:
            call = session.fetch("select pg_advisory_xact_lock(1)")
            calls.append(asyncio.create_task(call))
            await until(
                lambda: connection.fetchval(
                    "select count(*) from pg_stat_activity "
                    "where datname = current_database() and wait_event = 'advisory'"
                ),
                "the call is running",
            )
        await connection.execute(f"notify {channel}")
        await connection.execute("select pg_advisory_unlock(1)")
        return True

    with pooler(database, default_pool_size="1") as bouncer:
        lent = await connect(bouncer.dsn if is_pooled else database)
        session = Session(lent, notify=notify, timeout=20)
        assert await session.delivers() is not is_pooled
        await asyncio.gather(*calls)
        await lent.close()


async def test_a_notification_that_is_read_late_counts_as_delivered(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped, or its loop was kept busy, until the time was over."""
    monkeypatch.setattr("notifyq.notify.session._ARRIVES_WITHIN", 0.2)

    def notify_and_block(channel: str) -> None:
        async def notify() -> None:
            async with opened(database) as other:
                await other.execute(f"notify {channel}")

        thread = threading.Thread(target=asyncio.run, args=(notify(),))
        thread.start()
        thread.join()
        time.sleep(0.5)

    async def notify(channel: str) -> bool:
        asyncio.get_running_loop().call_soon(notify_and_block, channel)
        return True

    direct = await connect(database)
    assert await Session(direct, notify=notify, timeout=20).delivers()
    await direct.close()


async def test_a_worker_works_through_a_pooler(
    beside: App, events: Events, connection: Connection
) -> None:
    seen: list[Any] = []
    is_held = asyncio.Event()
    await connection.execute("create table accounts (entry integer)")

    @beside.handler("accounts", transactional=True)
    async def book(entry: int, connection: asyncpg.Connection) -> None:
        await connection.execute("insert into accounts values ($1)", entry)

    @beside.handler("slow", lock_duration=1)
    async def slow(n: int) -> int:
        await is_held.wait()
        return n

    @beside.subscriber("orders", "warehouse")
    async def keep(event: str) -> None:
        seen.append(event)

    async with working(beside, events):
        waited = await beside.publish("slow", 5)
        await beside.publish_many("accounts", [1, 2, 3])
        await beside.publish_many("orders", ["a", "b"])
        await until(
            lambda: connection.fetchval(
                "select clock_timestamp() > locked_at + interval '1.5 seconds' "
                "and lock_expires_at > clock_timestamp() "
                "from messages.message where queue = 'slow'"
            ),
            "the lock is extended",
        )
        is_held.set()
        assert await waited.result(timeout=20) == 5
        await events.wait(MessageFinished, 3, queue="accounts", status="success")
        await until(lambda: seen == ["a", "b"], "the subscriber has both")
    assert await connection.fetchval("select array_agg(entry order by entry) from accounts") == [
        1,
        2,
        3,
    ]
    assert await statuses(connection) == {"success": 4}
    await until_none_is_left(connection)


async def test_concurrent_calls_on_few_sessions_get_their_own_answers(bouncer: Pooler) -> None:
    """Otherwise clients would use the prepared statements of others."""
    databases = [Database(bouncer.dsn) for _ in range(4)]

    async def call(number: int) -> None:
        database = databases[number % 4]
        # As many statements as there are calls, each with a result of its own kind.
        row = await database.fetch(f"select $1::integer as a{number}, {number}::text as b", number)
        assert dict(row[0]) == {f"a{number}": number, "b": str(number)}

    try:
        await asyncio.gather(*(call(number) for number in range(200)))
    finally:
        for database in databases:
            await database.close()


async def test_a_killed_pooler_loses_nothing(
    beside: App, bouncer: Pooler, events: Events, connection: Connection
) -> None:
    beside.handler("q")(lambda n: n)
    async with working(beside, events, poll=1):
        acknowledged = []
        for number in range(30):
            if number == 15:
                bouncer.kill()
                asyncio.get_running_loop().call_later(0.3, bouncer.start)
            acknowledged.append(await persisting(beside, "q", number))

        async def all_done() -> bool:
            return (await statuses(connection)).get("success", 0) == 30

        await until(all_done, "all are handled", seconds=20)
    assert len(set(acknowledged)) == 30


async def test_a_pooler_that_ignores_parameters_and_a_dsn_with_several_hosts(database: str) -> None:
    """The check of target_session_attrs prepares a statement before the pooler is detected."""
    ignored = "default_transaction_isolation, statement_timeout"
    with pooler(database, ignore_startup_parameters=ignored, default_pool_size="1") as bouncer:
        routes = [
            Route(f"{bouncer.dsn}?target_session_attrs=read-write", name="test") for _ in range(3)
        ]
        for route in routes:
            for _ in range(2):
                connection = await connect(bouncer.dsn, route=route)
                assert await connection.fetchval("select 1") == 1
                await connection.close()
            assert route.features is not None
            assert route.features.is_pooled
            assert not route.features.keeps_statements


async def test_a_pooler_that_drops_session_settings_causes_a_warning(
    bouncer: Pooler, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    name = await connection.fetchval("select current_database()")
    await connection.execute(f'alter database "{name}" set statement_timeout = 77')
    with caplog.at_level(logging.WARNING):
        await (await connect(bouncer.dsn)).close()
    assert "statement_timeout not 0: set both for this user" in caplog.text


async def test_a_listen_dsn_of_another_database_is_refused(
    bouncer: Pooler, server: str, events: Events
) -> None:
    app = App(bouncer.dsn, listen_dsn=with_database(server, "postgres"))
    app.handler("q")(lambda n: n)
    with pytest.raises(ConfigurationError, match="the listen DSN leads to another database"):
        async with asyncio.timeout(20):
            await app.work(app.worker(telemetry=events))


async def test_the_doctor_names_the_pooler_and_trusts_the_direct_address(
    bouncer: Pooler, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def checks(listen_dsn: str | None) -> list[Finding]:
        only = ["notifications", "pooler"]
        return [it async for _, it in examine(bouncer.dsn, listen_dsn=listen_dsn, only=only)]

    assert [it.level for it in await checks(database)] == [Level.OK, Level.OK]
    # None arrives from here on.
    monkeypatch.setattr("notifyq.operations.doctor.access._ARRIVES_WITHIN", 0.3)
    for found in await checks(None):
        assert found.level is Level.WARN
        assert "a pooler in transaction mode" in found.found
        assert "NOTIFYQ_LISTEN_DSN" in found.advice
    elsewhere, _ = await checks(with_database(database, "postgres"))
    assert elsewhere.level is Level.FAIL
