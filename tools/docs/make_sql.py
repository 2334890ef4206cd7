"""Print the reference of schema messages: the site's page reference/sql.md.

python tools/docs/make_sql.py          # on a private server that is gone afterwards

The page begins with docs/reference/sql.md. The other texts are the comments in the database; sections
and their order are those of the files in db/init.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from notifyq import DatabaseError, State, Status
from notifyq.schema import install
from notifyq.schema.files import init_files
from notifyq.server import Server

if TYPE_CHECKING:
    from collections.abc import Iterable

    Connection = asyncpg.Connection[asyncpg.Record]

ROOT = Path(__file__).parents[2]
INIT = ROOT / "db/init"

_FUNCTIONS = """
select p.proname::text as name, obj_description(p.oid, 'pg_proc') as comment,
  pg_get_function_result(p.oid) as result,
  array(
    select format('%s%s %s%s',
      case when p.provariadic <> 0 and n = p.pronargs then 'variadic ' else '' end,
      p.proargnames[n], format_type(p.proargtypes[n - 1], null),
      ' = ' || pg_get_function_arg_default(p.oid, n))
    from generate_series(1, p.pronargs) as n
  ) as arguments,
  array(
    select x.grantee::regrole::text from aclexplode(p.proacl) as x
    where x.grantee::regrole::text like 'notifyq%' order by 1
  ) as roles
from pg_proc as p
where p.pronamespace = 'messages'::regnamespace and p.proname !~ '^_'
order by p.proname, p.oid
"""

_RELATIONS = """
select c.relname::text as name, c.relkind = 'v' as is_view,
  obj_description(c.oid, 'pg_class') as comment
from pg_class as c
where c.relnamespace = 'messages'::regnamespace and c.relkind in ('r', 'p', 'v')
  and not c.relispartition
order by array_position(
  array['message', 'message_archive', 'dead_message', 'attempt', 'queue', 'redrive',
    'schema_version'],
  c.relname::text
), c.relname
"""

_COLUMNS = """
select a.attname::text as name, format_type(a.atttypid, a.atttypmod) as type, a.attnotnull as given,
  case when a.attgenerated = '' then pg_get_expr(d.adbin, d.adrelid) end as preset,
  a.attidentity <> '' as is_identity, a.attgenerated <> '' as is_computed,
  coalesce(
    col_description(a.attrelid, a.attnum),
    -- The archive keeps columns of the message as they were.
    (select col_description(m.attrelid, m.attnum) from pg_attribute as m
     where m.attrelid = 'messages.message'::regclass and m.attname = a.attname)
  ) as comment
from pg_attribute as a
left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
where a.attrelid = format('messages.%I', $1::text)::regclass and a.attnum > 0
  and not a.attisdropped
order by a.attname <> 'id', a.attnum
"""

_TYPES = """
select t.typname::text as name, obj_description(t.oid, 'pg_type') as comment,
  array(
    select e.enumlabel::text from pg_enum as e where e.enumtypid = t.oid order by e.enumsortorder
  ) as labels,
  array(
    select format('`%s` %s', a.attname, format_type(a.atttypid, null))
    from pg_attribute as a where a.attrelid = t.typrelid and a.attnum > 0 order by a.attnum
  ) as fields
from pg_type as t
left join pg_class as c on c.oid = t.typrelid
where t.typnamespace = 'messages'::regnamespace
  and (t.typtype = 'e' or c.relkind = 'c')
