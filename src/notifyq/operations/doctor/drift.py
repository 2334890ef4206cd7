"""Checks of the schema against the files of this package: functions, settings of tables, grants."""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations.doctor.finding import Fix, fail, ok, skipped, warn
from notifyq.schema.files import init_files

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

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
_SETTING = re.compile(r"^  set (\w+) = ", re.MULTILINE)
_INIT = "run `notifyq init` as the owner of schemas messages and notifyq"
_MOST = 5
"""Names in a line."""


@dataclass(frozen=True, slots=True)
class _Written:
    """What the files say."""

    functions: dict[str, set[str]]
    """By name, a hash for each function that has it."""
    options: dict[str, dict[str, str]]
    """By table, its storage parameters."""


@cache
def _written() -> _Written:
    functions: dict[str, set[str]] = {}
    options: dict[str, dict[str, str]] = {}
    for file in init_files():
        text = file.read_text(encoding="utf-8")
        for name, head, body in _FUNCTION.findall(text):
            is_definer = "security definer" in head
            found = _hash(body, _SETTING.findall(head), is_definer=is_definer)
            functions.setdefault(name, set()).add(found)
        for table, given in _TABLE.findall(text):
            lines = re.sub(r"--[^\n]*", "", given)
            options[table] = {
                name.strip(): value.strip()
                for name, _, value in (it.partition("=") for it in lines.split(","))
            }
    return _Written(functions, options)


def _hash(body: str, settings: list[str], *, is_definer: bool) -> str:
    # How PostgreSQL writes names of settings is not how they were given.
    names = sorted({name.lower() for name in settings})
    return hashlib.sha256(f"{body}\0{names}\0{is_definer}".encode()).hexdigest()


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


async def check_functions(look: Look) -> Finding:
    """Whether the functions are those of this package, and nobody has changed one."""
    version = await look.value(sql.VERSION)
    if version != sql.SCHEMA_VERSION:
        return skipped(
            f"schema version {version} has functions of its own",
            f"run `notifyq migrate`: this package knows those of version {sql.SCHEMA_VERSION}",
        )
    written = (await asyncio.to_thread(_written)).functions
    rows = await look.connection.fetch("""
        select p.proname::text as name, p.prosrc as body, p.prosecdef as is_definer,
          array(select split_part(s, '=', 1) from unnest(p.proconfig) as s) as settings
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
        f"{word}: {_some(names)}"
        for word, names in (("missing", missing), ("not as in this package", changed))
        if names
    ]
    if parts:
        return fail("; ".join(parts), _INIT, Fix(installs=True))
    if foreign:
        return warn(
            f"not of notifyq: {_some(foreign)}",
            "move them to a schema of your own: they act with rights that those of ours rely on",
        )
    return ok(f"{len(rows)} functions are those of this package")


async def check_grants(look: Look) -> Finding:
    """Whether the group roles may call what is made for them."""
    rows = await look.connection.fetch("""
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
    written = (await asyncio.to_thread(_written)).functions
    if names := [row["name"] for row in rows if row["name"] in written]:
        return fail(f"no role may call {_some(names)}", _INIT, Fix(installs=True))
    lacking = await look.value("""
        select string_agg(r.rolname, ', ' order by r.rolname)
        from pg_roles as r
        where r.rolname in (
            'notifyq_publisher', 'notifyq_worker', 'notifyq_reader', 'notifyq_admin'
          )
          and not (
            has_schema_privilege(r.oid, to_regnamespace('messages')::oid, 'usage')
            and has_schema_privilege(r.oid, to_regnamespace('notifyq')::oid, 'usage')
          )
    """)
    if lacking:
        return fail(f"{lacking} may not use the schemas", _INIT, Fix(installs=True))
    return ok("the group roles may call what is made for them")


async def check_options(look: Look) -> Finding:
    """Whether tables have the settings that they were made with, by which vacuum keeps up."""
    written = (await asyncio.to_thread(_written)).options
    rows = await look.connection.fetch("""
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
        # Settings that somebody has added are theirs, but for one that stops vacuum.
        stopped = there.get("autovacuum_enabled") in {"false", "off", "0"}
        if lost:
            listed = ", ".join(f"{name} = {value}" for name, value in lost.items())
            statements.append(f"alter table {row['table']} set ({listed})")
        if stopped:
            statements.append(f"alter table {row['table']} reset (autovacuum_enabled)")
        if lost or stopped:
            found.append(row["name"])
    if found:
        return warn(
            f"other storage parameters than they were made with: {_some(found)}",
            "; ".join(statements),
            Fix(tuple(statements)),
        )
    return ok("tables have the storage parameters that they were made with")


CHECKS = {"functions": check_functions, "grants": check_grants, "parameters": check_options}
