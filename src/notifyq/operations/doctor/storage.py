"""Checks of storage: dead rows, partitions, WAL and transaction ids."""

import asyncpg

from notifyq.operations.doctor.finding import Context, Finding, change, fail, ok, skipped, warn
from notifyq.operations.texts import size

_MUCH_WAL = 2**30
"""Bytes of WAL that a replication slot may keep."""
_MANY = 10_000
"""Messages from which on plans without statistics are too slow."""
_OLD = 1_200_000_000
"""Transactions; the server stops writing at 2.1 billion."""


async def check_autovacuum(context: Context) -> Finding:
    """Whether autovacuum removes dead rows."""
    row = await context.row(
        "select current_setting('autovacuum')::boolean as vacuums, "
        "current_setting('track_counts')::boolean as counts, "
        "coalesce(array_to_string(c.reloptions, ',') ~ 'autovacuum_enabled=(false|off|0)', false) "
        "as is_excluded, coalesce(s.n_live_tup, 0) as live, coalesce(s.n_dead_tup, 0) as dead, "
        "coalesce(s.last_analyze, s.last_autoanalyze) is null and not exists ("
        "select from pg_stats as k where k.schemaname = 'messages' and k.tablename = 'message'"
        ") and has_table_privilege(m.oid, 'select') as is_unknown "
        "from (select to_regclass('messages.message') as oid) as m "
        "left join pg_class as c on c.oid = m.oid "
        "left join pg_stat_all_tables as s on s.relid = m.oid"
    )
    found = f"{row['dead']} dead rows beside {row['live']} live messages"
    settings = {"autovacuum": row["vacuums"], "track_counts": row["counts"]}
    if off := [name for name, is_on in settings.items() if not is_on]:
        return fail(
            f"{' and '.join(off)} off: dead rows stay, and claims get slower and slower",
            await change(context, dict.fromkeys(off, "on")),
        )
    if row["is_excluded"]:
        reset = "alter table messages.message reset (autovacuum_enabled)"
        return fail("autovacuum is off for messages.message", reset, (reset,))
    if row["dead"] > 100_000 + 2 * row["live"]:
        return warn(
            found,
            "`notifyq doctor --only snapshots` names what keeps them; then run "
            "`vacuum messages.message`",
            ("vacuum (skip_locked) messages.message",),
        )
    if row["is_unknown"] and row["live"] > _MANY:
        analyze = "analyze messages.message"
        return warn(
            f"{row['live']} live messages without statistics, as after a restore: plans of "
            "claims may be slow",
            analyze,
            (analyze,),
        )
    return ok(found)


async def check_partitions(context: Context) -> Finding:
    """Whether partitions of the next days exist."""
    health = await context.health()
    if not health.is_whole:
        return skipped("this user lacks the right to check this", "needs the role notifyq_reader")
    days, table = min(
        (health.get("partitions_ahead", table) or 0, table)
        for table in ("message_archive", "attempt")
    )
    found = f"messages.{table} has partitions for the next {days:.0f} days"
    maintain = "select messages.maintain()"
    if not days:
        return warn(
            f"{found}: tomorrow's rows go to a table that cannot be dropped by day",
            f"start `notifyq worker MODULE:APP` or pg_cron; until then run `{maintain}`",
            (maintain,),
        )
    return ok(found)


async def check_wal(context: Context) -> Finding:
    """Whether WAL piles up."""
    try:
        return await _check_wal(context)
    except asyncpg.ObjectNotInPrerequisiteStateError:  # Aurora, unless wal_level is logical
        return ok("this server does not report how much WAL it keeps")


async def _check_wal(context: Context) -> Finding:
    slot = await context.connection.fetchrow("""
        select s.slot_name, s.active, s.wal_status,
          format('select pg_drop_replication_slot(%L)', s.slot_name) as advice,
          pg_wal_lsn_diff(
            case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
              else pg_current_wal_lsn() end,
            s.restart_lsn
          ) as kept
        from pg_replication_slots as s
        where s.restart_lsn is not null
        order by s.wal_status in ('unreserved', 'lost') desc, kept desc
        limit 1
    """)
    if slot is not None:
        state = "active" if slot["active"] else "abandoned"
        found = f"replication slot {slot['slot_name']} ({state}) keeps {size(slot['kept'])} of WAL"
        if slot["wal_status"] in {"unreserved", "lost"}:
            return fail(f"{found}, and has lost some", f"recreate its reader: `{slot['advice']}`")
        if slot["kept"] > _MUCH_WAL:
            why = "find out why its reader is behind"
            return warn(found, why if slot["active"] else f"{why}, or `{slot['advice']}`")
    failing = await context.value("""
        select format('%s since %s', a.last_failed_wal, a.last_failed_time)
        from pg_stat_archiver as a
        where current_setting('archive_mode') <> 'off'
          and a.last_failed_time > coalesce(a.last_archived_time, '-infinity')
    """)
    if failing:
        return warn(
            f"archive_command fails: {failing}",
            "repair it: until then WAL is kept, and the disk fills up",
        )
    return ok("neither a slot nor a failing archive_command keeps much WAL")


async def check_frozen(context: Context) -> Finding:
    """How close the oldest database of the server is to transaction id wraparound."""
    row = await context.row("""
        select age(d.datfrozenxid)::bigint as xids, mxid_age(d.datminmxid)::bigint as multixacts,
          current_setting('autovacuum_freeze_max_age')::bigint as most,
          current_setting('autovacuum_multixact_freeze_max_age')::bigint as most_multixacts,
          d.datname as name, quote_ident(d.datname) as quoted, d.datallowconn as is_open
        from pg_database as d
        order by greatest(age(d.datfrozenxid), mxid_age(d.datminmxid)) desc,
          d.datname = current_database() desc
        limit 1
    """)
    found = (
        f"the oldest row, in database {row['name']}, is {max(row['xids'], row['multixacts'])} "
        "transactions old"
    )
    advice = (
        "`notifyq doctor --only snapshots` names what holds old snapshots; then run, in database "
        f"{row['name']}, `vacuum (freeze)`"
    )
    if not row["is_open"]:
        allow = f"alter database {row['quoted']} allow_connections"
        advice += f", between `{allow} true` and `{allow} false`"
    if max(row["xids"], row["multixacts"]) > _OLD:
        return fail(f"{found}: the whole server will stop accepting writes", advice)
    if row["xids"] > 2 * row["most"] or row["multixacts"] > 2 * row["most_multixacts"]:
        return warn(f"{found}, and vacuum does not keep up", advice)
    return ok(found)
