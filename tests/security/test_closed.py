"""What a queue or stream that is closed to a role gives it: nothing, by any function."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from notifyq.errors import DatabaseError
from security.conftest import Enter, role_name
from support.database import Connection, one_row

TAKES = [
    *("stream", "queue", "name", "names", "queues", "streams", "batch", "id", "ids", "event"),
    *("message_id", "subscription", "subscriber", "relation", "after", "first_id"),
]
# Names, policies and counts are no secrets; the rest is of no use for what is not the caller's.
OPEN = {
    *("queue_info", "stream_info", "backlog", "throughput"),
    *("payload_schema", "payload_type", "captures", "forwards"),
    # Of the session itself, and hints for workers.
    *(
        "unsuppress",
        "unsuppress_streams",
        "leave_wake_slots",
        "take_wake_slots",
        "worker_heartbeat",
        "next_due",
        "rate_limit_wait",
        "is_duplicate",
    ),
    "wake_all",
    # Of the role that has begun or registered it, or of the owner of the table.
    *("begin_load", "begin_attempt", "commit_load", "drop_attempts", "load_rejects", "drop_load"),
    *("uncapture", "unregister", "broker_next", "broker_note", "broker_done"),
    # Checks the queues of what was inserted.
    "check_inserted",
}
# Refused with NQ007. Of `q` and `st`, a queue and a stream that are closed; `m` is a message of q
# that is locked with token 1, `b` an open batch of st by subscriber s, `e` an event of it.
REFUSED = {
    "publisher": {
        "publish": "select messages.publish('q', '1')",
        "publish_many": "select messages.publish_many('q', array['1']::jsonb[])",
        "enqueue": "select messages.enqueue('tq', 1)",
        "admit_event": "select notifyq.admit_event('st', '1', '{{}}')",
        "check_targets": "select notifyq.check_targets('{{q}}')",
        "capture": "select messages.capture('t', 'st')",
        "capture_sql": "select messages.capture_sql('t', 'st')",
        "result": "select messages.result({m})",
        "await_result": "select messages.await_result({m})",
        "progress": "select messages.progress({m})",
        "output": "select messages.output({m})",
        "signal": "select messages.signal('s', '1', {m})",
        "receive_many": "select notifyq.receive_many('s', '{{1}}', '{{q}}', array['1']::jsonb[], "
        "'{{0}}', '{{null}}', array['{{}}']::jsonb[], '{{null}}', '{{null}}', '{{null}}', "
        "'{{null}}')",
        "receive_dead": "select notifyq.receive_dead('s', '1', 'q', '1', null, '{{}}', null, 'd')",
    },
    "worker": {
        "result": "select messages.result({m})",
        "await_result": "select messages.await_result({m})",
        "progress": "select messages.progress({m})",
        "output": "select messages.output({m})",
        "signal": "select messages.signal('s', '1', {m})",
        "step": "select messages.step({m}, 1, 'a')",
        "record_step": "select notifyq.record_step({m}, 1, 'a', '1')",
        "record_steps": "select notifyq.record_steps(array[{m}], '{{1}}', '{{a}}', "
        "array['1'::jsonb], '{{f}}')",
        "recorded_steps": "select notifyq.recorded_steps({m}, 1)",
        "sleep": "select messages.sleep({m}, 1, 'a', delay => '0')",
        "await_signal": "select messages.await_signal({m}, 1, 'a', 's')",
        "await_any": "select messages.await_any({m}, 1, 'a', '{{s}}')",
        "await_end": "select messages.await_end({m}, 1, 'a', array[{w}])",
        "wait_for_ends": "select notifyq.wait_for_ends({m}, 1, 'a', array[{w}], null)",
        "emit": "select messages.emit({m}, 1, '1')",
        "wait": "call messages.wait('{{q}}', '0')",
        "claim": "select messages.claim('{{q}}')",
        "claim_owned": "select notifyq.claim_owned('{{q}}')",
        "take": "select messages.take('q')",
        "suppress": "select notifyq.suppress('q')",
        "parked": "select messages.parked('q')",
        "relay_claim": "select notifyq.relay_claim('{{q}}', 1, '1 s', 'w')",
        "subscribe": "select messages.subscribe('st', 'x')",
        "next_batch": "select messages.next_batch('st', 's')",
        "batch_events": "select messages.batch_events({b})",
        "batch_info": "select messages.batch_info({b})",
        "retry_event": "select messages.retry_event({b}, {e})",
        "fail_event": "select messages.fail_event({b}, {e})",
        "retry_batch": "select messages.retry_batch({b})",
        "finish_batch": "select messages.finish_batch({b})",
        "recover_batch": "select messages.recover_batch('st', 's')",
        "release_batch": "select messages.release_batch({b})",
        "next_retry": "select notifyq.next_retry('st', 's')",
        "tick": "select messages.tick('st')",
        "suppress_stream": "select notifyq.suppress_stream('st')",
        "register": "select messages.register('st', 'x', 'public.nothing')",
    },
}
# Refused as one that is lost, or whose row is left out: nothing comes of it.
NOTHING = {
    "publisher": {},
    "worker": {
        "claim_id": "select messages.claim_id({w})",
        "finish": "select messages.finish({m}, 1)",
        "finish_many": "select messages.finish_many(array[{m}], '{{1}}', "
        "array['success']::messages.message_status[])",
        "retry": "select messages.retry({m}, 1)",
        "retry_many": "select messages.retry_many(array[{m}], '{{1}}')",
        "release": "select messages.release({m}, 1)",
        "release_many": "select messages.release_many(array[{m}], '{{1}}')",
        "release_orphans": "select notifyq.release_orphans('w', '{{}}')",
        "extend": "select messages.extend({m}, 1)",
        "extend_many": "select messages.extend_many(array[{m}], '{{1}}')",
        "archive_find": "select messages.archive_find({a})",
        "attempts": "select messages.attempts({a})",
        "logs": "select messages.logs({a})",
        "keep_logs": "select notifyq.keep_logs(array[{m}, {a}], '{{1,1}}', '{{1,1}}', "
        "array['[{{\"text\": \"x\"}}]', '[]']::json[])",
        "relay_finish": "select notifyq.relay_finish('t', 's', 'p', array[{m}], '{{1}}', "
        "array[{m}], array['success']::messages.message_status[])",
        "dependencies": "select messages.dependencies({m})",
        "progress": "select messages.progress({m}, 1, 0.5)",
        "steps": "select messages.steps({m})",
        "subscription_info": "select messages.subscription_info('st')",
        "subscription_lags": "select notifyq.subscription_lags()",
    },
}


async def code_of(session: Connection, statement: str) -> str | None:
    try:
        await session.execute(statement)
    except asyncpg.PostgresError as error:
        return error.sqlstate
    except DatabaseError as error:
        return error.sqlstate
    return None


async def close(connection: Connection) -> dict[str, Any]:
    await connection.execute("""
        select messages.create_queue('q'), messages.create_queue('tq', payload_type => 'integer'),
          messages.create_stream('st');
        select messages.subscribe('st', 's');
        create procedure public.nothing() language sql as 'select';
        select messages.publish('q', '{"secret": 1}'), messages.publish('q', '2'),
          messages.publish('q', '3'), messages.publish('st', '4');
        select messages.claim('{q}', worker => 'w');
        select notifyq.keep_logs(
          array[c.id], array[c.lock_token], '{1}', array['[{"text": "secret"}]'::json]
        ), messages.finish(c.id, c.lock_token) from messages.claim('{q}') as c;
        select messages.grant_queue(c.name, 'notifyq_admin')
        from unnest('{q,tq,st}'::text[]) as c (name);
    """)
    ids = await connection.fetch("select id, state::text as state from messages.message")
    batch = await connection.fetchval("select messages.next_batch('st', 's')")
    return {
        "m": next(row["id"] for row in ids if row["state"] == "locked"),
        "w": next(row["id"] for row in ids if row["state"] == "waiting"),
        "a": await connection.fetchval("select id from messages.message_archive"),
        "b": batch,
        "e": await connection.fetchval("select id from messages.event"),
    }


@pytest.mark.parametrize("who", REFUSED)
async def test_a_name_of_a_closed_queue_is_refused(
    connection: Connection, enter: Enter, who: str
) -> None:
    ids = await close(connection)
    session = await enter(who)
    await session.execute("create temporary table t (id integer)")
    wrong = {
        name: code
        for name, statement in REFUSED[who].items()
        if (code := await code_of(session, statement.format(**ids))) != "NQ007"
    }
    assert wrong == {}
    before = await connection.fetch("select m::text from messages.message as m order by id")
    found: dict[str, Any] = {}
    for name, statement in NOTHING[who].items():
        rows = await session.fetch(f"select f::text from ({statement.format(**ids)}) as r (f)")
        texts = {row[0] or "" for row in rows}
        found |= {f"{name}: {it}": it for it in texts if it.strip("(),") not in {"", "false", "0"}}
    assert found == {}
    assert await connection.fetch("select m::text from messages.message as m order by id") == before
    assert await connection.fetchval("select count(*) from notifyq.batch_end") == 0


async def test_what_comes_to_nothing_locks_no_message(connection: Connection, enter: Enter) -> None:
    """Else an open transaction could keep the worker that has the message from finishing it."""
    ids = await close(connection)
    worker = await enter("worker")
    free = "select count(*) from (select from messages.message for update skip locked) as f"
    every = await connection.fetchval(free)
    assert every > 1
    locks: dict[str, int] = {}
    for name, statement in NOTHING["worker"].items():
        await worker.execute("begin")
        await worker.execute(statement.format(**ids))
        locks[name] = every - await connection.fetchval(free)
        await worker.execute("rollback")
    assert {it: number for it, number in locks.items() if number} == {}


async def test_dependencies_of_a_closed_queue_are_hidden(
    connection: Connection, enter: Enter
) -> None:
    await connection.execute("select messages.create_queue('q')")
    first = await connection.fetchval("select messages.publish('q', '1')")
    second = await connection.fetchval(f"select messages.publish('q', '2', after => '{{{first}}}')")
    worker = await enter("worker")
    dependencies = f"select id from messages.dependencies({second})"
    assert await worker.fetchval(dependencies) == first
    await connection.execute("select messages.grant_queue('q', 'notifyq_admin')")
    assert await worker.fetch(dependencies) == []
    await connection.execute("select messages.grant_queue('q', $1)", role_name("worker"))
    assert await worker.fetchval(dependencies) == first


@pytest.mark.parametrize("who", REFUSED)
async def test_every_function_that_names_something_is_tried(
    connection: Connection, who: str
) -> None:
    found = await connection.fetch(
        """
        select distinct p.proname::text as name from pg_proc as p
        where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and has_function_privilege($1, p.oid, 'execute')
          and p.proargnames[:p.pronargs] && $2::text[]
        """,
        f"notifyq_{who}",
        TAKES,
    )
    names = {row["name"] for row in found}
    assert len(names) > 15
    assert names - OPEN - {*REFUSED[who], *NOTHING[who]} == set()


async def test_a_tick_without_a_name_leaves_out_what_is_closed(
    connection: Connection, enter: Enter
) -> None:
    await close(connection)
    await connection.execute("select messages.create_stream('free')")
    worker = await enter("worker")
    before = await connection.fetchval("select count(*) from notifyq.tick")
    assert await worker.fetchval("select messages.tick()") == 1
    assert await connection.fetchval("select count(*) from notifyq.tick") == before + 1
    assert await connection.fetchval("select messages.tick()") == 2


async def test_workers_of_an_open_queue_trust_each_other(
    connection: Connection, enter: Enter
) -> None:
    """See the page on security: a token is not secret; grants restrict access to a queue."""
    await connection.execute("select messages.publish('default', '1')")
    one, other = await enter("billing"), await enter("worker")
    claim = "select id, lock_token from messages.claim('{default}')"
    message = await one_row(one, claim)
    release = "select messages.release($1, $2)"
    assert await other.fetchval(release, *message)
    message = await one_row(one, claim)
    await connection.execute("select messages.grant_queue('default', $1)", role_name("billing"))
    assert not await other.fetchval(release, *message)
    assert await one.fetchval(release, *message)
