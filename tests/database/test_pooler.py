"""Behind PgBouncer in transaction mode, which nobody has told of us."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from notifyq import App, ConfigurationError
from notifyq.config import with_database
from notifyq.database.connect import Route
from notifyq.database.pool import Database, connect
from notifyq.notify.session import Session
from notifyq.operations.doctor import Level, examine
from notifyq.telemetry import ListenerConnected, ListenerDeaf, ListenerLost, MessageFinished
from support.database import Connection, until
from support.database import session as opened
from support.poolers import Pooler, pooler
from support.running import Events, persisting, statuses, working

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


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
    """Wait until no lock of a promise is held: where a session of the pooler has it, for ever."""

    async def none_is_left() -> bool:
        return bool(
            await connection.fetchval(
                "select not exists (select from pg_locks as l where l.locktype = 'advisory' and "
                "l.database = (select oid from pg_database where datname = current_database()))"
            )
        )

    await until(none_is_left, "no promise is held")


async def test_with_a_direct_address_to_listen_at_the_bell_comes_at_once(
    beside: App, events: Events
) -> None:
    beside.handler("q")(lambda n: 2 * n)
    async with working(beside, events):  # which polls once a minute
        took = []
        for number in range(20):
            began = time.monotonic()
            handle = await beside.publish("q", number)
            assert await handle.result(timeout=20) == 2 * number
            took.append(time.monotonic() - began)
    assert not events.of(ListenerDeaf)
    assert sorted(took)[10] < 0.5


async def test_without_one_a_worker_polls_and_says_so_once(
    behind: App, bouncer: Pooler, events: Events, connection: Connection
) -> None:
    behind.handler("q")(lambda n: n)

    @behind.subscriber("orders", "warehouse")
    async def keep(_event: str) -> None:
        return

    async with working(behind, events, poll=0.1):
        await events.wait(ListenerDeaf)
        handle = await behind.publish("q", 1)
        assert await handle.result(timeout=20) == 1
        bouncer.kill()
        await events.wait(ListenerLost)
        bouncer.start()
        await events.wait(ListenerConnected, again=True)
        handle = await behind.publish("q", 2)
        assert await handle.result(timeout=20) == 2
    assert len(events.of(ListenerDeaf)) == 1
    await until_none_is_left(connection)


@pytest.mark.parametrize("is_pooled", [True, False])
async def test_a_bell_that_comes_with_another_call_says_nothing(
    database: str, connection: Connection, *, is_pooled: bool
) -> None:
    """What was promised after it would outlive the worker, on a session that others are lent."""
    calls: list[asyncio.Task[Any]] = []

    async def is_running() -> bool:
        return bool(
            await connection.fetchval(
                "select count(*) from pg_stat_activity as a "
                "where a.datname = current_database() and a.state = 'active' "
                "and a.query = 'select pg_sleep(0.5)'"
            )
        )

    async def ring(channel: str) -> bool:
        if not calls:  # the pooler has one session of the server, and the first bell is rung there
            calls.append(asyncio.create_task(session.fetch("select pg_sleep(0.5)")))
            await until(is_running, "the call is running")
        await connection.execute(f"notify {channel}")
        return True

    with pooler(database, default_pool_size="1") as bouncer:
        lent = await connect(bouncer.dsn if is_pooled else database)
        session = Session(lent, 20, lambda: None)
        assert await session.hears(ring) is not is_pooled
        await asyncio.gather(*calls)
        await lent.close()


async def test_a_bell_that_is_read_late_has_arrived_all_the_same(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was stopped, or its loop was kept busy, until the time was over."""
    monkeypatch.setattr("notifyq.notify.session._HEARS_WITHIN", 0.2)

    def ring_and_hold_up(channel: str) -> None:
        async def ring() -> None:
            async with opened(database) as other:
                await other.execute(f"notify {channel}")

        thread = threading.Thread(target=asyncio.run, args=(ring(),))
        thread.start()
        thread.join()
        time.sleep(0.5)

    async def ring(channel: str) -> bool:
        asyncio.get_running_loop().call_soon(ring_and_hold_up, channel)
        return True

    direct = await connect(database)
    assert await Session(direct, 20, lambda: None).hears(ring)
    await direct.close()


async def test_what_a_worker_does_is_done_through_the_pooler(
    beside: App, events: Events, connection: Connection
) -> None:
    seen: list[Any] = []
    is_held = asyncio.Event()
    await connection.execute("create table ledger (entry integer)")

    @beside.handler("ledger", transactional=True)
    async def book(entry: int, connection: asyncpg.Connection) -> None:
        await connection.execute("insert into ledger values ($1)", entry)

    @beside.handler("slow", lock_timeout=1)
    async def slow(n: int) -> int:
        await is_held.wait()
        return n

    @beside.subscriber("orders", "warehouse")
    async def keep(event: str) -> None:
        seen.append(event)

    async with working(beside, events):
        waited = await beside.publish("slow", 5)
        await beside.publish_many("ledger", [1, 2, 3])
        await beside.publish_many("orders", ["a", "b"])

        async def has_outlived_its_lock() -> bool:
            return bool(
                await connection.fetchval(
                    "select clock_timestamp() > locked_at + interval '1.5 seconds' "
                    "and lock_expires_at > clock_timestamp() "
                    "from messages.message where queue = 'slow'"
                )
            )

        await until(has_outlived_its_lock, "the lock is extended")
        is_held.set()
        assert await waited.result(timeout=20) == 5
        await events.wait(MessageFinished, 3, queue="ledger", status="success")

        async def both() -> bool:
            return seen == ["a", "b"]

        await until(both, "the subscriber has both")
    assert await connection.fetchval("select array_agg(entry order by entry) from ledger") == [
        1,
        2,
        3,
    ]
    assert await statuses(connection) == {"success": 4}
    await until_none_is_left(connection)


async def test_calls_of_many_on_few_sessions_get_their_own_answers(bouncer: Pooler) -> None:
    """Prepared statements of one would else be those of another."""
    databases = [Database(bouncer.dsn) for _ in range(4)]

    async def ask(number: int) -> None:
        database = databases[number % 4]
        # As many statements as there are calls, each with a result of its own kind.
        row = await database.fetch(f"select $1::integer as a{number}, {number}::text as b", number)
        assert dict(row[0]) == {f"a{number}": number, "b": str(number)}

    try:
        await asyncio.gather(*(ask(number) for number in range(200)))
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


async def test_parameters_that_it_ignores_and_hosts_that_are_asked_for_more(database: str) -> None:
    """Asking a host whether it is the primary takes a statement before anything is known."""
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
            assert route.way is not None
            assert route.way.is_pooled
            assert not route.way.keeps_statements


async def test_settings_that_it_keeps_from_sessions_are_told_of(
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
            await app.work(app.worker(sink=events))


async def test_the_doctor_names_the_pooler_and_trusts_the_direct_address(
    bouncer: Pooler, database: str
) -> None:
    async def bell(listen_dsn: str | None) -> Any:
        return {name: it async for name, it in examine(bouncer.dsn, listen_dsn=listen_dsn)}["bell"]

    found = await bell(None)
    assert found.level is Level.WARN
    assert "pooler in transaction mode" in found.found
    assert "NOTIFYQ_LISTEN_DSN" in found.advice
    found = await bell(database)
    assert found.level is Level.OK
    assert (await bell(with_database(database, "postgres"))).level is Level.FAIL
