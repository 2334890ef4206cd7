"""Checks of the server: is it one that notifyq works well with, and is it set up for it."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from notifyq.operations.doctor.bugs import bugs_of
from notifyq.operations.doctor.finding import fail, ok, warn
from notifyq.operations.doctor.settings import change

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

_OLDEST = 15
_SHORTEST_IDLE = 60_000
"""Milliseconds; workers and pools let sessions idle for longer."""
_SHORTEST = 10_000
"""Milliseconds that a handler with a transaction, and a wait for a lock, should have."""


async def check_version(look: Look) -> Finding:
    """Major and minor version."""
    number = int(await look.value("show server_version_num"))
    major, minor = divmod(number, 10_000)
    found = f"PostgreSQL {major}.{minor}"
    if major < _OLDEST:
        return fail(found, f"version {_OLDEST} is the oldest that notifyq works with")
    if bugs := bugs_of(major, minor):
        mended = max(bug.mended[major] for bug in bugs)
        return warn(
            found,
            f"update to {major}.{mended} or later: "
            + "; ".join(f"{bug.what} ({bug.source})" for bug in bugs),
        )
    return ok(found)


async def check_standby(look: Look) -> Finding:
    """Whether messages can be written at all."""
    if await look.value("select pg_is_in_recovery()"):
        return fail("a standby, which only reads", "connect to the primary")
    if await look.value("show default_transaction_read_only") == "on":
        return fail(
            "transactions are read-only by default",
            await change(look, {"default_transaction_read_only": "off"}),
        )
    return ok("a primary")


async def check_durability(look: Look) -> Finding:
    """Whether what was acknowledged survives a crash of the server."""
    row = await look.row(
        "select current_setting('fsync') as fsync, current_setting('full_page_writes') as pages, "
        "current_setting('synchronous_commit') as commits"
    )
    risks = {
        "fsync": (row["fsync"], "a crash of the machine may lose or ruin everything"),
        "full_page_writes": (row["pages"], "a crash of the machine may ruin tables"),
        "synchronous_commit": (row["commits"], "a crash loses messages that were acknowledged"),
    }
    bad = {name: risk for name, (value, risk) in risks.items() if value == "off"}
    if bad:
        return warn(
            "; ".join(f"{name} is off: {risk}" for name, risk in bad.items()),
            await change(look, dict.fromkeys(bad, "on")),
        )
    return ok(f"fsync is on, synchronous_commit {row['commits']}")


async def check_session(look: Look) -> Finding:
    """Whether what every session of ours asks for has reached the server."""
    row = await look.row(
        "select current_setting('default_transaction_isolation') as isolation, "
        "current_setting('statement_timeout') as timeout, "
        "current_setting('session_replication_role') as replication"
    )
    if row["replication"] != "origin":
        return fail(
            f"session_replication_role is {row['replication']}: no trigger fires, so no bell is "
            "rung and no limit is kept",
            await change(look, {"session_replication_role": "origin"}),
        )
    if row["isolation"] != "read committed":
        return warn(
            f"default_transaction_isolation is {row['isolation']} although notifyq sets it",
            "claims will fail by the dozen: take the default off this user, and see whether a "
            "pooler drops what sessions ask for",
        )
    if row["timeout"] != "0":
        return warn(
            f"statement_timeout is {row['timeout']} although notifyq sets it to 0",
            "take it off this user: NOTIFYQ_COMMAND_TIMEOUT is the limit of calls",
        )
    return ok("isolation and timeouts are those that notifyq asks for")


async def check_room(look: Look) -> Finding:
    """Connections that are left: in the server, in the database, to this user."""
    rows = await look.connection.fetch("""
        with used as (
          select a.datid, a.usesysid
          from pg_stat_activity as a
          -- The type of other users' sessions is hidden, their database is not.
          where a.datid is not null
            and coalesce(a.backend_type, 'client backend') = 'client backend'
        )
        select '' as whose, (select count(*) from used) as used,
          current_setting('max_connections')::integer
            - current_setting('superuser_reserved_connections')::integer
            - coalesce(current_setting('reserved_connections', true)::integer, 0) as most,
          'raise max_connections and restart the server' as advice
        union all
        select format(' to database %s', d.datname),
          (select count(*) from used as u where u.datid = d.oid), d.datconnlimit,
          format('`alter database %I connection limit -1`', d.datname)
        from pg_database as d
        where d.datname = current_database() and d.datconnlimit >= 0
        union all
        select format(' of user %s', r.rolname),
          (select count(*) from used as u where u.usesysid = r.oid), r.rolconnlimit,
          format('`alter role %I connection limit -1`', r.rolname)
        from pg_roles as r
        where r.rolname = current_user and r.rolconnlimit >= 0
    """)
    tightest = max(rows, key=lambda row: row["used"] / max(row["most"], 1))
    found = f"{tightest['used']} of {tightest['most']} connections{tightest['whose']} in use"
    if tightest["used"] > 0.9 * tightest["most"]:
        return warn(found, f"{tightest['advice']}; or lower NOTIFYQ_POOL_SIZE of the workers")
    return ok(found)


async def check_clock(look: Look) -> Finding:
    """How far the clock here is from that of the server, in seconds."""
    before = time()
    theirs = float(await look.value("select extract(epoch from clock_timestamp())::float8"))
    after = time()
    # The answer left somewhere between the two.
    apart = max(theirs - after, before - theirs, 0.0)
    found = f"clocks are {apart:.1f} s apart"
    if apart > 5:
        return warn(
            found,
            "set this machine's clock: locks go by the server's, but times that you give, and "
            "those in logs, go by this one's",
        )
    return ok(found)


async def check_collation(look: Look) -> Finding:
    """Whether texts are still sorted as they were when the indexes were made."""
    row = await look.row("""
        select d.datcollversion as was, pg_database_collation_actual_version(d.oid) as found,
          quote_ident(d.datname) as name
        from pg_database as d
        where d.datname = current_database()
    """)
    if row["was"] is not None and row["was"] != row["found"]:
        return warn(
            f"the database was made with collation {row['was']}, the system has {row['found']}",
            "indexes over texts may miss rows: `reindex schema messages`, then "
            f"`alter database {row['name']} refresh collation version`",
        )
    return ok("texts are sorted as they were when the database was made")


async def check_timeouts(look: Look) -> Finding:
    """Whether sessions are ended, or waits given up, that a queue needs."""
    row = await look.row("""
        select max(s.setting::bigint) filter (where s.name = 'idle_session_timeout') as idle,
          max(s.setting::bigint) filter (
            where s.name = 'idle_in_transaction_session_timeout'
          ) as in_transaction,
          max(s.setting::bigint) filter (where s.name = 'lock_timeout') as lock,
          max(s.setting::bigint) filter (where s.name = 'transaction_timeout') as transaction
        from pg_settings as s
    """)
    limits = {
        "idle_session_timeout": (row["idle"], _SHORTEST_IDLE, "ends sessions that listen"),
        "idle_in_transaction_session_timeout": (
            row["in_transaction"], _SHORTEST, "ends handlers that are in a transaction",
        ),
        "transaction_timeout": (
            row["transaction"], _SHORTEST, "ends handlers that are in a transaction",
        ),
        "lock_timeout": (row["lock"], 1000, "fails claims and finishes that wait a moment"),
    }  # fmt: skip
    short = {
        name: (value, what)
        for name, (value, least, what) in limits.items()
        if value is not None and 0 < value < least
    }
    if short:
        return warn(
            "; ".join(f"{name} of {value} ms {what}" for name, (value, what) in short.items()),
            await change(look, dict.fromkeys(short, "0")),
        )
    return ok("no timeout ends what a queue needs")


CHECKS = {
    "server": check_version,
    "primary": check_standby,
    "durability": check_durability,
    "session": check_session,
    "timeouts": check_timeouts,
    "connections": check_room,
    "clock": check_clock,
    "collation": check_collation,
}
