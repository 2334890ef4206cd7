"""Checks of what goes on in the server: who holds up vacuum, locks and the bells of all others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from notifyq.operations import monitor
from notifyq.operations.doctor.finding import fail, lasting, ok, skipped, warn

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look
    from notifyq.operations.monitor import Session

_MANY = 100_000
"""Transactions that an old snapshot may span before claims have to pass very many dead rows."""
_FORGOTTEN = timedelta(minutes=1)
"""In a transaction without doing anything."""
_LONG = timedelta(minutes=10)
_WAITS = timedelta(seconds=10)
"""For a lock."""
_PREPARED = timedelta(minutes=5)


async def check_bells(look: Look) -> Finding:
    """How full the notifications of the server are that not everybody has read."""
    usage = float(await look.value("select pg_notification_queue_usage()"))
    found = f"{usage:.0%} of the notification queue is in use"
    if usage < 0.1:
        return ok(found)
    # Of any database: they all have one queue.
    oldest = await look.value("""
        select format('session %s of %s in database %s (%s)', a.pid, a.usename, a.datname, a.state)
        from pg_stat_activity as a
        where a.backend_type = 'client backend' and a.xact_start is not null
          and a.pid <> pg_backend_pid()
        order by a.xact_start
        limit 1
    """)
    advice = "some session listens but does not read, most likely one that is idle in transaction"
    if oldest:
        advice += f": the oldest transaction is that of {oldest}"
    if usage >= 0.5:
        return fail(f"{found}: bells are no longer rung", advice)
    return warn(found, advice)


async def check_snapshots(look: Look) -> Finding:
    """What holds the oldest snapshot: a session, prepared transaction, slot or standby."""
    found = await monitor.holders(look.connection, most=1)
    if not found:
        return ok(f"nothing holds an old snapshot{look.blind_spot}")
    [holder] = found
    told = f"{_holder(holder)} holds a snapshot {holder.xmin_age} transactions old"
    if (holder.xmin_age or 0) > _MANY:
        return warn(f"{told}, so that vacuum takes nothing newer", holder.advice)
    return ok(f"{told}{look.blind_spot}")


def _holder(holder: Session) -> str:
    if holder.cause == "session":
        return f"{holder.name} of {holder.user_name} ({holder.state})"
    state = f" ({holder.state})" if holder.state else ""
    return f"{holder.cause} {holder.name}{state}"


async def check_prepared(look: Look) -> Finding:
    """Transactions that were prepared for a commit in two phases, and left."""
    row = await look.connection.fetchrow("""
        select p.gid, p.owner, clock_timestamp() - p.prepared as lasting,
          count(*) over () as number,
          format('rollback prepared %L -- or commit prepared', p.gid) as advice
        from pg_prepared_xacts as p
        where p.database = current_database()
        order by p.prepared
        limit 1
    """)
    if row is not None and row["lasting"] > _PREPARED:
        return warn(
            f"{row['number']} prepared transactions, {row['gid']} of {row['owner']} for "
            f"{lasting(row['lasting'])}: it keeps its locks and its snapshot over restarts",
            row["advice"],
        )
    return ok("no prepared transaction is left")


async def check_idle(look: Look) -> Finding:
    """A transaction that somebody has forgotten."""
    session = await _longest(look, "idle", _FORGOTTEN)
    if session is not None:
        return warn(
            f"{_told(session)} is idle in a transaction for {_age(session)}",
            f"{session.advice} -- guard against it with idle_in_transaction_session_timeout",
        )
    return _seen(look, "no session is idle in a transaction")


async def check_long(look: Look) -> Finding:
    """A transaction that takes long."""
    session = await _longest(look, "transaction", _LONG)
    if session is not None:
        return warn(
            f"{_told(session)} is in a transaction for {_age(session)}",
            f"{session.advice} -- or wait; meanwhile vacuum takes nothing; reports can run on a "
            "standby",
        )
    return _seen(look, "no transaction takes longer than ten minutes")


async def check_locks(look: Look) -> Finding:
    """A session that waits for a lock, and who has it."""
    session = await _longest(look, "lock", _WAITS)
    if session is not None:
        by = ", ".join(map(str, session.blocked_by)) or "nobody any more"
        return warn(
            f"{_told(session)} waits for {session.waits_for} for {_age(session)}, blocked by {by}",
            session.advice or "run `notifyq doctor --only locks` again",
        )
    return _seen(look, "no session waits for a lock")


async def _longest(look: Look, cause: str, limit: timedelta) -> Session | None:
    sessions = await monitor.activity(look.connection, most=1000)
    found = [it for it in sessions if it.cause == cause and it.since_at is not None]
    first = min(found, key=_since, default=None)
    return first if first is not None and datetime.now(UTC) - _since(first) > limit else None


def _since(session: Session) -> datetime:
    return session.since_at or datetime.now(UTC)


def _age(session: Session) -> str:
    return lasting(max(timedelta(0), datetime.now(UTC) - _since(session)))


def _told(session: Session) -> str:
    return f"{session.name} of {session.user_name} ({session.application})"


def _seen(look: Look, found: str) -> Finding:
    if look.sees_all:
        return ok(found)
    return skipped("sessions of other users hide what they do", "this user needs pg_read_all_stats")


CHECKS = {
    "notify-queue": check_bells,
    "snapshots": check_snapshots,
    "prepared": check_prepared,
    "idle": check_idle,
    "long": check_long,
    "locks": check_locks,
}
