"""Checks of what goes on in the server: who holds up vacuum, locks and the bells of all others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.doctor.finding import fail, lasting, ok, skipped, warn

if TYPE_CHECKING:
    from notifyq.doctor.finding import Finding, Look

_MANY = 100_000
"""Transactions that an old snapshot may span before claims have to pass very many dead rows."""
_FORGOTTEN = timedelta(minutes=1)
"""In a transaction without doing anything."""
_LONG = timedelta(minutes=10)

# What keeps vacuum from taking dead rows, the oldest first: whose it is and how to end it.
_HOLDERS = """
select *
from (
  select format('session %s of %s (%s)', a.pid, a.usename, a.state) as holder,
    age(a.backend_xmin) as age,
    format('select pg_terminate_backend(%s)', a.pid) as advice
  from pg_stat_activity as a
  where a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
  union all
  select format('prepared transaction %L of %s', p.gid, p.owner), age(p.transaction),
    format('rollback prepared %L, or commit it', p.gid)
  from pg_prepared_xacts as p
  union all
  select format('replication slot %s (%s)', s.slot_name,
      case when s.active then 'active' else 'abandoned' end),
    age(s.xmin),
    case
      when s.active then 'end the long query on that standby'
      else format('select pg_drop_replication_slot(%L)', s.slot_name)
    end
  from pg_replication_slots as s
  union all
  select format('standby %s with hot_standby_feedback', r.application_name), age(r.backend_xmin),
    'end the long query there, or turn its hot_standby_feedback off'
  from pg_stat_replication as r
) as h
where h.age is not null
order by h.age desc
limit 1
"""

_LONGEST = """
select a.pid, a.usename, a.application_name, now() - {since} as lasting
from pg_stat_activity as a
where a.pid <> pg_backend_pid() and a.backend_type = 'client backend' and {condition}
order by {since}
limit 1
"""


async def check_bells(look: Look) -> Finding:
    """How full the notifications of the server are that not everybody has read."""
    usage = float(await look.value("select pg_notification_queue_usage()"))
    found = f"{usage:.0%} of the notification queue is in use"
    advice = "some session listens but does not read, most likely one that is idle in transaction"
    if usage >= 0.5:
        return fail(f"{found}: bells are no longer rung", advice)
    return warn(found, advice) if usage >= 0.1 else ok(found)


async def check_snapshots(look: Look) -> Finding:
    """What holds the oldest snapshot: a session, prepared transaction, slot or standby."""
    row = await look.connection.fetchrow(_HOLDERS)
    if row is None:
        return ok(f"nothing holds an old snapshot{look.blind_spot}")
    found = f"{row['holder']} holds a snapshot {row['age']} transactions old"
    if row["age"] > _MANY:
        return warn(f"{found}, so that vacuum takes nothing newer", row["advice"])
    return ok(f"{found}{look.blind_spot}")


async def check_idle(look: Look) -> Finding:
    """A transaction that somebody has forgotten."""
    condition = "a.state like 'idle in transaction%'"
    row = await look.connection.fetchrow(
        _LONGEST.format(since="a.state_change", condition=condition)
    )
    if row is not None and row["lasting"] > _FORGOTTEN:
        return warn(
            f"session {row['pid']} of {row['usename']} ({row['application_name']}) is idle in a "
            f"transaction for {lasting(row['lasting'])}",
            f"select pg_terminate_backend({row['pid']}); and guard against it with "
            "idle_in_transaction_session_timeout",
        )
    return _seen(look, "no session is idle in a transaction")


async def check_long(look: Look) -> Finding:
    """A transaction that takes long."""
    condition = "a.xact_start is not null and a.state not like 'idle%'"
    row = await look.connection.fetchrow(_LONGEST.format(since="a.xact_start", condition=condition))
    if row is not None and row["lasting"] > _LONG:
        return warn(
            f"session {row['pid']} of {row['usename']} ({row['application_name']}) is in a "
            f"transaction for {lasting(row['lasting'])}",
            "move reports to a standby, or make them shorter: meanwhile vacuum takes nothing",
        )
    return _seen(look, "no transaction takes longer than ten minutes")


def _seen(look: Look, found: str) -> Finding:
    if look.sees_all:
        return ok(found)
    return skipped("sessions of other users hide what they do", "grant pg_read_all_stats to see it")


CHECKS = {
    "notify-queue": check_bells,
    "snapshots": check_snapshots,
    "idle": check_idle,
    "long": check_long,
}
