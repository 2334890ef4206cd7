"""Null for each argument of each public function: refused, documented, or nothing happens.

What a function does with null where it names something must never be done to something else.
"""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError
from support.database import Connection, publish, rows, value

FUNCTIONS = """
    select p.proname as name, p.oid::regproc::text as called, p.prokind = 'p' as is_procedure,
      p.pronargs as inputs,
      p.pronargdefaults as defaults, p.provariadic <> 0 as is_variadic,
      coalesce(p.proargnames, '{}') as names,
      array(
        select format_type(t.oid, null) from unnest(p.proargtypes) with ordinality as t (oid, n)
        order by t.n
      ) as types,
      pg_get_function_arguments(p.oid) as arguments
    from pg_proc as p
    where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
      and obj_description(p.oid, 'pg_proc') is not null
      and p.prorettype <> 'trigger'::regtype
    order by p.proname
"""
WRITTEN = """
    select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)
    from pg_stat_xact_all_tables where schemaname in ('messages', 'notifyq')
"""
# They end transactions, need a broker, or convert a value of the type that is given.
LEFT_OUT = {"start_broker", "stop_broker", "run_broker", "wait", "dequeue", "value_of"}

# Arguments whose default is not null, but where null is documented to mean it, or means false.
MEANINGS = {
    "note_audit.subject": "no object",
    "broker_next.run": "written by the broker alone",
    "broker_next.after": "written by the broker alone",
    "claim.full_scan": "false",
    "claim_owned.is_again": "false",
    "publish.priority": "0",
    "publish_many.priority": "0",
    "publish.on_failure": "only used with after",
    "publish_many.on_failure": "only used with after",
    "receive_dead.details": "no reason",
    "receive_dead.key": "none",
    "receive_dead.type": "none",
    "recover_batch.keeps_order": "false",
    "relay_claim.lock_duration": "that of the queue",
    "relay_claim.worker": "no name",
    "relay_claim.full_scan": "false",
    "forward.position": "last",
    "subscribe.position": "last",
    "retry.give_up": "false",
    "retry_batch.delay": "none",
    "retry_event.delay": "none",
}
# What only our own processes call: the constraint of a column may be what refuses null.
PROTOCOLS = re.compile(
    r"^(worker_heartbeat|relay_finish|leave_wake_slots|want_broker|report_anomalies)\."
)


def sample(function: str, name: str, type_: str, known: dict[str, str]) -> str:
    """Return a value that the function could be called with."""
    if name == "name":
        return "'s'" if "stream" in function else "'default'"
    if name in known:
        return "'[]'::jsonb" if (name, type_) == ("messages", "jsonb") else known[name]
    return {
        "bigint": "1",
        "integer": "1",
        "numeric": "1",
        "interval": "interval '1 s'",
        "boolean": "false",
        "jsonb": "'{}'::jsonb",
        "timestamp with time zone": "now()",
        "date": "current_date",
        "text[]": "array['x']",
        "bigint[]": "array[1]::bigint[]",
        "jsonb[]": "array['1']::jsonb[]",
        "jsonpath": "'$ == 1'::jsonpath",
        "pg_snapshot": "pg_current_snapshot()",
        "anyelement": "'x'::text",
        "text": "'x'",
    }.get(type_, f"null::{type_}")


def calls(function: Any, known: dict[str, str]) -> list[tuple[str, bool, str]]:
    """Return for each argument its name, whether null is its default, and a call with null."""
    found = []
    names = list(function["names"])[: function["inputs"]]
    required = function["inputs"] - function["defaults"]
    for index, name in enumerate(names):
        given = []
        for other, (named, of) in enumerate(zip(names, function["types"], strict=True)):
            is_last = function["is_variadic"] and other == len(names) - 1
            text = f'{"variadic " if is_last else ""}"{named}" => '
            if other == index:
                given.append(f"{text}null::{'text' if of == 'anyelement' else of}")
            elif other < required:
                given.append(text + sample(function["name"], named, of, known))
        call = f"{function['called']}({', '.join(given)})"
        is_default = bool(re.search(rf'\b"?{name}"? [^,]*DEFAULT NULL', function["arguments"]))
        found.append(
            (
                f"{function['name']}.{name}",
                is_default,
                f"call {call}"
                if function["is_procedure"]
                else f"select string_agg(x::text, ' ') from {call} as x",
            )
        )
    return found


@pytest.fixture
async def known(connection: Connection) -> dict[str, str]:
    """Fill queues and a stream; give values of arguments by their names."""
    await value(connection, "create_stream", name="s")
    await value(connection, "subscribe", stream="s", subscriber="a")
    await rows(connection, "publish_many", queue="s", messages=[1, 2, 3])
    batch = await value(connection, "next_batch", stream="s", subscriber="a", quantity=2)
    event = await connection.fetchval("select min(id) from messages.event")
    await publish(connection, 8)
    await rows(connection, "claim", quantity=3, worker="w")
    await value(connection, "finish", id=1, lock_token=1, status="failed")
    return {
        "queue": "'default'",
        "queues": "array['default']",
        "stream": "'s'",
        "subscriber": "'a'",
        "batch": f"{batch}::bigint",
        "event": f"{event}::bigint",
        "id": "2::bigint",
        "ids": "array[2]::bigint[]",
        "lock_token": "1::bigint",
        "lock_tokens": "array[1]::bigint[]",
        "quantity": "1",
        "message": "'1'::jsonb",
        "messages": "array['1']::jsonb[]",
        "statuses": "array['success']::messages.message_status[]",
        "position": "'start'",
    }


async def test_null_is_refused_documented_or_does_nothing(
    connection: Connection, known: dict[str, str]
) -> None:
    wrong = []
    for function in await connection.fetch(FUNCTIONS):
        if function["name"] in LEFT_OUT:
            continue
        for name, is_default, call in calls(function, known):
            await connection.execute("begin")
            before = await connection.fetchval(WRITTEN)
            try:
                await connection.execute(call)
                written = await connection.fetchval(WRITTEN) - before
                if written and not (is_default or name in MEANINGS or PROTOCOLS.match(name)):
                    wrong.append(f"{name} has written {written} rows")
            except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
                code = str(getattr(error, "sqlstate", ""))
                if not code.startswith("NQ") and not PROTOCOLS.match(name):
                    wrong.append(f"{name}: {code} {error}")
            finally:
                await connection.execute("rollback")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("function", ["retry_event", "fail_event"])
async def test_no_event_is_not_the_first_event(
    connection: Connection, known: dict[str, str], function: str
) -> None:
    batch = int(known["batch"].partition(":")[0])
    with pytest.raises(InvalidArgumentError, match="event must not be null"):
        await value(connection, function, batch=batch, event=None)
    assert await connection.fetchval("select count(*) from notifyq.event_retry") == 0


@pytest.mark.parametrize(("function", "name"), [("drop_queue", "default"), ("drop_stream", "s")])
async def test_an_unknown_force_drops_nothing(
    connection: Connection, known: dict[str, str], function: str, name: str
) -> None:
    assert known
    with pytest.raises(InvalidArgumentError, match="force must not be null"):
        await value(connection, function, name=name, force=None)
