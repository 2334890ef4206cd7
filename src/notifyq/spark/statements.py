"""Every statement that the pipelines send.

Behaviour is in functions of the schema. Only rows in bulk are read from their tables: PostgreSQL
would write all rows of a function into a temporary file before COPY sends the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

from psycopg import sql

from notifyq.spark.columns import expression
from notifyq.spark.windows import between

# The data source: reading.

POSITION: Final = "select messages.current_position()"
SNAPSHOT_OF: Final = "select notifyq.snapshot_of(%s)::text"
ARCHIVE_TABLES: Final = """
select c.relname::text, pg_relation_filenode(c.oid)::bigint,
  pg_relation_size(c.oid) / current_setting('block_size')::bigint
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = 'messages.message_archive'::regclass
order by c.relname
"""
STREAM_TABLES: Final = """
select s.id, pg_relation_filenode(t.oid)::bigint,
  pg_relation_size(t.oid) / current_setting('block_size')::bigint
from messages.stream as m
left join notifyq.segment as s on s.stream = m.id
cross join lateral (select to_regclass('notifyq.event_' || s.id) as oid) as t
where m.name = %s
order by s.low, s.id
"""
MESSAGE_BOUNDS: Final = "select min(m.id), max(m.id) from messages.message as m"
UNCHANGED: Final = "select pg_relation_filenode(to_regclass({table}))::bigint = {node}"
READ: Final = "select {columns} from {table} as r where {condition}"

# The oldest table of a stream that may hold rows that a snapshot has not seen.
STREAM_MARK: Final = """
select 'event_' || s.id || '@' || extract(epoch from s.opened_at)
from messages.stream as m
join notifyq.segment as s on s.stream = m.id
where m.name = %s
  and (s.sealed is null or pg_snapshot_xmax(s.sealed) > pg_snapshot_xmin(%s::pg_snapshot))
order by s.low, s.id
limit 1
"""
HAS_STREAM_MARK: Final = """
select exists (
  select
  from messages.stream as m
  join notifyq.segment as s on s.stream = m.id
  where m.name = %s
    and 'event_' || s.id || '@' || extract(epoch from s.opened_at) = %s
)
"""
# A transaction may archive for a day before it commits.
ARCHIVE_MARK: Final = """
select c.relname::text
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = 'messages.message_archive'::regclass
  and c.relname ~ '^message_archive_[0-9]{8}$'
  and (
    %s
    or c.relname >= to_char((now() at time zone 'UTC')::date - 1, '"message_archive_"YYYYMMDD')
  )
order by c.relname
limit 1
"""
HAS_ARCHIVE_MARK: Final = "select to_regclass('notifyq.' || %s) is not null"

# The rows that end each share of the next rows, in the order of transactions and ids.
WALK: Final = """
select w.number, w.xid::text::bigint, w.id
from (
  select f.xid, f.id, row_number() over (order by f.lo, f.xid, f.id) as number
  from (
    select b.lo, r.xid, r.id
    from unnest({lows}::xid8[], {highs}::xid8[]) as b (lo, hi)
    cross join lateral (
      select r.xid, r.id
      from {table} as r
      where r.xid >= b.lo and r.xid < b.hi and {condition}
      order by r.xid, r.id
      limit {quantity}
    ) as r
    order by b.lo, r.xid, r.id
    limit {quantity}
  ) as f
) as w
where mod(w.number, {share}) = 0
order by w.number
"""
# A window is a small part of its table, but the planner has no statistics of tables never analysed.
BY_INDEX: Final = ("set local enable_seqscan = off", "set local jit = off")
IN_ORDER: Final = (*BY_INDEX, "set local enable_bitmapscan = off")

# Anomalies.

ARCHIVE_HOURS: Final = "select h.* from notifyq.archive_hours(%s, %s) as h"
REPORT_ANOMALIES: Final = "select queue from notifyq.report_anomalies(%s::jsonb, %s)"

# Rights: checked at the start, since a run that finds nothing to do would not need them.

MAY_CALL: Final = "select has_function_privilege(%s, 'execute')"
REPORTING: Final = "notifyq.report_anomalies(jsonb, text)"
ROLLING_UP: Final = "notifyq.roll_up(bigint, bigint, bigint)"

# Handling.

IS_ENCRYPTED: Final = (
    "select exists (select from notifyq.encrypted_names() as e (name) where e.name = %s)"
)
CLAIM: Final = """
select c.id, c.lock_token, c.message::text as message,
  extract(epoch from c.lock_expires_at - clock_timestamp())::float8 as seconds
