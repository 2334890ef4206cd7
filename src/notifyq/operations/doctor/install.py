"""Checks of the installed schema: version, missing objects, owner, roles and rights."""

import asyncio

from notifyq.config import DatabaseSettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.errors import SchemaError
from notifyq.operations.doctor.finding import (
    INIT,
    INSTALL,
    MOST,
    Context,
    Finding,
    fail,
    listed,
    ok,
    skipped,
    warn,
)
from notifyq.queues.admin import Admin
from notifyq.server import development


async def check_schema(context: Context) -> Finding:
    """Whether this package works with the version of the schema."""
    try:
        async with Database(context.dsn, settings=DatabaseSettings.load(pool_size=1)) as database:
            await Admin(database).check_schema()
    except SchemaError as error:
        found, _, advice = str(error).rpartition(": ")
        return fail(found, advice)
    version = await context.value(sql.VERSION)
    return ok(f"schema version {version}, this package needs {sql.SCHEMA_VERSION}")


async def check_install(context: Context) -> Finding:
    """Whether triggers, indexes and today's partition exist."""
    row = await context.diagnosis()
    if row["missing"]:
        fix = (*await _repairs(context, row["missing"]), INSTALL)
        return fail(f"missing: {', '.join(row['missing'])}", INIT, fix)
    if row["misplaced"]:
        return warn(
            f"{row['misplaced']} archived messages are outside the partition of their day",
            "`select messages.maintain()` creates the partitions",
            ("select messages.maintain()",),
        )
    return ok("triggers, indexes and partitions exist")


async def _repairs(context: Context, missing: list[str]) -> tuple[str, ...]:
    """Repairs disabled triggers and invalid indexes, which `notifyq init` leaves alone."""
    rows = await context.connection.fetch(
        """
        select format('alter table %s enable trigger %I', g.tgrelid::regclass, g.tgname)
        from pg_trigger as g
        join pg_class as c on c.oid = g.tgrelid
        where c.relnamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
          and g.tgparentid = 0
          and not g.tgisinternal and g.tgenabled <> 'O'
          and exists (
            -- Some are disabled on purpose, as no queue needs them.
            select from unnest($1::text[]) as m (what)
            where split_part(m.what, ',', 1) = 'trigger ' || g.tgname
          )
        union all
        select format('reindex index %s', x.indexrelid::regclass)
        from pg_index as x
        join pg_class as c on c.oid = x.indexrelid
        where c.relnamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
          and not x.indisvalid
          and c.relkind = 'i'
    """,
        missing,
    )
    return tuple(row[0] for row in rows)


async def check_origin(context: Context) -> Finding:
    """Whether the database came from another server, by a backup or by replication."""
    late = await context.connection.fetch("select * from notifyq.late_sequences()")
    if late:
        behind = listed([f"{it['sequence']} behind {it['relation']}" for it in late])
        return fail(
            f"sequences are behind their tables, as after logical replication: {behind}: new rows "
            "get numbers that others have",
            "run `notifyq migrate --adopt`, which sets them",
        )
    row = await context.diagnosis()
    if row["is_foreign"]:
        return warn(
            "the database is a backup of another server: positions of readers are refused",
            "run `notifyq migrate --adopt`",
        )
    return ok("the database was created on this server")


async def check_roles(context: Context) -> Finding:
    """Whether the group roles exist."""
    lacking = await context.value("""
        select string_agg(g.name, ', ')
        from unnest(array[
          'notifyq_publisher', 'notifyq_worker', 'notifyq_viewer', 'notifyq_reader', 'notifyq_admin'
        ]) as g (name)
        where to_regrole(g.name) is null
    """)
    if lacking:
        init = "run `notifyq init` as a role with CREATEROLE"
        return warn(f"there is no role {lacking}", init, (INSTALL,))
    return ok("the group roles exist")