order by t.typtype <> 'e', t.typname desc
"""

_LABELS = {
    Status.SUCCESS: "the handler returned; what it returned is in `result`",
    Status.REJECTED: "the message can never be handled, or it was cancelled; `details` has the reason",
    Status.FAILED: "the last attempt ended with an error; `details` has it",
    Status.LOCK_EXPIRED: "the last lock ended before its holder did: a crash, or a slow handler",
    State.WAITING: "free to be claimed",
    State.SCHEDULED: "not due yet: `available_at` is in the future",
    State.LOCKED: "claimed, until `lock_expires_at`",
}

# Columns without a comment in the database, because the name is enough.
_PLAIN = {
    "id": "The message.",
    "created_at": "When it was published.",
    "archived_at": "When it was finished.",
    "queue": "Its queue.",
    "state": "Where it stands.",
    "status": "How it ended.",
    "type": "What kind of message it is, for handlers of several kinds.",
    "message": "The payload.",
    "headers": "Data beside the payload, an object.",
    "installed_at": "When this version was installed.",
    "version": "Version of the schema.",
    "redriven_at": "When that was.",
    "subscriber": "Whose event it was; null: a message of a queue.",
    "event_id": "The event of the stream `queue`; null: a message, or a range of events.",
}


async def render(connection: Connection) -> str:
    """Return the page for the schema in this database."""
    # Defaults and types are printed by these settings.
    await connection.execute("set intervalstyle = postgres; set search_path = pg_catalog")
    introduction = (ROOT / "docs/reference/sql.md").read_text(encoding="utf-8")
    parts = [
        introduction.rstrip(),
        *_functions(await connection.fetch(_FUNCTIONS)),
        "## Tables and views",
        "The functions are the interface; tables are there to be read, except that a plain insert "
        "into `messages.message` or `messages.stream_event` publishes.",
    ]
    for relation in await connection.fetch(_RELATIONS):
        columns = await connection.fetch(_COLUMNS, relation["name"])
        parts += [f"### messages.{relation['name']}", relation["comment"] or ""]
        if relation["is_view"] and relation["name"] != "stream_event":
            parts.append("Columns are those of `messages.message_archive`.")
        else:
            parts.append(_table("column | type | default | meaning", map(_column, columns)))
    parts += ["## Types", *_types(await connection.fetch(_TYPES))]
    parts += ["## Errors", _errors()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _functions(rows: Iterable[asyncpg.Record]) -> list[str]:
    by_name: dict[str, list[asyncpg.Record]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    parts: list[str] = []
    for path in init_files(INIT.parent):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"create or replace (?:function|procedure) messages\.([a-z]\w*)\(", text)
        if names:
            title, _, duty = text.partition("\n")[0].removeprefix("-- ").partition(": ")
            parts += [f"## {title}", f"{duty[0].upper()}{duty[1:]}"]
            parts += [_function(by_name[name].pop(0)) for name in names]
    if lost := [name for name, left in by_name.items() if left]:
        raise ValueError(f"functions that no file of db/init creates: {', '.join(lost)}")
    return parts


def _function(row: asyncpg.Record) -> str:
    arguments = [_short(argument) for argument in row["arguments"]]
    # A procedure has none: what it gives back are its last arguments.
    result = _short(row["result"] or "call").replace("SETOF", "setof")
    line = f"{row['name']}({', '.join(arguments)}) → {result}"
    if len(line) > 96:
        line = f"{row['name']}(\n  " + ",\n  ".join(arguments) + f"\n) → {result}"
    roles = ", ".join(f"`{role}`" for role in row["roles"])
    return f"### {row['name']}\n\n```text\n{line}\n```\n\n{row['comment']}\n\nFor {roles}."


def _short(text: str) -> str:
    text = text.replace("timestamp with time zone", "timestamptz").replace("NULL::", "null::")
    return re.sub(r"::[\w.]+(\[\])?", "", text).replace("messages.", "")


def _column(row: asyncpg.Record) -> str:
    meaning = row["comment"] or _PLAIN.get(row["name"], "")
    if not meaning:
        raise ValueError(f"column {row['name']} has no comment")
    preset = f"`{_short(row['preset'] or '')}`"
    if row["is_identity"] or row["is_computed"]:
        preset = "counts up" if row["is_identity"] else "computed"
    kind = _short(row["type"]) + ("" if row["given"] else ", or null")
    return f"`{row['name']}` | {kind} | {preset if preset != '``' else ''} | {meaning}"


def _types(rows: Iterable[asyncpg.Record]) -> list[str]:
    parts: list[str] = []
    for row in rows:
        parts += [f"### messages.{row['name']}", row["comment"]]
        if row["labels"]:
            meanings = {label.value: meaning for label, meaning in _LABELS.items()}
            lines = [f"`{label}` | {meanings[label]}" for label in row["labels"]]
            parts.append(_table("value | meaning", lines))
        else:
            parts.append(_short(", ".join(row["fields"])) + ".")
    return parts


def _errors() -> str:
    lines = sorted(
        f"`{error.sqlstate}` | `{error.__name__}` | {error.__doc__}"
        for error in DatabaseError.__subclasses__()
    )
    return _table("SQLSTATE | in Python | meaning", lines)


def _table(head: str, lines: Iterable[str]) -> str:
    rule = " | ".join("---" for _ in head.split(" | "))
    return "\n".join(f"| {line} |" for line in (head, rule, *lines))


async def _make(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        await install(connection)
        return await render(connection)
    finally:
        await connection.close()


def page() -> str:
    """Return the page for the schema of this folder, installed on a private server."""
    with tempfile.TemporaryDirectory(prefix="notifyq-docs-") as folder:
        # Run by root, the server is another user's and must be able to enter.
        Path(folder).chmod(0o711)
        server = Server(Path(folder) / "server", throwaway=True)
        try:
            return asyncio.run(_make(server.start()))
        finally:
            server.stop()


if __name__ == "__main__":
    sys.stdout.write(page())