from messages.claim(array[%s], %s, worker => %s) as c
"""
EXTEND_MANY: Final = "select messages.extend_many(%s::bigint[], %s::bigint[])"
FINISH_MANY: Final = """
select messages.finish_many(
  %s::bigint[], %s::bigint[], %s::messages.message_status[], %s::text[], %s::jsonb[]
)
"""
RETRY: Final = "select messages.retry(%s, %s, %s::interval, %s)"

# Lakes.

LAKES: Final = "select * from messages.lakes()"
BEGIN_LAKE: Final = "select pg_advisory_xact_lock(hashtextextended(%s, 7305427016))"
CREATE_LAKE: Final = "select id, token from notifyq.create_lake(%s)"
FORGET_LAKE: Final = "select messages.forget_lake(%s)"
HOLD_LAKE: Final = "select position, notifyq.snapshot_of(position)::text from notifyq.hold_lake(%s)"
LAKE_FILES: Final = """
    select id, dataset, batch, path, day, queue, rows, bytes, checksum, first_id, last_id, first_at,
      last_at
    from messages.lake_files(%s, %s)
"""
LAKE_REMOVED: Final = """
    select id, path, removed_at < clock_timestamp() - %s from notifyq.lake_removed(%s)
"""
LAKE_REPLACED: Final = """
    select id, dataset, batch, path, day, queue, rows, bytes, checksum, first_id, last_id, first_at,
      last_at
    from notifyq.lake_removed(%s)
    where dataset = %s and batch <= %s and removed > %s
"""
LAKE_TABLES: Final = "select notifyq.lake_tables(%s)"
FORGET_FILES: Final = "select notifyq.forget_files(%s, %s)"
NOTE_LAKE: Final = "select notifyq.note_lake(%s, %s)"
LAKE_BATCHES: Final = "select max(id) from notifyq.lake_batches(%s, %s)"
COMMIT_LAKE: Final = """
    select notifyq.commit_lake(
      %s, %s, %s::jsonb, key => %s, removed => %s::bigint[], "position" => %s
    )
"""
LAKE_STREAM: Final = "select stream, position from notifyq.lake_stream_of(%s, %s)"
ADVANCE_LAKE: Final = "select notifyq.advance_lake(%s, %s, %s, %s::jsonb, %s::jsonb)"
FORGET_ARCHIVED: Final = "select notifyq.forget_archived(%s::bigint[])"
FORGET_SAMPLES: Final = """
    select notifyq.forget_samples(
      %s::timestamptz[], %s::text[], %s::messages.message_status[], %s::text[]
    )
"""
MATCH_PAYLOADS: Final = "select notifyq.match_payloads(%s::text[], %s::jsonpath)"

# The catalog of Iceberg tables, whose own tables pyiceberg creates.

ICEBERG: Final = "notifyq_iceberg"
ICEBERG_SCHEMA: Final = "select from pg_namespace where nspname = 'notifyq_iceberg'"
CREATE_ICEBERG: Final = """
do $$
begin
  create schema notifyq_iceberg;
  if to_regrole('notifyq_admin') is not null then
    grant usage on schema notifyq_iceberg to notifyq_admin, notifyq_reader;
    alter default privileges in schema notifyq_iceberg
      grant select, insert, update, delete on tables to notifyq_admin;
    alter default privileges in schema notifyq_iceberg grant select on tables to notifyq_reader;
  end if;
end
$$
"""
ICEBERG_CATALOG: Final = """
    select from pg_class
    where relname = 'iceberg_namespace_properties'
      and relnamespace = (select oid from pg_namespace where nspname = 'notifyq_iceberg')
"""
ICEBERG_LAKE: Final = """
    select from notifyq_iceberg.iceberg_namespace_properties
    where catalog_name = %s and namespace = %s
"""

# Roll-ups.

ROLLED_UP: Final = "select notifyq.rolled_up(%s) as batch"
ROLLUP_BATCHES: Final = (
    "select id, rows, removed from notifyq.lake_batches(%s, 'archive', after => %s)"
)
ROLLUP_FILES: Final = """
    select f.path, f.queue, f.rows
    from unnest(%s::bigint[]) as b (id)
    cross join lateral notifyq.lake_changes(b.id) as c
    cross join lateral unnest(c.added) as f
