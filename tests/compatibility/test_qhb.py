"""The guarantees of QHB's built-in queue, number by number; see docs/coming-from/qhb.md."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from broker.conftest import database, shared_database  # noqa: F401  fixtures
from broker.procedures import declare, drain, is_running, prepare, register, seen, send, until_seen
from broker.test_process import NO_POLL, serving
from compatibility.conftest import Mortal
from notifyq.errors import DatabaseError, InvalidArgumentError
from notifyq.server import Server
from support.database import (
    Connect,
    Connection,
    Notices,
    install,
    one_row,
    session,
    terminate,
    until,
    until_blocked,
)
from support.servers import kept_server

EXACT = {
    "bytea": r"'\x00ff'",
    "float8": "'NaN'",
    "double precision": "0.1::float8 + 0.2::float8",
    "numeric": "1.500",
    "timestamptz": "'infinity'",
    "int[]": "'{1,null,3}'",
    "jsonb": """'{"a": [1.50]}'""",
    "int4range": "'[1,5)'",
    "public.pair": """'(1,"a,""b")'""",
    "public.mood": "'sad'",
}


@pytest.fixture
async def app(connection: Connection) -> Connection:
    await prepare(connection, "s")
    return connection


@contextlib.asynccontextmanager
async def running(app: Connection, session: Connection) -> AsyncIterator[int]:
    """Run a broker on that session until it is stopped; gives its process."""
    task = asyncio.create_task(session.execute("call messages.run_broker()"))
    await until(lambda: is_running(app), "it runs")
    yield session.get_server_pid()
    await task


async def calls(app: Connection) -> tuple[int, int]:
    """Return how many calls of procedures went well, and how many did not."""
    row = await one_row(app, "select handled, failed from messages.status_broker()")
    return row["handled"], row["failed"]


async def is_blocked(observer: Connection, session: Connection) -> bool:
    return bool(
        await observer.fetchval(
            "select wait_event_type = 'Lock' from pg_stat_activity where pid = $1",
            session.get_server_pid(),
        )
    )


async def typed(app: Connection, name: str, kind: str) -> None:
    await app.execute(f"select messages.create_stream('{name}', payload_type => '{kind}')")


async def test_h1_a_queue_is_of_one_type(app: Connection) -> None:
    await typed(app, "r", "int4")
    kind = await app.fetchval("select payload_type from messages.stream where name = 'r'")
    assert kind == "integer"


async def test_h2_the_second_creation_does_nothing_and_an_unknown_one_cannot_be_dropped(
    app: Connection,
) -> None:
    assert not await app.fetchval("select messages.create_stream('s')")
    with pytest.raises(DatabaseError) as error:
        await app.execute("select messages.drop_stream('nope')")
    assert error.value.sqlstate == "NQ020"


async def test_h3_a_value_of_another_type_is_refused(app: Connection) -> None:
    await typed(app, "r", "int4")
    for value in ("1::int8", "'x'::text"):
        with pytest.raises(asyncpg.DatatypeMismatchError):
            await app.execute(f"select messages.enqueue('r', {value})")
    assert await app.fetchval("select count(*) from messages.event") == 0


async def test_h4_reading_another_type_is_an_error_of_that_procedure_alone(app: Connection) -> None:
    await typed(app, "r", "int4")
    await app.execute(
        "create procedure app.good() language plpgsql as "
        "$$ begin insert into app.seen (value) values (messages.dequeue(null::int4)); end $$"
    )
    await app.execute(
        "create procedure app.wrong() language plpgsql as "
        "$$ begin perform messages.dequeue(null::text); end $$"
    )
    for name in ("good", "wrong"):
        await app.execute("select messages.register('r', $1, 'app.' || $1)", name)
    await app.execute("select messages.enqueue('r', 5)")
    notices = Notices(app)
    await drain(app)
    assert await seen(app) == ["5"]
    # It is logged.
    [line] = await notices.received("WARNING")
    assert "of subscriber wrong in stream r" in line
    assert "SQLSTATE 42804" in line
    [dead] = await app.fetch("select subscriber, details from messages.dead_message")
    assert dead["subscriber"] == "wrong"
    assert "SQLSTATE 42804" in dead["details"]


@pytest.fixture
async def kinds(app: Connection) -> AsyncIterator[None]:
    await app.execute(
        "create type public.pair as (n integer, t text); "
        "create type public.mood as enum ('sad', 'glad')"
    )
    yield
    await app.execute(
        "select messages.drop_stream(name, true) from messages.stream; "
        "drop type public.pair cascade; drop type public.mood cascade"
    )


@pytest.mark.usefixtures("kinds")
async def test_h5_values_are_exact(app: Connection) -> None:
    for number, (kind, value) in enumerate(EXACT.items()):
        await typed(app, f"t{number}", kind)
        await app.execute(f"""
            create table app.t{number} (is_exact boolean);
            create procedure app.p{number}() language plpgsql as $$
            begin
              insert into app.t{number}
              select messages.dequeue(null::{kind}) is not distinct from ({value})::{kind};
            end $$;
            select messages.register('t{number}', 'p', 'app.p{number}');
            select messages.enqueue('t{number}', ({value})::{kind});
        """)
    await drain(app)
    assert await app.fetch("select queue, details from messages.dead_message") == []
    for number, kind in enumerate(EXACT):
        assert await app.fetchval(f"select is_exact from app.t{number}"), kind


async def test_h6_null_is_a_value(app: Connection) -> None:
    await typed(app, "r", "text")
    await register(app, "a", stream="r")
    await app.execute("select messages.enqueue('r', null::text)")
    await drain(app)
    assert await seen(app) == [None]


RING = (
    "select messages.create_queue("
    "'ring', capacity => 5, overflow => 'drop_oldest', durable => false)"
)
NEXT = "select array_agg(message::text) from messages.batch_events(messages.next_batch('s', 'a'))"
HELD = "select array_agg(message::text::integer order by id) from messages.message"


async def test_h7_a_full_ring_queue_keeps_the_newest_messages(app: Connection) -> None:
    await app.execute(RING)
    for number in range(10, 22):
        await app.execute("select messages.publish('ring', to_jsonb($1::integer))", number)
    assert await app.fetchval(HELD) == [17, 18, 19, 20, 21]
    await app.execute(
        "select messages.publish('ring', to_jsonb(n)) from generate_series(1, 8) as n"
    )
    assert await app.fetchval(HELD) == [4, 5, 6, 7, 8]


async def test_h8_publishers_of_a_full_queue_do_not_wait(app: Connection, connect: Connect) -> None:
    await app.execute(RING)
    other = await connect()
    async with app.transaction():
        await app.execute("select messages.publish('ring', '100')")
        for number in range(1, 10):
            await other.execute("select messages.publish('ring', to_jsonb($1::integer))", number)
    assert len(await other.fetchval(HELD)) == 5


async def test_h9_unlogged_messages_are_gone_after_a_crash(mortal: Mortal) -> None:
    session = await mortal.connect()
    await session.execute(RING)
    await session.execute("select messages.create_stream('s', durable => false)")
    await session.execute("select messages.subscribe('s', 'a')")
    for name in ("ring", "s"):
        await session.execute("select messages.publish($1, '1')", name)
    await mortal.crash()
    session = await mortal.connect()
    assert await session.fetchval("select count(*) from messages.message") == 0
    assert await session.fetchval("select count(*) from messages.event") == 0
    assert await session.fetchval("select capacity from messages.queue where name = 'ring'") == 5
    # The subscriber goes on with what comes then.
    await session.execute("select messages.publish('s', '2')")
    assert await session.fetchval(NEXT) == ["2"]


async def test_h10_durable_messages_survive_a_crash(mortal: Mortal) -> None:
    session = await mortal.connect()
    await session.execute("select messages.create_stream('s')")
    await session.execute("select messages.subscribe('s', 'a')")
    await session.execute(
        "select messages.publish('s', to_jsonb(n)) from generate_series(1, 3) as n"
    )
    await mortal.crash()
    session = await mortal.connect()
    assert await session.fetchval(NEXT) == ["1", "2", "3"]


async def test_h11_a_message_is_delivered_when_it_is_committed(
    app: Connection, connect: Connect
) -> None:
    publisher = await connect()
    await register(app, "a")
    stored = "select count(*) from messages.event"
    before = await app.fetchval(stored)
    async with publisher.transaction():
        await send(publisher, "x")
        assert await app.fetchval(stored) == before
        await drain(app)
        assert await seen(app) == []
    assert await app.fetchval(stored) == before + 1
    await drain(app)
    assert await seen(app) == ["x"]


@pytest.mark.parametrize("end", ["rollback", "unhandled exception"])
async def test_h12_what_is_rolled_back_is_never_delivered(
    app: Connection, connect: Connect, end: str
) -> None:
    publisher = await connect()
    async with publisher.transaction():
        assert await register(publisher, "a")
    subscriptions = "select array_agg(s order by s.id) from messages.subscription as s"
    before = await app.fetchval(subscriptions)
    assert len(before) == 1
    if end == "rollback":
        await publisher.execute("begin")
        await send(publisher, "x")
        await publisher.execute("rollback")
    else:
        with pytest.raises(asyncpg.RaiseError, match="unhandled"):
            await publisher.execute(
                "do $$ begin perform messages.publish('s', '\"x\"'); "
                "raise exception 'unhandled'; end $$"
            )
    await drain(app)
    assert await seen(app) == []
    assert await app.fetchval(subscriptions) == before
    # The registration from before still works, and what was undone does not come later.
    await send(publisher, "y")
    await drain(app)
    assert await seen(app) == ["y"]


async def test_h13_a_savepoint_takes_back_its_own(app: Connection, connect: Connect) -> None:
    publisher = await connect()
    await register(app, "a")
    async with publisher.transaction():
        await publisher.execute("savepoint p")
        await send(publisher, "x")
        await publisher.execute("rollback to p")
        await send(publisher, "y")
    await drain(app)
    assert await seen(app) == ["y"]
    assert await calls(app) == (1, 0)
    # Only the inner one goes: what was published before the savepoint stays.
    async with publisher.transaction():
        await send(publisher, "outer")
        await publisher.execute("savepoint p")
        await send(publisher, "inner")
        await publisher.execute("rollback to p")
    await drain(app)
    assert await seen(app) == ["y", "outer"]
    assert await calls(app) == (2, 0)


async def test_h14_publishing_does_not_wait_for_procedures(
    app: Connection, connect: Connect
) -> None:
    publisher, broker = await connect(), await connect()
    await register(app, "a", "perform pg_advisory_xact_lock(1);")
    await app.execute("select pg_advisory_lock(1)")
    async with running(app, broker):
        await send(publisher, "first")
        # The procedure runs, and ends when this session unlocks it.
        await until_blocked(app, broker)
        took = []
        for _ in range(5):
            began = time.monotonic()
            async with publisher.transaction():
                await send(publisher, "x")
            took.append(time.monotonic() - began)
        assert min(took) < 0.2
        assert await seen(app) == []
        assert await is_blocked(app, broker)
        await app.execute("select pg_advisory_unlock(1)")
        await until_seen(app, "first", "x")
        await app.execute("select messages.stop_broker()")
    await drain(app)
    assert await seen(app) == ["first", *["x"] * 5]


async def test_h15_every_subscriber_sees_every_message(app: Connection) -> None:
    for name in ("a", "b", "c"):
        await register(app, name)
    await send(app, "1", "2", "3", "4")
    await drain(app)
    assert len(await seen(app)) == 12
    for name in ("a", "b", "c"):
        assert await seen(app, name) == ["1", "2", "3", "4"]
    assert await calls(app) == (12, 0)


async def test_h16_a_message_is_gone_though_its_procedure_reads_none(app: Connection) -> None:
    await app.execute("create table app.calls ()")
    await app.execute(
        "create procedure app.blind() language sql as 'insert into app.calls default values'"
    )
    await app.execute("select messages.register('s', 'blind', 'app.blind')")
    await send(app, "x")
    for _ in range(2):
        await drain(app)
        assert await app.fetchval("select count(*) from app.calls") == 1


async def test_h16_a_killed_broker_leaves_each_message_with_one_effect(
    app: Connection, connect: Connect
) -> None:
    """Not at most once: what a killed call has done is undone, and done again once."""
    await register(app, "a", "perform pg_advisory_xact_lock(1);")
    await send(app, "x")
    await app.execute("select pg_advisory_lock(1)")
    broker = await connect()
    task = asyncio.create_task(broker.execute("call messages.run_broker()"))
    await until_blocked(app, broker)
    await terminate(app, broker)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await task
    assert await seen(app) == []
    await app.execute("select pg_advisory_unlock(1)")
    for _ in range(2):
        await drain(await connect())
        assert await seen(app) == ["x"]
    assert await calls(app) == (1, 0)
    assert await app.fetchval("select messages.dead_count('s')") == 0


async def test_h17_the_value_is_the_same_in_a_call(app: Connection) -> None:
    await register(app, "a", "insert into app.seen (value) values (messages.dequeue(null::text));")
    await send(app, "x")
    await drain(app)
    assert await seen(app) == ["x", "x"]


async def test_h18_there_is_no_value_outside(app: Connection) -> None:
    with pytest.raises(asyncpg.PostgresError) as error:
        await app.execute("select messages.dequeue(null::text)")
    assert error.value.sqlstate == "55000"


async def test_h19_an_error_is_of_one_call(app: Connection) -> None:
    for name in ("h1", "h2", "h3"):
        body = "if messages.dequeue(null::text) = '3' then raise exception 'three'; end if;"
        await register(app, name, body if name == "h2" else "")
    await send(app, "1", "2", "3", "4")
    notices = Notices(app)
    await drain(app)
    assert await seen(app, "h1") == await seen(app, "h3") == ["1", "2", "3", "4"]
    assert await seen(app, "h2") == ["1", "2", "4"]
    # A warning of the broker's session is a line in the server's log.
    [line] = await notices.received("WARNING")
    assert "of subscriber h2 in stream s" in line
    assert "three" in line
    await drain(app)
    assert await seen(app, "h2") == ["1", "2", "4"]
    assert await notices.received("WARNING") == []
    # It stays registered.
    await send(app, "5")
    await drain(app)
    assert await seen(app, "h2") == ["1", "2", "4", "5"]


async def test_h20_a_procedure_has_no_arguments(app: Connection) -> None:
    await app.execute("create procedure app.p(a integer) language sql as 'select'")
    await app.execute("create function app.f() returns void language sql as 'select'")
    for name in ("app.p", "app.f"):
        with pytest.raises(InvalidArgumentError):
            await app.execute("select messages.register('s', 'x', $1)", name)


async def test_h21_registering_twice_and_unknown_names(app: Connection) -> None:
    assert await register(app, "a")
    assert not await register(app, "a")
    with pytest.raises(DatabaseError):
        await app.execute("select messages.register('nope', 'a', 'app.a')")
    assert not await app.fetchval("select messages.unregister('s', 'nope')")


async def test_h22_a_procedure_may_use_streams_and_queues(app: Connection) -> None:
    await declare(app, "other")
    await register(
        app,
        "a",
        "perform messages.create_stream('t'); perform messages.register('t', 'other', 'app.other');"
        "perform messages.publish('t', '\"next\"'); perform messages.create_queue('q'); "
        "perform messages.publish('q', '1'); perform messages.drop_queue('q', true); "
        "perform messages.drop_stream('s', true);",
    )
    await send(app, "x")
    assert not await drain(app)
    assert await seen(app) == ["x", "next"]
    assert await app.fetchval("select array_agg(name) from messages.stream") == ["t"]


async def test_h22_the_broker_stays_alive_whatever_a_procedure_does(
    app: Connection, connect: Connect
) -> None:
    await app.execute("select messages.create_stream('t')")
    await declare(app, "other")
    await register(
        app,
        "a",
        "perform messages.register('t', 'other', 'app.other'); "
        "perform messages.publish('t', '\"next\"'); "
        "perform messages.unregister('s', 'a'); perform messages.drop_stream('s', true);",
    )
    async with running(app, await connect()) as pid:
        await send(app, "x")
        await until_seen(app, "x", "next")
        await send(app, "later", stream="t")
        await until_seen(app, "later")
        assert tuple(await status(app)) == (True, pid)
        await app.execute("select messages.stop_broker()")
    assert await seen(app) == ["x", "next", "later"]


@pytest.mark.parametrize("at", ["idle", "busy"])
async def test_h23_a_broker_is_started_and_stopped(
    app: Connection, connect: Connect, at: str
) -> None:
    broker = await connect()
    await register(app, "a", "perform pg_advisory_xact_lock(1);" if at == "busy" else "")
    await send(app, "x")
    # Explicitly: neither a procedure nor an event starts one, and no other session is taken for it.
    assert tuple(await status(app)) == (False, None)
    assert not await app.fetchval("select messages.stop_broker()")
    await app.execute("select pg_advisory_lock(1)")
    task = asyncio.create_task(broker.execute("call messages.run_broker()"))
    await until(lambda: is_running(app), "it runs")
    pid = broker.get_server_pid()
    state = await status(app)
    assert (state["running"], state["pid"]) == (True, pid)
    [process] = await app.fetch(
        "select pid, datname = current_database() as here, usename = current_user as ours "
        "from pg_stat_activity where application_name = 'notifyq broker'"
        "and datname = current_database()"
    )
    assert tuple(process) == (pid, True, True)
    if at == "busy":
        await until_blocked(app, broker)
    else:
        await until_seen(app, "x")
    # It returns although the procedure cannot end: this session has its lock.
    assert await app.fetchval("select messages.stop_broker()")
    assert tuple(await status(app)) == (False, None)
    with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError):
        await task
    assert not await app.fetchval("select messages.stop_broker()")
    await app.execute("select pg_advisory_unlock_all()")
    await drain(await connect())
    assert await seen(app) == ["x"]


async def status(app: Connection) -> asyncpg.Record:
    return await one_row(app, "select running, pid from messages.status_broker()")


async def test_h24_without_pg_cron_a_start_is_an_error(app: Connection) -> None:
    with pytest.raises(asyncpg.FeatureNotSupportedError, match="pg_cron does not serve") as error:
        await app.execute("select messages.start_broker()")
    assert error.value.sqlstate == "0A000"
    assert "notifyq broker" in str(error.value.hint)
    assert not await is_running(app)


@pytest.fixture
def narrow_server() -> Iterator[Server]:
    """Give a server whose database pg_cron serves, with few slots of each kind."""
    slots = {"max_worker_processes": "3", "cron.max_running_jobs": "3", "max_connections": "12"}
    with kept_server(**slots) as server:
        server.start()
        yield server


JOBS = "select count(*) from cron.job where jobname = 'notifyq broker'"


@pytest.mark.cron
async def test_h24_a_start_without_a_free_slot_is_an_error(narrow_server: Server) -> None:
    dsn = narrow_server.dsn
    async with contextlib.AsyncExitStack() as stack:
        app = await stack.enter_async_context(session(dsn))
        await install(app)
        await app.execute("select cron.unschedule(jobid) from cron.job")

        async def refused() -> str:
            with pytest.raises(asyncpg.PostgresError) as error:
                await app.execute("select messages.start_broker()")
            assert await app.fetchval(JOBS) == 0
            assert not await is_running(app)
            return str(error.value.sqlstate)

        # No background worker: a parallel query that waits has the last one.
        await app.execute(
            "create function public.hold() returns void language sql parallel safe "
            "as 'select pg_advisory_xact_lock_shared(1)'; select pg_advisory_lock(1)"
        )
        query = await stack.enter_async_context(session(dsn))
        await query.execute(f"set {await parallel(app)} = on")
        held = asyncio.create_task(query.execute("select public.hold()"))
        await until(lambda: has_waiter(app), "the worker waits")
        assert await refused() == "53400"
        await app.execute("select pg_advisory_unlock(1)")
        await held
        await until(lambda: has_no_worker(app), "the worker is gone")
        # No job of pg_cron: one slot is left for maintenance.
        async with contextlib.AsyncExitStack() as jobs:
            for _ in range(2):
                job = session(dsn, server_settings={"application_name": "pg_cron"})
                await jobs.enter_async_context(job)
            assert await refused() == "53400"
        # No connection.
        async with contextlib.AsyncExitStack() as others:
            for _ in range(7):
                await others.enter_async_context(session(dsn))
            assert await refused() == "53300"
        await until(lambda: are_alone(app, query), "the others are gone")
        assert await app.fetchval("select messages.start_broker()")
        assert await app.fetchval(JOBS) == 1
        await app.execute("select messages.stop_broker()")


async def parallel(app: Connection) -> str:
    """Return how this version calls the setting that runs every query in a worker."""
    name: str = await app.fetchval(
        "select name from pg_settings where name in ('force_parallel_mode', 'debug_parallel_query')"
    )
    return name


async def has_waiter(app: Connection) -> bool:
    return bool(await app.fetchval("select exists (select from pg_locks where not granted)"))


async def has_no_worker(app: Connection) -> bool:
    return bool(
        await app.fetchval(
            "select not exists "
            "(select from pg_stat_activity where backend_type = 'parallel worker')"
        )
    )


async def are_alone(app: Connection, *known: Connection) -> bool:
    pids = [each.get_server_pid() for each in (app, *known)]
    return bool(
        await app.fetchval(
            "select not exists (select from pg_stat_activity "
            "where backend_type = 'client backend' and pid <> all ($1))",
            pids,
        )
    )


async def test_h25_a_second_broker_is_refused(app: Connection, connect: Connect) -> None:
    async with running(app, await connect()):
        for statement in ("select messages.start_broker()", "call messages.run_broker()"):
            with pytest.raises(asyncpg.ObjectInUseError) as error:
                await app.execute(statement)
            assert error.value.sqlstate == "55006"
        await app.execute("select messages.stop_broker()")


@pytest.mark.parametrize("entry", ["postgres:nodb", "nobody:{here}"])
def test_h26_an_entry_that_cannot_be_started_ends_the_start(
    shared_database: str,  # noqa: F811
    entry: str,
) -> None:
    here = shared_database.rpartition("/")[2]
    bad = entry.format(here=here)
    ended = subprocess.run(
        [sys.executable, "-m", "notifyq", "broker", "--dsn", shared_database,
         "--autostart", f"postgres:{here}, {bad}"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert bad in ended.stderr


async def test_h27_events_are_delivered_after_a_procedure_has_ended_its_session(
    app: Connection, connect: Connect
) -> None:
    await register(app, "a")
    deadly = "if messages.dequeue(null::text) = 'die' then perform pg_terminate_backend("
    deadly += "pg_backend_pid()); perform pg_sleep(5); end if;"
    await register(app, "deadly", deadly)
    await send(app, "die", "x")
    for _ in range(3):
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await drain(await connect())
    await drain(app)
    assert await seen(app, "a") == ["die", "x"]
    assert await seen(app, "deadly") == ["x"]
    [dead] = await app.fetch("select subscriber, message, details from messages.dead_message")
    assert (dead["subscriber"], dead["message"]) == ("deadly", "die")
    assert "the session ended each time that app.deadly was called" in dead["details"]
    row = await one_row(app, "select * from messages.subscriber_procedure where failed > 0")
    assert (row["subscriber"], row["handled"], row["failed"], row["batch"]) == (
        "deadly", 1, 1, None,
    )  # fmt: skip


async def test_h27_a_broker_is_back_after_the_end_of_its_session(
    app: Connection,
    database: str,  # noqa: F811
) -> None:
    await register(app, "a")
    async with serving(database, [], NO_POLL):
        await send(app, "before")
        await until_seen(app, "before")
        pid = (await status(app))["pid"]
        assert await app.fetchval("select pg_terminate_backend($1)", pid)
        await send(app, "later")
        await until_seen(app, "later")
        assert (await status(app))["pid"] != pid
    assert await seen(app) == ["before", "later"]


async def test_h28_queues_and_consumers_are_rows(app: Connection, second_database: str) -> None:
    await register(app, "a")
    assert await app.fetchval("select array_agg(name) from messages.stream") == ["s"]
    assert await app.fetchval("select array_agg(name) from messages.subscription") == ["a"]
    async with session(second_database) as elsewhere:
        for table in ("stream", "subscription"):
            assert await elsewhere.fetchval(f"select count(*) from messages.{table}") == 0


async def test_h29_the_order_is_that_of_the_session(app: Connection) -> None:
    await register(app, "a")
    await send(app, "1", "2", "3", "4", "5")
    await drain(app)
    assert await seen(app) == ["1", "2", "3", "4", "5"]


async def test_h29_the_order_in_a_ring_is_that_of_the_session(app: Connection) -> None:
    await app.execute(RING)
    for number in range(1, 6):
        await app.execute("select messages.publish('ring', to_jsonb($1::integer))", number)
    taken = await app.fetch("select message from messages.take('ring', 5)")
    assert [row["message"] for row in taken] == [1, 2, 3, 4, 5]
