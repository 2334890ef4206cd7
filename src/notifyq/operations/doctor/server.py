"""Checks of the server: its version, settings, clock and connections."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import time

from notifyq.operations.doctor.finding import Context, Finding, change, fail, listed, ok, warn
from notifyq.server.folder import home

_OLDEST = 15
_TIMEOUTS = {
    # Sessions of workers and pools are idle for long.
    "idle_session_timeout": (60_000, "ends sessions that listen"),
    "idle_in_transaction_session_timeout": (10_000, "ends handlers that are in a transaction"),
    "transaction_timeout": (10_000, "ends handlers that are in a transaction"),
    "lock_timeout": (1000, "fails claims and finishes that wait briefly"),
}
"""The least milliseconds of each, and what a shorter one does."""
_RISKS = {
    "fsync": "a crash of the machine may corrupt or lose everything",
    "full_page_writes": "a crash of the machine may corrupt tables",
    "synchronous_commit": "a crash loses committed messages",
}
"""What may happen if a setting is off."""

# Of other users: that of this one is seen in its session.
_WITHOUT_TRIGGERS = """
select o.owner, format('alter %s reset session_replication_role', o.owner) as advice
from (
  select
    case
      when s.setrole = 0 and s.setdatabase = 0 then 'role all'
      when s.setrole = 0 then format('database %I', d.datname)
      when s.setdatabase = 0 then format('role %I', r.rolname)
      else format('role %I in database %I', r.rolname, d.datname)
    end as owner
  from pg_db_role_setting as s
  join pg_database as d on d.datname = current_database() and s.setdatabase in (0, d.oid)
  left join pg_roles as r on r.oid = s.setrole
  where exists (
      select from unnest(s.setconfig) as c (setting)
      where c.setting ~* '^session_replication_role=replica$'
    )
    and (
      s.setrole = 0
      or has_schema_privilege(r.oid, to_regnamespace('messages')::oid, 'usage')
    )
) as o
order by 1
"""


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug of PostgreSQL, from a minor release on (0 by default) up to another one."""

    what: str
    fixed_in: Mapping[int, int]
    """By major version, the first minor release without the bug."""
    source: str
    since: Mapping[int, int] | None = None

    def is_in(self, major: int, minor: int) -> bool:
        """Whether a server of this version has the bug."""
        first = (self.since or {}).get(major, 0)
        return first <= minor < self.fixed_in.get(major, 0)


BUGS = (
    Bug(
        "substring() of a stored text may fail with an encoding error",
        {15: 17, 16: 13, 17: 9, 18: 3},
        "release notes of 26 February 2026, after the fix of CVE-2026-2006",
        {15: 16, 16: 12, 17: 8, 18: 2},
    ),
    Bug(
        "a session that reads its notifications late may lose them with 'could not access status "
        "of transaction'",
        {15: 16, 16: 12, 17: 8, 18: 2},
        "release notes of 12 February 2026",
    ),
    Bug(
        "a row lock may lock another row: claims wait or deadlock",
        {15: 16, 16: 12, 17: 8, 18: 2},
        "release notes of 12 February 2026",
    ),
    Bug(
        "ALTER ROLE … SET ROLE has no effect",
        {15: 10, 16: 6, 17: 2},
        "release notes of 21 November 2024, after the fix of CVE-2024-10978",
        {15: 9, 16: 5, 17: 1},
    ),
    Bug(
        "VACUUM beside GRANT may lose a catalog change and corrupt an index",
        {15: 9, 16: 5, 17: 1},
        "release notes of 14 November 2024, commit a07e03fd8f",
    ),
    Bug(
        "VACUUM may never end after a standby with an old transaction reconnects",
        {15: 8, 16: 4},
        "release notes of 8 August 2024",
    ),
    Bug(
        "a session that receives notifications may leak memory",
        {15: 8, 16: 4},
        "release notes of 8 August 2024",
    ),
)


async def check_server(context: Context) -> Finding:
    """Major version, and bugs of the minor version."""
    number = int(await context.value("show server_version_num"))
    major, minor = divmod(number, 10_000)
    found = f"PostgreSQL {major}.{minor}"
    if major < _OLDEST:
        return fail(found, f"version {_OLDEST} is the oldest that notifyq works with")
    if bugs := [bug for bug in BUGS if bug.is_in(major, minor)]:
        fixed_in = max(bug.fixed_in[major] for bug in bugs)
        return warn(
            found,
            f"update to {major}.{fixed_in} or later: "
            + "; ".join(f"{bug.what} ({bug.source})" for bug in bugs),
        )
    return ok(found)


async def check_primary(context: Context) -> Finding:
    """Whether the server accepts writes."""
    if await context.value("select pg_is_in_recovery()"):
        return fail("the server is a standby, which is read-only", "connect to the primary")
    if await context.value("show default_transaction_read_only") == "on":
        return fail(
            "transactions are read-only by default",
            await change(context, {"default_transaction_read_only": "off"}),
        )
    return ok("the server is a primary")