"""
ROLL_UP: Final = "select notifyq.roll_up(%s, after => %s, upto => %s)"
ADD_ROLLUP: Final = "select notifyq.add_rollup(%s, %s::jsonb, %s::jsonb, %s::jsonb)"
FORGET_ROLLUP: Final = "select notifyq.forget_rollup(%s)"
ROLLUP_DAY: Final = """
    select r.span, r.bucket_at, r.queue, r.type, r.status::text, r.finished, r.dead, r.retried,
      r.attempts, r.waited, r.wait_total_us, r.wait_max_us, r.wait_bins, r.wait_counts, r.ran,
      r.run_total_us, r.run_max_us, r.run_bins, r.run_counts
    from notifyq.rollup as r
    where r.lake = %s
      and r.bucket_at >= %s::date::timestamp at time zone 'UTC'
      and r.bucket_at < (%s::date + 1)::timestamp at time zone 'UTC'
    order by r.bucket_at, r.queue, r.type, r.status
"""

# Export.

KEEP_PARTITIONS: Final = "lock table messages.message_archive in access share mode"
"""No day is created or dropped until the end of the transaction: no row changes its table."""
HERE: Final = """
    select p.position, notifyq.snapshot_of(p.position)::text, pg_export_snapshot()
    from messages.current_position() as p (position)
"""
ARCHIVE_PARTS: Final = """
    select day, rows, first_block, until_block from notifyq.archive_parts(%s, %s, %s)
"""

ARCHIVE_DAYS: Final = "select notifyq.archive_days()"
ARCHIVE_HASHES: Final = "select id, hash from notifyq.archive_hashes(%s) order by id"
PRUNE_OBSTACLE: Final = "select notifyq.prune_obstacle(%s, %s)"
PRUNE_DAY: Final = "select notifyq.prune_day(%s, %s, %s, %s)"


def archive_rows(
    columns: Sequence[str],
    low: str,
    high: str,
    day: date,
    blocks: tuple[int, int] | None = None,
) -> str:
    """Return the query of a day's rows between two snapshots, of some blocks of its table only."""
    query = sql.SQL(
        "select {columns} from messages.message_archive as r"
        " where r.archived_at >= {day}::date::timestamp at time zone 'UTC'"
        " and r.archived_at < ({day}::date + 1)::timestamp at time zone 'UTC' and {window}"
    ).format(
        columns=selected(columns),
        day=sql.Literal(day.isoformat()),
        window=between(low, high, "r.xid"),
    )
    if blocks is not None:
        query += sql.SQL(" and r.ctid >= {}::tid and r.ctid < {}::tid").format(
            *(sql.Literal(f"({block},0)") for block in blocks)
        )
    return query.as_string(None)


def selected(columns: Sequence[str]) -> sql.Composable:
    """Return the select list that reads columns of the table r under their own names."""
    return sql.SQL(", ".join(f"{expression(name)} as {name}" for name in columns) or "null")


def under(snapshot: str, *, by_block: bool) -> list[str]:
    """Return the settings of a task's session: the snapshot of the driver, and one kind of scan.

    Without statistics of a table the planner could read an index of millions of rows, or a whole
    table for the few at its end.
    """
    off = ["enable_seqscan", *(("enable_indexscan", "enable_bitmapscan") if by_block else ())]
    return [
        "set transaction isolation level repeatable read, read only",
        sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)).as_string(None),
        *(f"set local {name} = off" for name in off),
        "set local jit = off",
        # Parallel workers would scan the whole table for the blocks of a part.
        "set local max_parallel_workers_per_gather = 0",
    ]


# Loads and replays.

CHECK_TARGETS: Final = "select notifyq.check_targets(%s)"
BEGIN_LOAD: Final = "select * from notifyq.begin_load(%s, %s)"
BEGIN_ATTEMPT: Final = "select notifyq.begin_attempt($1)"
COMMIT_LOAD: Final = "select * from notifyq.commit_load(%s, %s, %s, %s)"
DROP_ATTEMPTS: Final = "select notifyq.drop_attempts(%s, %s)"
LOAD_REJECTS: Final = "select * from notifyq.load_rejects(%s, %s, %s)"
BEGIN_REPLAY: Final = "select * from notifyq.begin_replay(%s, %s)"
REPLAY_ROWS: Final = "select * from notifyq.replay_rows(%s, %s, %s, %s, %s)"
REPLAY_ARCHIVE: Final = """
select * from notifyq.replay_archive(
  %(name)s, %(quantity)s, %(after_id)s, %(queue)s, %(statuses)s::messages.message_status[],
  %(type)s, %(since)s, %(until)s, %(match)s::jsonb, %(rate)s, %(redrive)s, %(dead)s
)
"""
REPLAY_COUNTS: Final = """
select * from notifyq.replay_counts(
  %(name)s, %(queue)s, %(statuses)s::messages.message_status[], %(type)s, %(since)s, %(until)s,
  %(match)s::jsonb, %(redrive)s, %(dead)s
)
"""
IS_STREAM: Final = "select exists (select from messages.stream as s where s.name = %s)"
