"""Every statement that the pipelines send.

As elsewhere, behaviour is in functions of the schema. Only rows in bulk are read from their tables:
COPY takes a query, and that of a function would be gathered in a file before its first row leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from notifyq.spark.windows import between

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

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

# Of a stream, the oldest table that may hold what a snapshot has not seen.
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

# In the order of transactions and ids: how many rows there are, up to a number of them, and those
# that end each share of them.
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
# The planner knows nothing of tables that nobody has analysed: a window is a small part of them.
BY_INDEX: Final = ("set local enable_seqscan = off", "set local jit = off")
IN_ORDER: Final = (*BY_INDEX, "set local enable_bitmapscan = off")

# Anomalies.

ARCHIVE_HOURS: Final = "select h.* from notifyq.archive_hours(%s, %s) as h"
REPORT_ANOMALIES: Final = "select queue from notifyq.report_anomalies(%s::jsonb, %s)"

# Rights, asked for where a run that finds nothing to do would not meet them.

MAY_CALL: Final = "select has_function_privilege(%s, 'execute')"
REPORTING: Final = "notifyq.report_anomalies(jsonb, text)"
ROLLING_UP: Final = "notifyq.roll_up(bigint, bigint, bigint)"

# Handling.

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
CREATE_LAKE: Final = "select id, token from notifyq.create_lake(%s)"
HOLD_LAKE: Final = "select place, notifyq.snapshot_of(place)::text from notifyq.hold_lake(%s)"
LAKE_FILES: Final = """
    select id, dataset, batch, path, day, queue, rows, bytes, checksum, first_id, last_id, first_at,
      last_at
    from messages.lake_files(%s, %s)
"""
LAKE_REMOVED: Final = """
    select id, path, removed_at < clock_timestamp() - %s from notifyq.lake_removed(%s)
"""
FORGET_FILES: Final = "select notifyq.forget_files(%s, %s)"
NOTE_LAKE: Final = "select notifyq.note_lake(%s, %s)"
LAKE_BATCHES: Final = "select max(id) from notifyq.lake_batches(%s, %s)"
COMMIT_LAKE: Final = """
    select notifyq.commit_lake(
      %s, %s, %s::jsonb, key => %s, removed => %s::bigint[], place => %s
    )
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
    select r.span, r.bucket_at, r.queue, r.type, r.status::text, r.finished, r.retried, r.attempts,
      r.waited, r.wait_total_us, r.wait_max_us, r.wait_bins, r.wait_counts, r.ran, r.run_total_us,
      r.run_max_us, r.run_bins, r.run_counts
    from notifyq.rollup as r
    where r.lake = %s
      and r.bucket_at >= %s::date::timestamp at time zone 'UTC'
      and r.bucket_at < (%s::date + 1)::timestamp at time zone 'UTC'
    order by r.bucket_at, r.queue, r.type, r.status
"""

# Export.

KEEP_PARTITIONS: Final = "lock table messages.message_archive in access share mode"
"""Until the end of the transaction no day is made or dropped, so that no row changes its table."""
HERE: Final = """
    select p.place, notifyq.snapshot_of(p.place)::text, pg_export_snapshot()
    from messages.current_position() as p (place)
"""
ARCHIVE_PARTS: Final = """
    select day, rows, first_block, until_block from notifyq.archive_parts(%s, %s, %s)
"""

ARCHIVE_DAYS: Final = "select notifyq.archive_days()"
ARCHIVE_HASHES: Final = "select id, hash from notifyq.archive_hashes(%s)"
PRUNE_OBSTACLE: Final = "select notifyq.prune_obstacle(%s, %s)"
PRUNE_DAY: Final = "select notifyq.prune_day(%s, %s, %s, %s)"

ARCHIVE: Final[dict[str, LiteralString]] = {
    "id": "a.id",
    "type": "a.type",
    "status": "a.status::text",
    "priority": "a.priority",
    "attempts": "a.attempts",
    "max_attempts": "a.max_attempts",
    "key": "a.key",
    "dedup_key": "a.dedup_key",
    "created_at": "a.created_at",
    # Infinity is no instant of Arrow's, which takes years that others do not.
    "available_at": "least(greatest(a.available_at, '0001-01-01 00:00+00'), "
    "'9999-12-31 23:59:59.999999+00')",
    "locked_at": "a.locked_at",
    "archived_at": "a.archived_at",
    "lock_token": "a.lock_token",
    "xid": "a.xid::text::bigint",
    "handled_by": "a.handled_by",
    "subscriber": "a.subscriber",
    "event_id": "a.event_id",
    "message": "a.message::text",
    "headers": "a.headers::text",
    "details": "a.details",
    "result": "a.result::text",
    "queue": "a.queue",
}
"""The columns of the archive as they are read, each with the expression that reads it."""


def archive_rows(
    columns: Sequence[str],
    low: str,
    high: str,
    day: date,
    blocks: tuple[int, int] | None = None,
) -> str:
    """Rows of a day of the archive between two snapshots, of some blocks of its table only."""
    wanted = sql.SQL(", ").join(
        sql.SQL("{} as {}").format(sql.SQL(ARCHIVE[name]), sql.Identifier(name)) for name in columns
    )
    query = sql.SQL(
        "select {wanted} from messages.message_archive as a"
        " where a.archived_at >= {day}::date::timestamp at time zone 'UTC'"
        " and a.archived_at < ({day}::date + 1)::timestamp at time zone 'UTC' and {window}"
    ).format(wanted=wanted, day=sql.Literal(day.isoformat()), window=between(low, high, "a.xid"))
    if blocks is not None:
        query += sql.SQL(" and a.ctid >= {}::tid and a.ctid < {}::tid").format(
            *(sql.Literal(f"({block},0)") for block in blocks)
        )
    return query.as_string(None)


def under(snapshot: str, *, by_block: bool) -> list[str]:
    """What a task's session says first, so that it sees what the driver does.

    Which way to the rows is best is known: the planner knows nothing of a table that was never
    analysed, and would read an index of millions of rows, or a table for the few at its end.
    """
    off = ["enable_seqscan", *(("enable_indexscan", "enable_bitmapscan") if by_block else ())]
    return [
        "set transaction isolation level repeatable read, read only",
        sql.SQL("set transaction snapshot {}").format(sql.Literal(snapshot)).as_string(None),
        *(f"set local {name} = off" for name in off),
        "set local jit = off",
        # Each part would start processes that read the whole table for its blocks.
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
  %(type)s, %(since)s, %(until)s, %(match)s::jsonb, %(rate)s, %(redrive)s
)
"""
REPLAY_COUNTS: Final = """
select * from notifyq.replay_counts(
  %(name)s, %(queue)s, %(statuses)s::messages.message_status[], %(type)s, %(since)s, %(until)s,
  %(match)s::jsonb, %(redrive)s
)
"""
"""What is replayed from the archive, and how much that is."""
IS_STREAM: Final = "select exists (select from messages.stream as s where s.name = %s)"