async def check_durability(context: Context) -> Finding:
    """Whether committed messages survive a crash of the server."""
    rows = await context.connection.fetch(
        "select s.name, s.setting from pg_settings as s where s.name = any($1)", list(_RISKS)
    )
    found = {row["name"]: row["setting"] for row in rows}
    bad = [name for name in _RISKS if found[name] == "off"]
    if "synchronous_commit" in bad and await _is_for_development(context):
        bad.remove("synchronous_commit")
    if bad:
        return warn(
            "; ".join(f"{name} is off: {_RISKS[name]}" for name in bad),
            await change(context, dict.fromkeys(bad, "on")),
        )
    return ok(f"fsync is on, synchronous_commit {found['synchronous_commit']}")


async def _is_for_development(context: Context) -> bool:
    """Whether the server is that of `notifyq server start`, which gives up durability for speed."""
    data = await context.value("select setting from pg_settings where name = 'data_directory'")
    return data is not None and Path(data) == home() / "data"


async def check_session(context: Context) -> Finding:
    """Whether the settings of our sessions have reached the server."""
    row = await context.row(
        "select current_setting('default_transaction_isolation') as isolation, "
        "current_setting('statement_timeout') as timeout, "
        "current_setting('session_replication_role') as replication, "
        "coalesce(current_setting('restrict_nonsystem_relation_kind', true), '') as restricted"
    )
    if row["replication"] == "replica":
        return fail(
            "session_replication_role is replica: no trigger fires, publishers do "
            "not notify, and limits are not kept",
            await change(context, {"session_replication_role": "origin"}),
        )
    if others := await context.connection.fetch(_WITHOUT_TRIGGERS):
        return warn(
            f"session_replication_role is replica for {listed([it['owner'] for it in others])}: "
            "what they publish or finish fires no trigger, notifies no worker and keeps no limit",
            "; ".join(it["advice"] for it in others),
        )
    if row["restricted"]:
        return warn(
            f"restrict_nonsystem_relation_kind is {row['restricted']}: the views stream_event and "
            "dead_message of schema messages are closed to everybody",
            await change(context, {"restrict_nonsystem_relation_kind": ""}),
        )
    if row["isolation"] != "read committed":
        return warn(
            f"default_transaction_isolation is {row['isolation']} although notifyq sets it",
            "many claims will fail: reset the default of this user, and check whether a pooler "
            "drops the settings of sessions",
        )
    if row["timeout"] != "0":
        return warn(
            f"statement_timeout is {row['timeout']} although notifyq sets it to 0",
            "reset it for this user: NOTIFYQ_COMMAND_TIMEOUT limits calls",
        )
    return ok("isolation and timeouts are those that notifyq sets")


async def check_timeouts(context: Context) -> Finding:
    """Whether a timeout ends sessions or waits that a queue needs."""
    rows = await context.connection.fetch(
        "select s.name, s.setting::bigint as value from pg_settings as s where s.name = any($1)",
        list(_TIMEOUTS),
    )
    found = {row["name"]: row["value"] for row in rows}
    short = {
        name: f"{name} of {found[name]} ms {effect}"
        for name, (least, effect) in _TIMEOUTS.items()
        if 0 < found.get(name, 0) < least
    }
    if short:
        return warn("; ".join(short.values()), await change(context, dict.fromkeys(short, "0")))
    return ok("no timeout ends what a queue needs")


async def check_connections(context: Context) -> Finding:
    """How many connections are in use: of the server, the database and this user."""
    rows = await context.connection.fetch("""
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


async def check_clock(context: Context) -> Finding:
    """How far the clocks of this machine and of the server are apart."""
    before = time()
    theirs = float(await context.value("select extract(epoch from clock_timestamp())::float8"))
    after = time()
    # The server read its clock between the two.
    apart = max(theirs - after, before - theirs, 0.0)
    found = f"clocks are {apart:.1f} s apart"
    if apart > 5:
        return warn(
            found,
            "set the clock of this machine: locks use the server's clock, but your timestamps and "
            "the logs use this one",
        )
    return ok(found)


async def check_encoding(context: Context) -> Finding:
    """Whether the database can store every text."""
    encoding = await context.value("select current_setting('server_encoding')")
    if encoding == "UTF8":
        return ok("the encoding is UTF8")
    if encoding == "SQL_ASCII":
        return warn(
            "the encoding is SQL_ASCII: messages with bytes that are not UTF-8 are refused",
            "publish in UTF-8, or move to a database with UTF8",
        )
    return warn(
        f"the encoding is {encoding}: payloads and results with other characters are refused, in "
        "errors they become escapes",
        "escape them before you publish, or move to a database with UTF8",
    )


async def check_collation(context: Context) -> Finding:
    """Whether the system still sorts texts as it did when the indexes were made."""
    row = await context.row("""
        select d.datcollversion as was, pg_database_collation_actual_version(d.oid) as found,
          quote_ident(d.datname) as name
        from pg_database as d
        where d.datname = current_database()
    """)
    if row["was"] is not None and row["was"] != row["found"]:
        return warn(
            f"the database has collation version {row['was']}, the system {row['found']}",
            "indexes over texts may miss rows: run `reindex schema messages`, then "
            f"`alter database {row['name']} refresh collation version`",
        )
    return ok("the collation is that of the creation of the database")