def is_private(dsn: str) -> bool:
    """Whether this is the server of `notifyq server start`, which admits its one user only."""
    server = development()
    return server.running is not None and server.dsn == dsn


async def check_public(context: Context) -> Finding:
    """Whether PUBLIC has rights."""
    found = await context.value("""
        select string_agg(o.what, ', ')
        from (
          select p.oid::regprocedure::text as what
          from pg_proc as p
          cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as x
          where p.pronamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
            and x.grantee = 0
          union all
          select c.oid::regclass::text
          from pg_class as c
          cross join lateral aclexplode(c.relacl) as x
          where c.relnamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
            and x.grantee = 0
            and c.relkind in ('r', 'p', 'v', 'S')
          union all
          select format('schema %I', n.nspname)
          from pg_namespace as n
          cross join lateral aclexplode(n.nspacl) as x
          where n.nspname in ('messages', 'notifyq') and x.grantee = 0
        ) as o
    """)
    if found:
        return fail(f"open to PUBLIC: {found}", INIT, (INSTALL,))
    name = await context.value("""
        select quote_ident(d.datname)
        from pg_database as d
        cross join lateral aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) as x
        where d.datname = current_database() and x.grantee = 0 and x.privilege_type = 'CONNECT'
    """)
    if name and await asyncio.to_thread(is_private, context.dsn):
        return ok("the private server has one user only")
    if name:
        return warn(
            "every user of the server may connect, receive notifications and send them",
            f"`revoke connect on database {name} from public`, and grant it to those who need it",
        )
    return ok("nothing is open to PUBLIC")


_FOREIGN = """
select format('%s of %s', o.name, o.owner) as what,
  format('alter %s %s owner to %I', o.kind, o.name, o.wanted) as advice
from (
  -- A routine is a function or a procedure.
  select 'routine' as kind, p.oid::regprocedure::text as name, p.proowner::regrole::text as owner,
    p.proowner <> n.nspowner as is_other, r.rolname as wanted
  from pg_namespace as n
  join pg_roles as r on r.oid = n.nspowner
  join pg_proc as p on p.pronamespace = n.oid and p.prokind in ('f', 'p')
  where n.nspname = 'messages'
  union all
  select case c.relkind when 'v' then 'view' else 'table' end, c.oid::regclass::text,
    c.relowner::regrole::text, c.relowner <> n.nspowner, r.rolname
  from pg_namespace as n
  join pg_roles as r on r.oid = n.nspowner
  -- A sequence has the owner of its table.
  join pg_class as c on c.relnamespace = n.oid and c.relkind in ('r', 'p', 'v')
  where n.nspname = 'messages'
) as o
where o.is_other
order by 1
"""


async def check_owner(context: Context) -> Finding:
    """Whose rights the functions have, and whether one role owns everything."""
    row = await context.row("""
        select o.name, coalesce(r.rolsuper, false) as is_super,
          coalesce(r.rolcanlogin, false) as may_login
        from (
          select max(n.nspowner::regrole::text) as name, max(n.nspowner::bigint)::oid as oid
          from pg_namespace as n where n.nspname = 'messages'
        ) as o
        left join pg_roles as r on r.oid = o.oid
    """)
    owner = row["name"]
    if owner is None:
        return skipped("there is no schema", "run `notifyq init`")
    others = await context.connection.fetch(_FOREIGN)
    if others:
        return fail(
            f"not owned by {owner}: {listed([it['what'] for it in others])}",
            "; ".join(it["advice"] for it in others[:MOST]),
            tuple(it["advice"] for it in others),
        )
    if row["is_super"]:
        return warn(
            f"the owner {owner} is a superuser",
            "let a role with fewer rights own the schema, because its functions have the rights of "
            "the owner: see the page Install",
        )
    if row["may_login"]:
        return warn(f"the owner {owner} can log in", "let a role without login own the schema")
    return ok(f"the owner is {owner}, who cannot log in")
