"""Procedures run as who registered them: nobody can have one run with rights that are another's."""

from __future__ import annotations

import asyncpg
import pytest

from broker.procedures import drain
from security.conftest import Enter, role_name
from support.database import Connection, one_row

Denied = asyncpg.InsufficientPrivilegeError

RECORD = "insert into shared.calls values (session_user, current_user)"


@pytest.fixture
async def shared(connection: Connection) -> Connection:
    """Give a superuser's session; a schema where all may create, with a table for all."""
    await connection.execute("""
        create schema shared;
        grant create, usage on schema shared to public;
        create table shared.calls (of name, by name);
        grant insert on shared.calls to public;
        select messages.create_stream('s');
    """)
    return connection


async def test_a_broker_calls_procedures_registered_by_its_role(
    shared: Connection, enter: Enter
) -> None:
    worker = await enter("worker")
    for each, name in ((worker, "of_worker"), (shared, "of_admin")):
        await each.execute(f"create procedure shared.{name}() language sql as '{RECORD}'")
        await each.execute("select messages.register('s', $1, $2)", name, f"shared.{name}")
    await shared.execute("select messages.publish('s', '1')")
    await drain(worker)
    calls = "select * from shared.calls"
    assert [tuple(it) for it in await shared.fetch(calls)] == [(role_name("worker"),) * 2]
    await drain(shared)
    assert [tuple(it) for it in await shared.fetch(calls)][1:] == [("postgres", "postgres")]


async def test_a_session_with_set_role_is_not_a_broker_of_that_role(shared: Connection) -> None:
    """Its procedures could take the other role off again."""
    await shared.execute(f"set role {role_name('worker')}")
    with pytest.raises(Denied, match="must be a session of that role"):
        await drain(shared)
    await shared.execute("reset role")


async def test_code_that_others_run_cannot_register_for_them(
    shared: Connection, enter: Enter
) -> None:
    """ANALYZE by a superuser runs the expression of an index as the owner of the table."""
    worker = await enter("worker")
    await worker.execute("""
        create procedure shared.evil() language sql as 'select';
        create table shared.bait (a integer);
        insert into shared.bait values (1);
        create function shared.trap(a integer) returns integer language plpgsql immutable as $$
        begin
          if session_user = 'postgres' then
            perform messages.register('s', 'evil', 'shared.evil');
          end if;
          return a;
        end $$;
        create index on shared.bait (shared.trap(a));
    """)
    await shared.execute("analyze shared.bait")
    found = await shared.fetch("select registrar from messages.subscriber_procedure")
    assert {row["registrar"] for row in found} <= {role_name("worker")}


async def test_a_procedure_that_another_role_replaced_is_not_called(
    shared: Connection, enter: Enter
) -> None:
    worker, mallory = await enter("worker"), await enter("mallory")
    await shared.execute("create procedure shared.mine() language sql as 'select'")
    await shared.execute("grant execute on procedure shared.mine() to public")
    await worker.execute("select messages.register('s', 'mine', 'shared.mine')")
    await shared.execute("select messages.publish('s', '1')")
    await shared.execute("drop procedure shared.mine()")
    await mallory.execute(f"create procedure shared.mine() language sql as '{RECORD}'")
    await drain(worker)
    assert await shared.fetchval("select count(*) from shared.calls") == 0
    [obstacle] = await worker.fetchval("select obstacles from messages.status_broker()")
    assert f"belongs to {role_name('mallory')} now" in obstacle


async def test_only_the_registrar_controls_a_subscription(shared: Connection, enter: Enter) -> None:
    worker, mallory = await enter("worker"), await enter("mallory")
    await shared.execute("create procedure shared.p() language sql as 'select'")
    await shared.execute("select messages.register('s', 'p', 'shared.p')")
    for statement in (
        "select messages.unregister('s', 'p')",
        "select notifyq.want_broker('postgres', false)",
        "select messages.stop_broker('postgres')",
    ):
        with pytest.raises(Denied):
            await worker.execute(statement)
        with pytest.raises(Denied):
            await mallory.execute(statement)
    [subscription] = await shared.fetchrow(  # type: ignore[misc]
        "select subscription from messages.subscriber_procedure"
    )
    # Neither with a batch that is none, nor with the one that is open.
    event = await shared.fetchval("select messages.publish('s', '1')")
    turn = await one_row(shared, "select batch, act from notifyq.broker_next(1, null)")
    assert turn["act"] == "open"
    note = "select notifyq.broker_note($1, $2, $3, $4)"
    for batch in (1, turn["batch"]):
        assert not await worker.fetchval(note, subscription, batch, event, "no")
        await worker.execute(
            "select notifyq.broker_done($1, $2, 9, 9, 9, true)", subscription, batch
        )
    state = "select batch, handled, failed from messages.subscriber_procedure"
    assert tuple(await shared.fetchrow(state) or ()) == (turn["batch"], 0, 0)
    assert await shared.fetchval("select messages.dead_count()") == 0
    # The registrar continues with this batch.
    assert not await shared.fetchval(note, subscription, 1, event, None)
    assert await shared.fetchval(note, subscription, turn["batch"], event, None)


async def test_a_broker_takes_no_turn_for_another(shared: Connection, enter: Enter) -> None:
    worker = await enter("worker")
    await shared.execute("create procedure shared.p() language sql as 'select'")
    await shared.execute("select messages.register('s', 'p', 'shared.p')")
    await shared.execute("select messages.publish('s', '1')")
    next_turn = "select act from notifyq.broker_next(1, null)"
    assert await worker.fetchval(next_turn) == "idle"
    assert await shared.fetchval(next_turn) == "open"


async def test_a_role_that_holds_the_keys_of_a_broker_does_not_stop_it(
    shared: Connection, enter: Enter
) -> None:
    worker, mallory = await enter("worker"), await enter("mallory")
    for key in (7305427011, 7305427012):
        await mallory.execute(
            "select pg_advisory_lock(hashtextextended($1, $2))", role_name("worker"), key
        )
    await worker.execute(f"create procedure shared.p() language sql as '{RECORD}'")
    await worker.execute("select messages.register('s', 'p', 'shared.p')")
    await shared.execute("select messages.publish('s', '1')")
    assert not await drain(worker)
    assert await shared.fetchval("select count(*) from shared.calls") == 1
