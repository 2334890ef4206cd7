"""The extreme values of each argument of each function only raise errors of notifyq."""

from __future__ import annotations

import asyncpg

from extremes.values import of
from support.database import Connection

_KINDS = ("interval", "timestamptz", "date", "int2", "int4", "int8", "float8", "numeric")

# Objects that the functions need to get past their first checks.
_BASE = """
select messages.create_queue('q'), messages.create_stream('st');
select messages.create_queue('l', rate => 1, key_rate => 1, fair => true, concurrency => 5);
select messages.publish_many('l', array['1', '2']::jsonb[], keys => array['a', 'b']);
select messages.publish_many('q', array['1', '2', '3']::jsonb[]);
select messages.publish('q', '4', available_at => 'infinity');
select messages.publish('q', '5', delay => '1 day');
select messages.subscribe('st', 'sub');
select messages.publish('st', '1');
select messages.tick('st');
select messages.finish(c.id, c.lock_token, 'failed', 'no') from messages.claim('{q}') as c;
select notifyq.create_lake('/lake'), messages.schedule('s', '* * * * *', 'q');
"""

_FUNCTIONS = """
select format('%s.%I', p.pronamespace::regnamespace, p.proname) as name, p.prokind::text as kind,
  p.pronargs - p.pronargdefaults as required,
  p.proargnames[1:p.pronargs] as names,
  array(
    select t.typname::text from unnest(p.proargtypes) with ordinality as u (oid, number)
    join pg_type as t on t.oid = u.oid order by u.number
  ) as types
from pg_proc as p
where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
  and obj_description(p.oid, 'pg_proc') is not null
  and p.prorettype <> 'trigger'::regtype
order by p.oid::regprocedure::text
"""

_NAMED = {
    "queue": "'q'", "stream": "'st'", "subscriber": "'sub'", "name": "'q'", "message": "'1'",
    "queues": "'{{q,l}}'", "ids": "array[{id}]", "lock_tokens": "'{{1}}'", "worker": "'w'",
    "messages": "array['1'::jsonb]", "quantity": "1", "batch": "{batch}", "event": "{event}",
    "cron": "'* * * * *'", "timezone": "'UTC'", "lock_token": "1", "id": "{id}", "lake": "1",
    "dataset": "'x'", "conditions": "'{{}}'",
}  # fmt: skip

# They run as long as this argument.
_PATIENT = {"wait": "timeout", "run_broker": "idle"}


async def test_every_argument_at_the_ends_of_its_type(connection: Connection) -> None:
    for statement in _BASE.strip().rstrip(";").split(";\n"):
        await connection.execute(statement)
    claimed = await connection.fetchval("select c.id from messages.claim('{q}') as c")
    ids = {
        "id": claimed,
        "event": await connection.fetchval("select max(id) from messages.event"),
        "batch": await connection.fetchval("select messages.next_batch('st', 'sub')") or 1,
    }
    await connection.execute("set statement_timeout = '5s'")
    broken, called = [], 0
    for row in await connection.fetch(_FUNCTIONS):
        for number, (name, type_) in enumerate(zip(row["names"] or (), row["types"], strict=False)):
            if type_ not in _KINDS or row["kind"] == "p":
                continue
            for value in of(type_):
                given = [
                    f"{it} => " + _NAMED.get(it, "null").format(**ids)
                    for index, it in enumerate(row["names"][: row["required"]])
                    if index != number
                ]
                call = f"{row['name']}({', '.join([*given, f'{name} => ' + repr(value)])})"
                called += 1
                broken += await _refused(connection, f"select * from {call}")
    assert called > 1500
    assert not broken, "\n".join(broken)


async def test_a_waiting_procedure_accepts_any_duration(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('q')")
    await connection.execute("set statement_timeout = '120ms'")
    broken = []
    for name, argument in _PATIENT.items():
        queues = "queues => '{q}', " if name == "wait" else ""
        for value in of("interval"):
            try:
                await connection.execute(f"call messages.{name}({queues}{argument} => '{value}')")
            except asyncpg.QueryCanceledError:
                pass  # it waited
            except asyncpg.PostgresError as error:
                broken.append(f"{name}({value}): {error.sqlstate} {error}")
    assert broken == []


async def _refused(connection: Connection, statement: str) -> list[str]:
    await connection.execute("begin")
    try:
        await connection.fetch(statement)
    except asyncpg.PostgresError as error:
        if not str(error.sqlstate).startswith("NQ"):
            return [f"{statement}: {error.sqlstate} {error}"]
    except (OverflowError, ValueError) as error:  # of the driver, which cannot read the answer
        return [f"{statement}: {error!r}"]
    finally:
        await connection.execute("rollback")
    return []
