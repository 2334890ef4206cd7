"""What the broker does in the database: registration, calls, errors, ends of its session."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from broker.procedures import (
    declare,
    drain,
    is_running,
    prepare,
    register,
    seen,
    send,
)
from notifyq.errors import InvalidArgumentError
from support.database import Connect, Connection, until, until_blocked


@pytest.fixture
async def app(connection: Connection) -> Connection:
    await prepare(connection, "s")
    return connection


async def test_a_procedure_with_arguments_is_refused(app: Connection) -> None:
    await app.execute(
        "create procedure app.one(a integer) language sql as 'select';"
        "create procedure app.back(inout a integer) language sql as 'select 1';"
        "create function app.fn() returns void language sql as 'select'"
    )
    for name, complaint in (
        ("app.one", "has arguments"),
        ("app.one(integer)", "has arguments"),
        ("app.back", "has arguments"),
        ("app.fn", "is no procedure"),
        ("app.nope", "there is no procedure"),
        ("nope", "there is no procedure"),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            await app.execute("select messages.register('s', 'x', $1)", name)
    assert await app.fetchval("select count(*) from messages.subscription") == 0


async def test_a_procedure_is_found_by_the_search_path_of_the_registering_session(
    app: Connection,
) -> None:
    await declare(app, "near")
    await app.execute("set search_path = app")
    assert await app.fetchval("select messages.register('s', 'x', 'near')")
    await app.execute("set search_path = public")
    assert await app.fetchval("select procedure from messages.subscriber_procedure") == "app.near"
    assert not await app.fetchval("select messages.register('s', 'x', 'app.near()')")
    await declare(app, "other")
    with pytest.raises(InvalidArgumentError, match=r"has procedure app\.near"):
        await app.execute("select messages.register('s', 'x', 'app.other')")


async def test_unsubscribe_and_drop_stream_unregister(app: Connection) -> None:
    await register(app, "a")
    await register(app, "b")
    assert await app.fetchval("select messages.unregister('s', 'a')")
    assert not await app.fetchval("select messages.unregister('s', 'a')")
    assert await app.fetchval("select array_agg(name) from messages.subscription") == ["b"]
    await app.execute("select messages.unsubscribe('s', 'b')")
    assert await app.fetchval("select count(*) from messages.subscriber_procedure") == 0
    await register(app, "b")
    assert await app.fetchval("select messages.unregister('s', 'b', unsubscribe => false)")
    assert await app.fetchval("select array_agg(name) from messages.subscription") == ["b"]
    await register(app, "b")
    await app.execute("select messages.drop_stream('s', true)")
    assert await app.fetchval("select count(*) from messages.subscriber_procedure") == 0


async def test_an_event_that_fails_at_the_commit_is_found_and_dead(
    app: Connection, connect: Connect
) -> None:
    await app.execute(
        "create table app.parent (id text primary key); create table app.child "
        "(id text references app.parent deferrable initially deferred)"
    )
    await app.execute("insert into app.parent values ('1'), ('3')")
    await register(app, "late", "insert into app.child values (messages.dequeue(null::text));")
    await send(app, "1", "2", "3")
    broker = await connect()
    for _ in range(3):
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await drain(broker)
    await drain(broker)
    assert await seen(app) == ["1", "3"]
    assert await app.fetchval("select message from messages.dead_message") == "2"


async def test_a_procedure_does_not_see_the_session_state_of_another(app: Connection) -> None:
    await register(
        app,
        "messy",
        "set role notifyq_reader; set search_path = pg_temp; "
        "perform set_config('notifyq.event', '{}', false);",
    )
    await register(app, "after", "insert into app.seen (value) values (current_user);")
    await send(app, "1", "2")
    before = await app.fetchval("show search_path")
    await drain(app)
    assert await seen(app, "messy") == ["1", "2"]
    assert await app.fetchval("select array_agg(value) from app.seen where by is null") == [
        "postgres",
        "postgres",
    ]
    assert await app.fetchval("show search_path") == before
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError):
        await app.execute("select messages.dequeue(null::text)")


async def test_a_procedure_may_end_its_own_subscription_and_stream(app: Connection) -> None:
    await app.execute("select messages.create_stream('t')")
    await register(app, "leaves", "perform messages.unregister('s', 'leaves');")
    await register(app, "drops", "perform messages.drop_stream('t', true);", stream="t")
    await register(app, "seeks", "perform messages.seek('s', 'seeks', 'now');")
    await send(app, "1", "2", "3")
    await send(app, "4", "5", stream="t")
    assert not await drain(app)
    assert await seen(app, "leaves") == ["1"]
    assert await seen(app, "drops") == ["4"]
    assert await seen(app, "seeks") == ["1"]
    await send(app, "6")
    await drain(app)
    assert await seen(app, "seeks") == ["1", "6"]


async def test_a_missing_or_foreign_procedure_is_skipped_and_reported(
    app: Connection,
) -> None:
    await register(app, "gone")
    await register(app, "there")
    await send(app, "1")
    await app.execute("drop procedure app.gone()")
    await drain(app)
    assert await seen(app) == ["1"]
    obstacles = "select obstacles from messages.status_broker()"
    assert await app.fetchval(obstacles) == ["there is no procedure app.gone"]
    await declare(app, "gone")
    await app.execute("alter procedure app.gone() owner to notifyq_admin")
    await drain(app)
    [obstacle] = await app.fetchval(obstacles)
    assert "belongs to notifyq_admin now" in obstacle
    assert await seen(app) == ["1"]
    await app.execute("alter procedure app.gone() owner to postgres")
    await drain(app)
    assert await seen(app, "gone") == ["1"]


async def test_transactions_are_short_though_batches_are_not(
    app: Connection, connect: Connect
) -> None:
    """What was handled is there for others while the rest of the batch is yet to come."""
    broker = await connect()
    blocks = "perform pg_advisory_xact_lock(1) from app.seen where value = '2';"
    await register(app, "slow", f"perform pg_sleep(0.3); {blocks}")
    await send(app, "1", "2", "3", "4")
    await app.execute("select pg_advisory_lock(1)")
    running = asyncio.create_task(drain(broker))
    await until_blocked(app, broker)
    assert await seen(app) == ["1"]
    await app.execute("select pg_advisory_unlock(1)")
    await running
    assert await seen(app) == ["1", "2", "3", "4"]


async def test_an_idle_broker_holds_no_snapshot_for_long_and_can_be_stopped(
    app: Connection, connect: Connect
) -> None:
    await register(app, "a")
    broker = await connect()
    running = asyncio.create_task(broker.fetch("call messages.run_broker()"))

    async def is_known() -> bool:
        since = await app.fetchval("select started_at from messages.status_broker()")
        return since is not None

    await until(is_known, "the broker runs")
    [row] = await app.fetch(
        "select s.*, a.application_name from messages.status_broker() as s "
        "join pg_stat_activity as a using (pid)"
    )
    assert (row["pid"], row["application_name"]) == (broker.get_server_pid(), "notifyq broker")
    number = int(await app.fetchval("select pg_current_xact_id()::text"))

    async def has_passed() -> bool:
        xmin = await app.fetchval(
            "select backend_xmin::text from pg_stat_activity where pid = $1", row["pid"]
        )
        return xmin is None or int(xmin) > number

    await until(has_passed, "the snapshot is given up")
    with pytest.raises(asyncpg.ObjectInUseError, match="runs in this database already") as second:
        await (await connect()).execute("call messages.run_broker()")
    assert second.value.sqlstate == "55006"
    async with asyncio.timeout(20):
        assert await app.fetchval("select messages.stop_broker()")
        assert [it["stopped"] for it in await running] == [True]
    assert not await is_running(app)
    assert not await app.fetchval("select messages.stop_broker()")


async def is_called(app: Connection) -> bool:
    """Whether a procedure sleeps, not the broker: longer than it does at first."""
    return bool(
        await app.fetchval(
            "select count(*) from pg_stat_activity where wait_event = 'PgSleep' "
            "and xact_start < clock_timestamp() - interval '0.1 s' "
            "and datname = current_database()"
        )
    )


async def test_a_stop_ends_a_slow_procedure(app: Connection, connect: Connect) -> None:
    await register(app, "stuck", "perform pg_sleep(60);")
    await send(app, "1")
    running = asyncio.create_task(drain(await connect()))

    await until(lambda: is_called(app), "the procedure is called")
    async with asyncio.timeout(20):
        assert await app.fetchval("select messages.stop_broker(patience => '0.1 s')")
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await running
    assert not await is_running(app)
    await declare(app, "stuck")
    await drain(app)
    assert await seen(app) == ["1"]


async def test_a_cancelled_call_releases_the_broker_lock(app: Connection, connect: Connect) -> None:
    # Not while it is idle: a cancellation that meets a commit leaves the lock to the session.
    await register(app, "stuck", "perform pg_sleep(60);")
    await send(app, "1")
    broker = await connect()
    running = asyncio.create_task(drain(broker))
    await until(lambda: is_called(app), "the procedure is called")
    await app.execute("select pg_cancel_backend($1)", broker.get_server_pid())
    with pytest.raises(asyncpg.QueryCanceledError):
        await running
    assert not await is_running(app)
    await declare(app, "stuck")
    assert not await drain(await connect())
    assert await seen(app) == ["1"]


async def test_stop_broker_frees_the_lock_that_a_cancelled_call_left(
    app: Connection, connect: Connect
) -> None:
    left = await connect()
    await left.execute("select pg_advisory_lock(hashtextextended(current_user, 7305427011))")
    assert await is_running(app)
    assert await app.fetchval("select messages.stop_broker(patience => '0 s')")
    await until(left.is_closed, "the client sees that its session was ended")
    assert not await is_running(app)
    assert not await drain(await connect())


async def test_events_of_any_json_are_read_as_values(app: Connection) -> None:
    await app.execute("create table app.values (a integer, b jsonb, c numeric, d boolean)")
    await app.execute("""
        create procedure app.read() language plpgsql as $$
        begin
          insert into app.values values (
            case jsonb_typeof((messages.dequeued()).message)
              when 'number' then messages.dequeue(null::integer) end,
            messages.dequeue(null::jsonb),
            case jsonb_typeof((messages.dequeued()).message)
              when 'number' then messages.dequeue(null::numeric) end,
            case jsonb_typeof((messages.dequeued()).message)
              when 'boolean' then messages.dequeue(null::boolean) end
          );
        end $$;
        select messages.register('s', 'read', 'app.read');
    """)
    await send(app, 5, True, {"a": [1]})
    await drain(app)
    assert await app.fetchval("select count(*) from messages.dead_message") == 0
    assert [tuple(row) for row in await app.fetch("select * from app.values")] == [
        (5, 5, 5, None),
        (None, True, None, True),
        (None, {"a": [1]}, None, None),
    ]


async def test_all_columns_of_the_event_are_available(app: Connection) -> None:
    await app.execute("""
        create table app.events of messages.handled_event;
        create procedure app.keep() language sql as
          'insert into app.events select (d).* from messages.dequeued() as d';
        select messages.register('s', 'keep', 'app.keep');
    """)
    id_ = await app.fetchval(
        "select messages.publish('s', '{\"a\": 1.50}', type => 'paid', key => 'k', "
        "headers => '{\"h\": 1}')"
    )
    await drain(app)
    [event] = await app.fetch(
        "select e.*, e.message::text as text, e.created_at = v.created_at as is_exact "
        "from app.events as e join messages.event as v using (id)"
    )
    assert (event["stream"], event["subscriber"], event["id"]) == ("s", "keep", id_)
    assert (event["type"], event["key"], event["headers"]) == ("paid", "k", {"h": 1})
    assert (event["text"], event["retries"], event["is_exact"]) == ('{"a": 1.50}', None, True)
