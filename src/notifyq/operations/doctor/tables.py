"""Check of what others did to our tables, which each publish, claim and finish then meets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.operations.doctor.finding import fail, ok, warn

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

_MOST = 5
"""Faults in a line."""
_DURABLE = ("message", "queue", "subscription", "schedule", "dedup", "dependency", "tick")
"""Tables whose rows must outlive a crash, beside the days of the archive and of attempts."""

# The worst first. What is dropped or switched off here was somebody's wish: no --fix.
_FAULTS = """
with ours as (
  select c.oid, c.oid::regclass::text as name, c.relpersistence, c.relrowsecurity,
    coalesce(i.inhparent = any (array[
      to_regclass('messages.message_archive'), to_regclass('messages.attempt')
    ]), false) or c.relname = any ($1::text[]) as is_logged
  from pg_class as c
  left join pg_inherits as i on i.inhrelid = c.oid
  where c.relnamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
    and c.relkind in ('r', 'p')
)
select f.is_failure, f.what, f.advice
from (
  select true as is_failure, format('%s is unlogged: a crash empties it', o.name) as what,
    format('alter table %s set logged', o.name) as advice
  from ours as o
  where o.is_logged and o.relpersistence = 'u'
  union all
  select false, format('row security is on for %s: who publishes there may be refused', o.name),
    format('alter table %s disable row level security', o.name)
  from ours as o
  where o.relrowsecurity
  union all
  select false, format('trigger %s on %s is not of notifyq: its errors are those of who writes',
    g.tgname, o.name), format('drop trigger %I on %s', g.tgname, o.name)
  from ours as o
  join pg_trigger as g on g.tgrelid = o.oid and not g.tgisinternal and g.tgparentid = 0
  join pg_proc as p on p.oid = g.tgfoid
  where p.pronamespace not in (to_regnamespace('messages'), to_regnamespace('notifyq'))
    and g.tgenabled <> 'D'
  union all
  select false, format('rule %s on %s rewrites what is written there', r.rulename, o.name),
    format('drop rule %I on %s', r.rulename, o.name)
  from ours as o
  join pg_rewrite as r on r.ev_class = o.oid
  union all
  select false, format('index %s is invalid: each write pays for it, and no query uses it',
    x.indexrelid::regclass), format('drop index %s', x.indexrelid::regclass)
  from ours as o
  join pg_index as x on x.indrelid = o.oid and not x.indisvalid
  -- The check `install` has those that an install needs.
  where x.indexrelid::regclass::text <> all ($2::text[])
    and not exists (
      select from pg_stat_progress_create_index as b where b.index_relid = x.indexrelid
    )
) as f
order by f.is_failure desc, f.what
"""


async def check_tables(look: Look) -> Finding:
    """Whether tables are as they were made: durable, and without rules and triggers of others."""
    missing = [it.removeprefix("index ") for it in (await look.diagnosis())["missing"]]
    rows = await look.connection.fetch(_FAULTS, list(_DURABLE), missing)
    if not rows:
        return ok("tables are as they were made")
    more = f" and {len(rows) - _MOST} more" if len(rows) > _MOST else ""
    level = fail if rows[0]["is_failure"] else warn
    return level(
        "; ".join(row["what"] for row in rows[:_MOST]) + more,
        "; ".join(row["advice"] for row in rows[:_MOST]),
    )


CHECKS = {"tables": check_tables}
