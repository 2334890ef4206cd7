"""Checks of the server: is it one that notifyq works well with, and is it set up for it."""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING

from notifyq.doctor.finding import fail, ok, warn

if TYPE_CHECKING:
    from notifyq.doctor.finding import Finding, Look

_OLDEST = 15
# Before these, a listener that lags may fail on the status of an old transaction.
# Source: commit 8eeb4a0f7c of PostgreSQL and its release notes of November 2025.
_MENDED = {15: 15, 16: 11, 17: 7, 18: 1}


async def check_version(look: Look) -> Finding:
    """Major and minor version."""
    number = int(await look.value("show server_version_num"))
    major, minor = divmod(number, 10_000)
    found = f"PostgreSQL {major}.{minor}"
    if major < _OLDEST:
        return fail(found, f"version {_OLDEST} is the oldest that notifyq works with")
    if minor < _MENDED.get(major, 0):
        return warn(
            found,
            f"update to {major}.{_MENDED[major]} or later: before that LISTEN may fail with "
            "`could not access status of transaction`",
        )
    return ok(found)


async def check_standby(look: Look) -> Finding:
    """Whether messages can be written at all."""
    if await look.value("select pg_is_in_recovery()"):
        return fail("a standby, which only reads", "connect to the primary")
    if await look.value("show default_transaction_read_only") == "on":
        return fail(
            "transactions are read-only by default",
            "take default_transaction_read_only off this database or user",
        )
    return ok("a primary")


async def check_durability(look: Look) -> Finding:
    """Whether what was acknowledged survives a crash of the server."""
    row = await look.row(
        "select current_setting('fsync') as fsync, current_setting('full_page_writes') as pages, "
        "current_setting('synchronous_commit') as commits"
    )
    if row["fsync"] == "off":
        return warn(
            "fsync is off",
            "set it to on, unless this server may be thrown away: a crash of the machine may lose "
            "or ruin everything in it",
        )
    if row["pages"] == "off":
        return warn(
            "full_page_writes is off",
            "turn it on, unless the file system never tears a page: a crash may ruin tables",
        )
    if row["commits"] == "off":
        return warn(
            "synchronous_commit is off",
            "a crash loses messages whose publishing was acknowledged: set it to on or local",
        )
    return ok(f"fsync is on, synchronous_commit {row['commits']}")


async def check_session(look: Look) -> Finding:
    """Whether what every session of ours asks for has reached the server."""
    row = await look.row(
        "select current_setting('default_transaction_isolation') as isolation, "
        "current_setting('statement_timeout') as timeout"
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
    """Connections that are left."""
    row = await look.row(
        # The type of other users' sessions is hidden, their database is not.
        "select count(*) filter (where a.datid is not null "
        "and coalesce(a.backend_type, 'client backend') = 'client backend') as used, "
        "current_setting('max_connections')::integer "
        "- current_setting('superuser_reserved_connections')::integer as most "
        "from pg_stat_activity as a"
    )
    found = f"{row['used']} of {row['most']} connections in use"
    if row["used"] > 0.9 * row["most"]:
        return warn(found, "raise max_connections, or lower NOTIFYQ_POOL_SIZE of the workers")
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


async def check_autovacuum(look: Look) -> Finding:
    """Whether dead rows are taken away."""
    row = await look.row(
        "select current_setting('autovacuum')::boolean and "
        "current_setting('track_counts')::boolean as server, "
        "coalesce(array_to_string(c.reloptions, ',') ~ 'autovacuum_enabled=(false|off|0)', false) "
        "as is_excluded, coalesce(s.n_live_tup, 0) as live, coalesce(s.n_dead_tup, 0) as dead "
        "from (select to_regclass('messages.message') as oid) as m "
        "left join pg_class as c on c.oid = m.oid "
        "left join pg_stat_all_tables as s on s.relid = m.oid"
    )
    found = f"{row['dead']} dead rows beside {row['live']} live messages"
    if not row["server"]:
        return fail("autovacuum is off", "set autovacuum = on and track_counts = on")
    if row["is_excluded"]:
        return fail(
            "autovacuum is off for messages.message",
            "alter table messages.message reset (autovacuum_enabled)",
        )
    if row["dead"] > 100_000 + 2 * row["live"]:
        return warn(found, "see what holds old snapshots; then: vacuum messages.message")
    return ok(found)


CHECKS = {
    "server": check_version,
    "primary": check_standby,
    "durability": check_durability,
    "session": check_session,
    "connections": check_room,
    "clock": check_clock,
    "autovacuum": check_autovacuum,
}
