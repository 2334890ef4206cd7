"""What QHB's built-in queue promises, number by number; see docs/coming-from/qhb.md."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest

from broker.conftest import database, shared_database  # noqa: F401  fixtures
from broker.procedures import declare, drain, is_running, prepare, register, seen, send
from database import until
from notifyq.errors import DatabaseError, InvalidArgumentError

if TYPE_CHECKING:
    from database import Connect, Connection

EXACT = {
    "bytea": r"'\x00ff'",
    "float8": "'NaN'",
    "double precision": "0.1::float8 + 0.2::float8",
    "numeric": "1.500",
    "timestamptz": "'infinity'",
    "int[]": "'{1,null,3}'",
    "jsonb": """'{"a": [1.50]}'""",
    "int4range": "'[1,5)'",
}


@pytest.fixture
async def app(connection: Connection) -> Connection:
    await prepare(connection, "s")
    return connection


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


async def test_h4_reading_another_type_is_an_error_of_that_procedure_alone(
    app: Connection,
) -> None:
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
    await drain(app)
    assert await seen(app) == ["5"]
    [dead] = await app.fetch("select subscriber, details from messages.dead_message")
    assert dead["subscriber"] == "wrong"
    assert "SQLSTATE 42804" in dead["details"]


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
    for number, kind in enumerate(EXACT):
        assert await app.fetchval(f"select is_exact from app.t{number}"), kind


async def test_h6_null_is_a_value(app: Connection) -> None:
    await typed(app, "r", "text")
    await register(app, "a", stream="r")
    await app.execute("select messages.enqueue('r', null::text)")
    await drain(app)
    assert await seen(app) == [None]


async def test_h11_to_h13_only_what_is_committed_is_delivered(
    app: Connection, connect: Connect
) -> None:
    publisher = await connect()
    transaction = publisher.transaction()
    await transaction.start()
    assert await register(publisher, "a")
    await transaction.commit()
    for end in ("rollback", "commit"):
        await publisher.execute("begin")
        await send(publisher, f"{end} 1")
        await publisher.execute("savepoint p")
        await send(publisher, f"{end} 2")
        await publisher.execute("rollback to p")
        await send(publisher, f"{end} 3")
        await drain(app)
        assert await seen(app) == []
        await publisher.execute(end)
    await drain(app)
    assert await seen(app) == ["commit 1", "commit 3"]


async def test_h14_and_h15_every_subscriber_sees_every_message_later(app: Connection) -> None:
    for name in ("a", "b", "c"):
        await register(app, name, "perform pg_sleep(0.01);")
    await send(app, "1", "2", "3", "4")
    assert await seen(app) == []
    await drain(app)
    assert len(await seen(app)) == 12


async def test_h17_and_h18_the_value_is_the_same_in_a_call_and_none_outside(
    app: Connection,
) -> None:
    await register(app, "a", "insert into app.seen (value) values (messages.dequeue(null::text));")
    await send(app, "x")
    await drain(app)
    assert await seen(app) == ["x", "x"]
    with pytest.raises(asyncpg.PostgresError) as error:
        await app.execute("select messages.dequeue(null::text)")
    assert error.value.sqlstate == "55000"


async def test_h19_an_error_is_of_one_call(app: Connection) -> None:
    for name in ("h1", "h2", "h3"):
        body = "if messages.dequeue(null::text) = '3' then raise exception 'three'; end if;"
        await register(app, name, body if name == "h2" else "")
    await send(app, "1", "2", "3", "4")
    await drain(app)
    assert await seen(app, "h1") == await seen(app, "h3") == ["1", "2", "3", "4"]
    assert await seen(app, "h2") == ["1", "2", "4"]
    await drain(app)
    assert await seen(app, "h2") == ["1", "2", "4"]


async def test_h20_and_h21_registration(app: Connection) -> None:
    await app.execute("create procedure app.p(a integer) language sql as 'select'")
    with pytest.raises(InvalidArgumentError):
        await app.execute("select messages.register('s', 'p', 'app.p')")
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


async def test_h23_and_h25_one_broker_that_is_started_and_stopped(
    app: Connection, connect: Connect
) -> None:
    assert not await is_running(app)
    broker = await connect()
    task = asyncio.create_task(broker.execute("call messages.run_broker()"))
    await until(lambda: is_running(app), "it runs")
    assert await app.fetchval("select pid from messages.status_broker()") == (
        broker.get_server_pid()
    )
    for statement in ("select messages.start_broker()", "call messages.run_broker()"):
        with pytest.raises(asyncpg.ObjectInUseError) as error:
            await app.execute(statement)
        assert error.value.sqlstate == "55006"
    async with asyncio.timeout(2):
        await app.execute("select messages.stop_broker()")
    await task
    assert not await is_running(app)


def test_h26_an_entry_that_cannot_be_started_ends_the_start(shared_database: str) -> None:  # noqa: F811
    ended = subprocess.run(
        [sys.executable, "-m", "notifyq", "broker", "--dsn", shared_database,
         "--autostart", "postgres:nodb"],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "postgres:nodb" in ended.stderr


async def test_h28_queues_and_consumers_are_rows(app: Connection) -> None:
    await register(app, "a")
    assert await app.fetchval("select array_agg(name) from messages.stream") == ["s"]
    assert await app.fetchval("select array_agg(name) from messages.subscription") == ["a"]


async def test_h29_the_order_is_that_of_the_session(app: Connection) -> None:
    await register(app, "a")
    await send(app, "1", "2", "3", "4", "5")
    await drain(app)
    assert await seen(app) == ["1", "2", "3", "4", "5"]
