"""Checks for changes of the installed schema: functions, grants, storage parameters, tables."""

import asyncio
import hashlib
import re
from functools import cache

from notifyq.database import statements as sql
from notifyq.database.installs import of, renamed
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
from notifyq.schema.files import init_files

_FUNCTION = re.compile(
    r"^create or replace (?:function|procedure) (?:messages|notifyq)\.(\w+)"
    r"\s*\((.*?)^as \$\$(.*?)\$\$;",
    re.MULTILINE | re.DOTALL,
)
_TABLE = re.compile(
    r"^create (?:unlogged )?table if not exists (?:messages|notifyq)\.(\w+) \("
    r"(?:(?!;).)*?\n\) with \((.*?)\);",
    re.MULTILINE | re.DOTALL,
)
_SETTING = re.compile(r"\bset (\w+) = ")
_DURABLE = ("message", "queue", "subscription", "schedule", "dedup", "dependency", "tick")
"""Tables whose rows must survive a crash, besides the partitions of archive and attempts."""

# The worst first. Somebody made these changes on purpose, therefore --fix leaves them alone.
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
  select false, format('row security is on for %s: publishers may be refused', o.name),
    format('alter table %s disable row level security', o.name)
  from ours as o
  where o.relrowsecurity
  union all
  select false, format('trigger %s on %s is not of notifyq: its errors fail our statements',
    g.tgname, o.name), format('drop trigger %I on %s', g.tgname, o.name)
  from ours as o
  join pg_trigger as g on g.tgrelid = o.oid and not g.tgisinternal and g.tgparentid = 0
  join pg_proc as p on p.oid = g.tgfoid
  where p.pronamespace not in (to_regnamespace('messages'), to_regnamespace('notifyq'))
    and g.tgenabled <> 'D'
  union all
  select false, format('rule %s on %s rewrites our statements', r.rulename, o.name),
    format('drop rule %I on %s', r.rulename, o.name)
  from ours as o
  join pg_rewrite as r on r.ev_class = o.oid
  union all
  select false, format('index %s is invalid: each write maintains it, and no query uses it',
    x.indexrelid::regclass), format('drop index %s', x.indexrelid::regclass)
  from ours as o
  join pg_index as x on x.indrelid = o.oid and not x.indisvalid
  -- The check `install` reports the indexes that notifyq needs.
  where x.indexrelid::regclass::text <> all ($2::text[])
    and not exists (
      select from pg_stat_progress_create_index as b where b.index_relid = x.indexrelid
    )
  union all
  select distinct false, format('subscription %s writes into our tables: no trigger fires there, '
    'and no worker is notified', s.subname), format('alter subscription %I disable', s.subname)
  from ours as o
  join pg_subscription_rel as r on r.srrelid = o.oid
  join pg_subscription as s on s.oid = r.srsubid and s.subenabled
) as f
order by f.is_failure desc, f.what
"""


@cache
def _written(schema: str) -> tuple[dict[str, set[str]], dict[str, dict[str, str]]]:
    """From the SQL files: hashes of functions by name, storage parameters by table."""
    functions: dict[str, set[str]] = {}
    options: dict[str, dict[str, str]] = {}
    for file in init_files():
        text = file.read_text(encoding="utf-8")
        for name, head, body in _FUNCTION.findall(text):
            is_definer = "security definer" in head
            found = _hash(renamed(body, schema), _SETTING.findall(head), is_definer=is_definer)
            functions.setdefault(name, set()).add(found)
        for table, given in _TABLE.findall(text):
            lines = re.sub(r"--[^\n]*", "", given)
            options[table] = {
                name.strip(): value.strip()
                for name, _, value in (it.partition("=") for it in lines.split(","))
            }
    return functions, options


def _hash(body: str, settings: list[str], *, is_definer: bool) -> str:
    # PostgreSQL may change the case of setting names.
    names = sorted({name.lower() for name in settings})
    return hashlib.sha256(f"{body}\0{names}\0{is_definer}".encode()).hexdigest()


async def check_functions(context: Context) -> Finding:
    """Whether the functions are those of this package."""
    version = await context.value(sql.VERSION)
    if version != sql.SCHEMA_VERSION:
        return skipped(
            f"the functions are those of schema version {version}",
            f"run `notifyq migrate`: this package has those of version {sql.SCHEMA_VERSION}",
        )
    written, _ = await asyncio.to_thread(_written, of(context.connection))
    rows = await context.connection.fetch("""
        select p.proname::text as name, p.prosrc as body, p.prosecdef as is_definer,
          array(
            -- Given to functions that read views, where the server has it.
            select split_part(s, '=', 1) from unnest(p.proconfig) as s
            where s not like 'restrict_nonsystem_relation_kind=%'
          ) as settings
        from pg_proc as p
        where p.pronamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
          and p.prokind in ('f', 'p')
    """)
    there: dict[str, set[str]] = {}
    for row in rows:
        found = _hash(row["body"], row["settings"], is_definer=row["is_definer"])
        there.setdefault(row["name"], set()).add(found)
    missing = sorted(written.keys() - there.keys())
    changed = sorted(it for it in written.keys() & there.keys() if written[it] != there[it])
    foreign = sorted(there.keys() - written.keys())
    parts = [
        f"{word}: {listed(names)}"
        for word, names in (("missing", missing), ("not as in this package", changed))
        if names
    ]
    if parts:
        return fail("; ".join(parts), INIT, (INSTALL,))
    if foreign:
        return warn(
            f"not of notifyq: {listed(foreign)}",
            "move them to another schema: objects in these schemas are trusted",
        )
    return ok(f"{len(rows)} functions are those of this package")


async def check_grants(context: Context) -> Finding:
    """Whether the group roles may call their functions."""
    rows = await context.connection.fetch("""
        select p.proname::text as name
        from pg_proc as p
        where p.pronamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
          and p.prokind in ('f', 'p')
          and obj_description(p.oid, 'pg_proc') is not null
          and to_regrole('notifyq_admin') is not null
          and not exists (
            select from aclexplode(p.proacl) as x
            join pg_roles as r on r.oid = x.grantee and r.rolname ~ '^notifyq_'
            where r.oid <> p.proowner
          )
        order by 1
    """)
    written, _ = await asyncio.to_thread(_written, of(context.connection))
    if names := [row["name"] for row in rows if row["name"] in written]:
        return fail(f"no role may call {listed(names)}", INIT, (INSTALL,))
    lacking = await context.value("""
        select string_agg(r.rolname, ', ' order by r.rolname)
        from pg_roles as r
        where r.rolname in (
            'notifyq_publisher', 'notifyq_worker', 'notifyq_viewer', 'notifyq_reader',
            'notifyq_admin'
          )
          and not (
            has_schema_privilege(r.oid, to_regnamespace('messages')::oid, 'usage')
            and has_schema_privilege(r.oid, to_regnamespace('notifyq')::oid, 'usage')
          )
    """)
    if lacking:
        return fail(f"{lacking} may not use the schemas", INIT, (INSTALL,))
    return ok("the group roles may call their functions")


async def check_parameters(context: Context) -> Finding:
    """Whether tables have their storage parameters, which vacuum needs to keep up."""
    _, written = await asyncio.to_thread(_written, of(context.connection))
    rows = await context.connection.fetch("""
        select c.relname::text as name, c.oid::regclass::text as table,
          coalesce(c.reloptions, '{}') as options
        from pg_class as c
        where c.relnamespace in (to_regnamespace('messages'), to_regnamespace('notifyq'))
          and c.relkind = 'r'
        order by 1
    """)
    found: list[str] = []
    statements: list[str] = []
    for row in rows:
        there = dict(it.split("=", 1) for it in row["options"])
        wanted = written.get(row["name"], {})
        lost = {it: value for it, value in wanted.items() if there.get(it) != value}
        # Parameters that somebody added are left alone, except one that stops vacuum.
        stopped = there.get("autovacuum_enabled") in {"false", "off", "0"}
        if lost:
            options = ", ".join(f"{name} = {value}" for name, value in lost.items())
            statements.append(f"alter table {row['table']} set ({options})")
        if stopped:
            statements.append(f"alter table {row['table']} reset (autovacuum_enabled)")
        if lost or stopped:
            found.append(row["name"])
    if found:
        return warn(
            f"storage parameters were changed: {listed(found)}",
            "; ".join(statements),
            tuple(statements),
        )
    return ok("tables have their storage parameters")


async def check_tables(context: Context) -> Finding:
    """Whether tables are durable, and free of foreign triggers, rules and invalid indexes."""
    missing = [it.removeprefix("index ") for it in (await context.diagnosis())["missing"]]
    rows = await context.connection.fetch(_FAULTS, list(_DURABLE), missing)
    if not rows:
        return ok("tables are durable, and nothing foreign is attached to them")
    level = fail if rows[0]["is_failure"] else warn
    return level(
        listed([row["what"] for row in rows], "; "),
        "; ".join(row["advice"] for row in rows[:MOST]),
    )
