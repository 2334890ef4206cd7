"""A database with every accepted value in every column of every table."""

from __future__ import annotations

import json

import asyncpg

from extremes.values import of
from support.database import Connection

# Tables that identify the schema and the server: with other values every call is refused. And a
# table with names of tables, which only functions create.
_OF_THE_INSTALLATION = ("schema_version", "origin", "relay_self", "segment")

# A row of everything, by the functions.
_BASE = """
select messages.create_queue('mail', max_attempts => 3, retention_dead => '90 days');
select messages.create_queue('limited', concurrency => 5, key_concurrency => 2, rate => 100,
  key_rate => 10, capacity => 1000);
select messages.create_queue('fair', fair => true);
select messages.set_share('fair', 'k', 2);
select messages.create_queue('quick', durable => false);
select messages.publish_many(q, array['{"n": 1}', '2']::jsonb[], keys => array['k', null])
from unnest(array['mail', 'limited', 'fair', 'quick']) as q;
select messages.publish('mail', '3', delay => '1 hour', dedup_key => 'd', dedup_window => '1 hour');
select messages.publish('mail', '4', after => array[messages.publish('mail', '5')]);
select messages.finish(c.id, c.lock_token, 'success', null, '{"r": 1}')
from messages.claim('{mail}', 1, worker => 'w') as c;
select messages.finish(c.id, c.lock_token, 'failed', 'Error: 1')
from messages.claim('{mail}', 1, worker => 'w') as c;
select messages.publish('mail', '6');
select messages.retry(c.id, c.lock_token, null, 'Error: 2', 'failed', 'Error', 'Error: 2', 'at 1')
from messages.claim('{mail}', 1, worker => 'w') as c;
select messages.publish('mail', '7');
select c.id from messages.claim('{limited,fair,quick}', 3, worker => 'w') as c;
select messages.dead_retry(a.id) from messages.dead_message as a limit 1;
select notifyq.worker_heartbeat('w', '{mail}', '{st}', 10, 1, false, 'host', 1, '0.1.0');
select messages.schedule('nightly', '0 3 * * *', 'mail', '8');
select messages.create_stream('st'), messages.subscribe('st', 'reader'),
  messages.subscribe('st', 'mover'), messages.forward('st', 'carrier', 'mail', 'start');
select messages.publish_many('st', array['1', '{"n": 2}']::jsonb[], keys => array['k', null]);
select messages.alter_archive(retention => '60 days', days_ahead => 3);
"""

_COLUMNS = """
select c.oid::regclass::text as table_name, a.attname as name, t.typname::text as type,
  exists (
    select from pg_index as i
    where i.indrelid = c.oid and i.indisunique and a.attnum = any (i.indkey)
  ) as is_key,
  a.attgenerated <> '' as is_made
from pg_class as c
join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type as t on t.oid = a.atttypid
where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
  and c.relkind in ('r', 'p')
  and not c.relispartition and c.relname <> all ($1)
order by 1, a.attnum
"""


async def fill(connection: Connection) -> tuple[int, set[str]]:
    """Fill the tables; how many values they took, and of which kinds ('table.column')."""
    for statement in _BASE.strip().rstrip(";").split(";\n"):
        await connection.execute(statement)
    columns: dict[str, list[asyncpg.Record]] = {}
    for row in await connection.fetch(_COLUMNS, _OF_THE_INSTALLATION):
        columns.setdefault(row["table_name"], []).append(row)
    taken, seen, number = 0, set(), 2_000_000
    for table, its in columns.items():
        base = await connection.fetchval(f"select to_jsonb(t)::text from {table} as t limit 1")
        values = json.loads(base) if base else _made_up(its)
        for column in its:
            if column["is_made"] or (table, column["name"]) == ("messages.stream", "segment"):
                continue
            for extreme in of(column["type"]):
                number += 1
                if await _add(connection, table, its, values, column["name"], extreme, number):
                    taken += 1
                    seen.add(f"{table}.{column['name']}")
    return taken, seen


async def _add(
    connection: Connection,
    table: str,
    columns: list[asyncpg.Record],
    values: dict[str, object],
    name: str,
    extreme: str,
    number: int,
) -> bool:
    type_ = next(column["type"] for column in columns if column["name"] == name)
    kept = [column["name"] for column in columns if not column["is_made"]]
    listed = ", ".join(f'"{it}"' for it in kept)
    chosen = ", ".join(f'$2::text::"{type_}"' if it == name else f'r."{it}"' for it in kept)
    # A key of its own: first by what is its alone, then also by the queue or stream that it is of.
    for shared in (("queue", "stream", "span", "part", "status"), ("span", "part", "status")):
        row = dict(values)
        for column in columns:
            if column["name"] == name or not (column["is_key"] or column["name"] == "id"):
                continue
            if column["type"] in ("int8", "int4"):
                row[column["name"]] = number
            elif column["type"] == "text" and column["name"] not in shared:
                row[column["name"]] = f"{row.get(column['name'])}-{number}"
        try:
            async with connection.transaction():
                await connection.execute(
                    f"insert into {table} ({listed}) overriding system value "
                    f"select {chosen} from jsonb_populate_record("
                    f"null::{table}, $1::text::jsonb) as r",
                    json.dumps({it: value for it, value in row.items() if it != name}),
                    extreme,
                )
        except asyncpg.UniqueViolationError:
            continue
        except asyncpg.PostgresError:
            return False  # it is out of bounds, or no value of this column
        return True
    return False


def _made_up(columns: list[asyncpg.Record]) -> dict[str, object]:
    plain = {
        "int2": 1, "int4": 1, "int8": 1, "text": "x", "bool": True, "jsonb": {}, "float8": 1.0,
        "numeric": 1, "timestamptz": "2026-01-01T00:00:00Z", "interval": "1 day",
        "date": "2026-01-01",
        "xid8": "1", "pg_snapshot": "1:1:", "_text": [], "_int8": [], "uuid": "0" * 32,
        "message_status": "failed",
    }  # fmt: skip
    return {column["name"]: plain.get(column["type"]) for column in columns}
