"""Checks of sessions that block vacuum, locks or notifications."""

from datetime import UTC, datetime, timedelta

from notifyq.operations import monitor
from notifyq.operations.doctor.finding import Context, Finding, fail, ok, skipped, warn
from notifyq.operations.monitor import Session
from notifyq.operations.texts import span

_MANY = 100_000
"""Age of a snapshot in transactions from which on claims pass very many dead rows."""
_LONG_IDLE = timedelta(minutes=1)
_LONG_TRANSACTION = timedelta(minutes=10)
_LONG_WAIT = timedelta(seconds=10)
_LONG_PREPARED = timedelta(minutes=5)


async def check_notify_queue(context: Context) -> Finding:
    """How full the notification queue of the server is."""
    usage = float(await context.value("select pg_notification_queue_usage()"))
    found = f"{usage:.0%} of the notification queue is in use"
    if usage < 0.1:
        return ok(found)
    # Of any database: all share one queue.
    oldest = await context.value("""
        select format('session %s of %s in database %s (%s)', a.pid, a.usename, a.datname, a.state)
        from pg_stat_activity as a
        where a.backend_type = 'client backend' and a.xact_start is not null
          and a.pid <> pg_backend_pid()
        order by a.xact_start
        limit 1
    """)
    advice = "a session listens but does not read, most likely one that is idle in transaction"
    if oldest:
        advice += f"; the oldest transaction is that of {oldest}"
    if usage >= 0.5:
        return fail(f"{found}: publishers no longer notify", advice)
    return warn(found, advice)


async def check_snapshots(context: Context) -> Finding:
    """What holds the oldest snapshot: a session, prepared transaction, slot or standby."""
    holders = await monitor.holders(context.connection, most=1)
    if not holders:
        return ok(f"nothing holds an old snapshot{context.blind_spot}")
    [holder] = holders
    found = f"{_holder(holder)} holds a snapshot {holder.xmin_age} transactions old"
    if (holder.xmin_age or 0) > _MANY:
        return warn(f"{found}: vacuum cannot remove rows deleted since", holder.advice)
    return ok(f"{found}{context.blind_spot}")


def _holder(holder: Session) -> str:
    if holder.cause == "session":
        return f"{holder.name} of {holder.user_name} ({holder.state})"
    state = f" ({holder.state})" if holder.state else ""
    return f"{holder.cause} {holder.name}{state}"


async def check_prepared(context: Context) -> Finding:
    """Prepared transactions that nobody commits or rolls back."""
    row = await context.connection.fetchrow("""
        select p.gid, p.owner, clock_timestamp() - p.prepared as age, count(*) over () as number,
          format('rollback prepared %L -- or commit prepared', p.gid) as advice
        from pg_prepared_xacts as p
        where p.database = current_database()
        order by p.prepared
        limit 1
    """)
    if row is not None and row["age"] > _LONG_PREPARED:
        return warn(
            f"{row['number']} prepared transactions, {row['gid']} of {row['owner']} for "
            f"{span(row['age'])}: it keeps its locks and its snapshot even over restarts",
            row["advice"],
        )
    return ok("no prepared transaction is left")


async def check_idle(context: Context) -> Finding:
    """A session that is idle in a transaction."""
    session = await _longest(context, "idle", _LONG_IDLE)
    if session is not None:
        return warn(
            f"{_described(session)} is idle in a transaction for {_age(session)}",
            f"{session.advice} -- guard against it with idle_in_transaction_session_timeout",
        )
    return _clear(context, "no session is idle in a transaction")


async def check_long(context: Context) -> Finding:
    """A long transaction."""
    session = await _longest(context, "transaction", _LONG_TRANSACTION)
    if session is not None:
        return warn(
            f"{_described(session)} is in a transaction for {_age(session)}",
            f"{session.advice} -- or wait; until then vacuum removes nothing newer; reports can "
            "run on a standby",
        )
    return _clear(context, "no transaction takes longer than ten minutes")


async def check_locks(context: Context) -> Finding:
    """A session that waits for a lock, and the session that holds it."""
    session = await _longest(context, "lock", _LONG_WAIT)
    if session is not None:
        by = ", ".join(map(str, session.blocked_by)) or "no session any more"
        return warn(
            f"{_described(session)} waits for {session.waits_for} for {_age(session)}, "
            f"blocked by {by}",
            session.advice or "run `notifyq doctor --only locks` again",
        )
    return _clear(context, "no session waits for a lock")


async def _longest(context: Context, cause: str, limit: timedelta) -> Session | None:
    sessions = await monitor.activity(context.connection, most=1000)
    found = [it for it in sessions if it.cause == cause and it.since_at is not None]
    first = min(found, key=_since, default=None)
    return first if first is not None and datetime.now(UTC) - _since(first) > limit else None


def _since(session: Session) -> datetime:
    return session.since_at or datetime.now(UTC)


def _age(session: Session) -> str:
    return span(max(timedelta(0), datetime.now(UTC) - _since(session)))


def _described(session: Session) -> str:
    return f"{session.name} of {session.user_name} ({session.application})"


def _clear(context: Context, found: str) -> Finding:
    if context.sees_all:
        return ok(found)
    return skipped("sessions of other users are hidden", "this user needs pg_read_all_stats")
