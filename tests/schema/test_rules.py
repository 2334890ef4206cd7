"""Rules over the catalog: they hold for the functions and tables that are yet to be written."""

import builtins
import inspect
import re

import pytest

from notifyq import errors
from support.database import ROOT, Connection

FUNCTIONS = (
    "pg_proc as p where p.pronamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)"
)
TABLES = "pg_class as c where c.relnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)"
QUERY = re.compile(
    r"\s+(concat\(\s*'[^']*', )?notifyq\.\w+_query\([\w, ]*\)(, '[^']*'\s*\))?(\s+into [\w, ]+)?"
    r"( using (old|new))?"
)
"""A text that is made by a function of ours, as a whole or as a part of a query."""
SEARCH_PATH = "search_path=pg_catalog, pg_temp"
# What a function may fix beside its search path: the planner's choices, how long it waits, and how
# values are written as text.
MAY_SET = re.compile(
    r"(enable_\w+|jit|plan_cache_mode|lock_timeout|timezone|TimeZone|DateStyle|IntervalStyle"
    r"|extra_float_digits|bytea_output|lc_monetary|xmloption|restrict_nonsystem_relation_kind)=",
    re.IGNORECASE,
)

# With a search path they could not commit (wait, run_broker), would search for a procedure in it
# and not in the caller's (register), or be slow for each row (published): they name everything with
# its schema. What a broker calls must not have rights that its registrar lacks: the registrar
# is the role that inserts. Only its owner can change a table (capture, uncapture). key_hash() must
# be inlined to be found in an index, and a search path prevents that (also progress_of,
# event_table).
NAMES_ALL = (
    r"(notifyq\.published|messages\.(wait|register|run_broker|(un)?capture)"
    r"|notifyq\.(progress_of|event_table|(first_|last_)?key_hash))\("
)
# Functions that the package calls as the owner of the schema.
FROM_OUTSIDE = ["current_origin", "is_foreign"]
# Functions that create tables, which belong to the owner.
MAKING = ["make_partition", "make_segment", "compact_day"]
# pg_cron runs a job as the role that scheduled it, and only that role can end its session. The
# server decides what a role may see of other sessions. Values of a type of the caller are made and
# read with the rights of the caller.
AS_CALLER = (
    r"messages\.((start|stop)_broker|holders|activity|cron_entries|health"
    r"|enqueue|value_of|dequeue)\("
)


async def names(connection: Connection, query: str) -> list[str]:
    return [row[0] for row in await connection.fetch(query)]


async def test_there_are_functions_to_check(connection: Connection) -> None:
    assert len(await names(connection, f"select p.proname from {FUNCTIONS}")) > 40


async def test_public_functions_run_as_the_owner_with_a_fixed_search_path(
    connection: Connection,
) -> None:
    """And what only these functions call runs as they do: to set that once more takes time."""
    found = await connection.fetch(
        "select p.oid::regprocedure::text, p.prosecdef, p.proconfig, "
        "obj_description(p.oid, 'pg_proc') is null and p.prorettype <> 'trigger'::regtype "
        "and p.proname <> all ($1) "
        f"from {FUNCTIONS}",
        FROM_OUTSIDE + MAKING,
    )
    for name, is_definer, settings, is_inner in found:
        if re.match(NAMES_ALL, name):
            assert (is_definer, settings) == (False, None)
            continue
        assert is_definer == (not is_inner and not re.match(AS_CALLER, name)), name
        paths = [it for it in settings or [] if it.startswith("search_path")]
        # They read their transition tables, which have no schema, or else views of the same name.
        path = SEARCH_PATH
        if name in {"notifyq.capture_rows()", "notifyq.capture_updates()"}:
            path = path.replace("pg_temp", "notifyq, pg_temp")
        assert paths == ([] if is_inner else [path]), name
        others = [it for it in settings or [] if it not in paths]
        assert all(MAY_SET.match(it) for it in others), (name, others)


def test_functions_that_the_package_calls_are_granted() -> None:
    """Files of the schema are run under a path of their own; what the package sends is not."""
    text = "".join(path.read_text() for path in (ROOT / "src" / "notifyq").rglob("*.py"))
    grants = (ROOT / "db/init/security/grants.sql").read_text()
    helpers = {
        name
        for name in re.findall(r"\bnotifyq\.(\w+)\(", text)
        if not re.search(rf"['\s]{name}['\s]", grants)
    }
    # The sandbox of notifyq.testing, which owns its schema, ends what has expired.
    assert helpers == {*FROM_OUTSIDE, "expire"}


async def test_nothing_is_executable_or_readable_by_everybody(connection: Connection) -> None:
    functions = f"select p.oid::regprocedure from {FUNCTIONS} and has_function_privilege('public', "
    assert await names(connection, functions + "p.oid, 'execute')") == []
    tables = f"select c.oid::regclass::text from {TABLES} and c.relkind in ('r', 'p', 'v') and "
    assert await names(connection, tables + "has_any_column_privilege('public', c.oid, 'select')")\
        == []  # fmt: skip
    for right in ("insert", "update", "delete", "truncate", "references", "trigger"):
        assert (
            await names(connection, tables + f"has_table_privilege('public', c.oid, '{right}')")
            == []
        )
    assert not await connection.fetchval(
        "select has_schema_privilege('public', 'messages', 'usage')"
    )


async def test_types_and_sequences_are_for_the_roles_only(connection: Connection) -> None:
    types = """
        select t.oid::regtype::text from pg_type as t left join pg_class as c on c.oid = t.typrelid
        where t.typnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and (t.typtype in ('e', 'd') or c.relkind = 'c')
    """
    assert len(await names(connection, types)) >= 5
    assert (
        await names(connection, f"{types} and has_type_privilege('public', t.oid, 'usage')") == []
    )
    for role in ("publisher", "worker", "reader", "admin"):
        assert (
            await names(
                connection, f"{types} and not has_type_privilege('notifyq_{role}', t.oid, 'usage')"
            )
            == []
        )
    for right in ("usage", "select", "update"):
        assert (
            await names(
                connection,
                f"select c.relname::text from {TABLES} and case when c.relkind = 'S' then "
                f"has_sequence_privilege('public', c.oid, '{right}') else false end",
            )
            == []
        )


async def test_later_objects_of_the_owner_are_not_public(connection: Connection) -> None:
    async with connection.transaction():
        await connection.execute(
            "set local role notifyq_owner; create type messages.later as enum ('a'); "
            "create table messages.later_table (id bigint generated always as identity); "
            "create function messages.later() returns void language sql as 'select'; "
            "create procedure messages.later_too() language sql as 'select'"
        )
        rights = await connection.fetchrow("""
            select has_type_privilege('public', 'messages.later', 'usage'),
              has_table_privilege('public', 'messages.later_table', 'select, insert, update'),
              has_function_privilege('public', 'messages.later()', 'execute'),
              has_function_privilege('public', 'messages.later_too()', 'execute')
        """)
        assert rights is not None
        assert list(rights) == [False] * 4
        await connection.execute(
            "drop type messages.later; drop table messages.later_table; "
            "drop function messages.later(); drop procedure messages.later_too()"
        )


async def test_no_sql_is_built_from_a_text(connection: Connection) -> None:
    """Each `execute` has its values and names through format() with %I and %L.

    The text may come from a function of ours whose name ends in _query, which is made in that way.
    """
    found = await connection.fetch(
        f"select p.oid::regprocedure::text, p.prosrc from {FUNCTIONS} and p.prosrc ~* 'execute'"
    )
    assert found
    for name, source in found:
        if re.match(r"messages\.(un)?capture(s|_sql)?\(", name):
            # Two run as their caller, and two only have the word in a text.
            continue
        code = re.sub(r"--[^\n]*|'execute'", "", source)  # or the name of a privilege
        for statement in re.findall(r"\bexecute\b(.*?);", code, re.DOTALL | re.IGNORECASE):
            if QUERY.fullmatch(statement):
                continue
            assert re.match(r"\s+(pg_catalog\.)?format\(", statement), name
            placeholders = re.findall(r"%(.)", statement)
            assert placeholders, name
            assert set(placeholders) <= {"I", "L"}, name
            assert "||" not in statement, name
            assert not re.search(r"\busing\b.*\$", statement), name


async def test_queries_that_are_run_elsewhere_have_all_values_through_format(
    connection: Connection,
) -> None:
    found = await connection.fetch(
        f"select p.oid::regprocedure::text, p.prosrc from {FUNCTIONS} and p.proname ~ '_query$'"
    )
    assert found
    for name, source in found:
        code = re.sub(
            r"--[^\n]*|perform notifyq\.raise_invalid\(.*?\);", "", source, flags=re.DOTALL
        )
        returned = re.findall(r"\breturn\b(.*?);", code, re.DOTALL)
        assert returned, name
        for text in returned:
            assert set(re.findall(r"%(.)", text)) <= {"I", "L"}, name
            made, _, _ = text.partition("\n    from ")
            while match := re.search(r"\bformat\(", made):
                made = made[: match.start()] + made[_end(made, match.end()) :]
            made = re.sub(r"'[^']*'|notifyq\.\w+_query\(\w+\)", "", made)
            assert set(re.findall(r"\w+|[^\s(),]", made)) <= {"select", "concat", "string_agg"}, (
                name
            )


def _end(text: str, begin: int) -> int:
    """Return where a parenthesis that was opened before begin is over."""
    depth = 1
    for match in re.finditer(r"'[^']*'|[()]", text[begin:]):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if not depth:
            return begin + match.end()
    raise AssertionError(text)


async def test_every_public_function_is_commented_and_granted_and_no_other_is_granted(
    connection: Connection,
) -> None:
    found = await connection.fetch(f"""
        select p.oid::regprocedure::text, obj_description(p.oid, 'pg_proc') is null,
          obj_description(p.oid, 'pg_proc'),
          exists (
            select from aclexplode(p.proacl) as x
            where x.grantee <> p.proowner and x.privilege_type = 'EXECUTE'
          )
        from {FUNCTIONS}
    """)
    for name, is_internal, comment, is_granted in found:
        assert is_granted != is_internal, name
        assert is_internal or (comment and comment.endswith(".")), name


async def test_every_table_and_type_is_commented(connection: Connection) -> None:
    uncommented = await names(
        connection,
        f"select c.relname::text from {TABLES} and c.relkind in ('r', 'p', 'v') "
        "and c.relname !~ '^(message_archive|attempt(_log)?|step_archive)_' "
        "and obj_description(c.oid, 'pg_class') is null "
        "union all select t.typname::text from pg_type as t "
        "where t.typnamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) and "
        "t.typtype in ('e', 'c') "
        "and (t.typrelid = 0 or exists (select from pg_class as c where c.oid = t.typrelid "
        "and c.relkind = 'c')) and obj_description(t.oid, 'pg_type') is null",
    )
    assert uncommented == []


async def test_every_instant_has_a_time_zone_and_is_named_as_one(connection: Connection) -> None:
    columns = await connection.fetch(f"""
        select c.relname || '.' || a.attname, a.attname, a.atttypid::regtype::text
        from {TABLES.replace(" where", " join pg_attribute as a on a.attrelid = c.oid where")}
          and a.attnum > 0 and not a.attisdropped
    """)
    assert columns
    # Names of a public function's result.
    allowed = {"parked_report.since", "parked_report.until"}
    for name, column, type_name in [row for row in columns if row[0] not in allowed]:
        assert not type_name.startswith("timestamp without"), name
        assert column.endswith("_at") == (type_name == "timestamp with time zone"), name
    arguments = await names(
        connection,
        f"select p.oid::regprocedure::text from {FUNCTIONS} and "
        "('timestamp'::regtype = any (p.proargtypes) or p.prorettype = 'timestamp'::regtype)",
    )
    assert arguments == []


async def test_keys_are_eight_bytes(connection: Connection) -> None:
    narrow = await names(
        connection,
        f"""
        select c.relname || '.' || a.attname
        from {TABLES.replace(" where", " join pg_attribute as a on a.attrelid = c.oid where")}
          and a.attnum > 0 and a.atttypid in ('int4'::regtype, 'int2'::regtype)
          and (a.attidentity <> '' or a.attname ~ '(^|_)(id|token)$')
        """,
    )
    assert narrow == []


async def test_constraints_and_indexes_are_named_by_one_pattern(connection: Connection) -> None:
    found = await names(
        connection,
        f"select c.relname::text from {TABLES} and c.relkind in ('i', 'I') "
        "and c.relname !~ '^(message_archive|attempt(_log)?|step_archive)_(\\d|default)' union all "
        "select k.conname::text from pg_constraint as k "
        "where k.connamespace in ('messages'::regnamespace, 'notifyq'::regnamespace) and "
        "k.contype not in ('n', 't') "
        "and k.conrelid::regclass::text !~ '(message_archive|attempt(_log)?|step_archive)_'",
    )
    assert [name for name in found if not re.search(r"_(pk|uq|ck|fk|idx)$", name)] == []


async def test_every_foreign_key_has_an_index(connection: Connection) -> None:
    missing = await names(
        connection,
        """
        select k.conname::text from pg_constraint as k
        where k.connamespace in ('messages'::regnamespace, 'notifyq'::regnamespace)
          and k.contype = 'f'
          and not exists (
            select from pg_index as x
            where x.indrelid = k.conrelid and (x.indkey::int2[])[0] = k.conkey[1]
          )
        """,
    )
    assert missing == []


async def test_the_end_of_a_lock_is_in_no_index(connection: Connection) -> None:
    """Else a heartbeat would write all indexes of its message."""
    indexes = await names(
        connection,
        "select pg_get_indexdef(x.indexrelid) from pg_index as x "
        "where x.indrelid = 'messages.message'::regclass",
    )
    assert indexes
    assert [it for it in indexes if "lock_expires_at" in it] == []


@pytest.mark.parametrize("table", ["messages.message", "notifyq.message_unlogged"])
async def test_the_indexes_by_key_use_key_hash(connection: Connection, table: str) -> None:
    """Their expression is spelled out where they are created, and must be that of key_hash()."""
    await connection.execute("set enable_seqscan = off; set enable_sort = off")
    for condition, index in (
        ("state = 'waiting' and", f"{table.partition('.')[2]}_key_waiting_idx"),
        ("", f"{table.partition('.')[2]}_key_idx"),
    ):
        plan = await connection.fetch(
            f"explain select from {table} "
            f"where {condition} notifyq.key_hash(queue, key) > 7 "
            "order by notifyq.key_hash(queue, key)"
        )
        lines = [row[0].strip() for row in plan]
        assert any(f"using {index} " in line for line in lines), lines
        assert any(re.match(r"Index Cond: .* > 7\)$", line) for line in lines), lines


async def test_a_key_hash_is_in_the_range_of_its_queue(connection: Connection) -> None:
    numbers = await connection.fetchrow(
        """
        select count(distinct l.key_hash) as hashes,
          bool_and(l.key_hash > l.first and l.key_hash <= l.last) as
          are_within, count(distinct l.first) as queues, bool_and(l.none is null) as are_for_keys
        from (
          select notifyq.key_hash(q.name, k.key) as key_hash,
            notifyq.first_key_hash(q.name) as first,
            notifyq.last_key_hash(q.name) as last, notifyq.key_hash(q.name, null) as none
          from (select format('queue %s', i) as name from generate_series(1, 30) as i) as q
          cross join (select format('key %s', i) as key from generate_series(0, 999) as i) as k
        ) as l
        """
    )
    assert numbers is not None
    assert tuple(numbers) == (30_000, True, 30, True)


def test_the_error_codes_of_the_sql_are_those_of_the_error_classes() -> None:
    in_sql = {
        code
        for file in (ROOT / "db").rglob("*.sql")
        for code in re.findall(r"errcode\s*=\s*'(\w+)'", file.read_text())
    }
    in_python = {
        it.sqlstate
        for _, it in inspect.getmembers(errors, inspect.isclass)
        if issubclass(it, errors.DatabaseError) and it is not errors.DatabaseError
    }
    assert in_sql == in_python
    assert all(re.fullmatch(r"NQ\d{3}", code) for code in in_sql)


async def test_the_owner_of_everything_is_the_owner_of_the_schema(connection: Connection) -> None:
    owners = await names(
        connection,
        f"select distinct p.proowner::regrole::text from {FUNCTIONS} union "
        f"select distinct c.relowner::regrole::text from {TABLES} union "
        "select nspowner::regrole::text from pg_namespace where nspname in ('messages', 'notifyq')",
    )
    assert owners == ["notifyq_owner"]
    (owner,) = await connection.fetch("select * from pg_roles where rolname = 'notifyq_owner'")
    powers = ("rolsuper", "rolcanlogin", "rolcreaterole", "rolcreatedb", "rolreplication")
    assert not any(owner[power] for power in (*powers, "rolbypassrls"))
    assert not await connection.fetchval(
        "select exists (select from pg_auth_members where member = 'notifyq_owner'::regrole)"
    )


async def test_a_comment_names_functions_that_exist(connection: Connection) -> None:
    rows = await connection.fetch("select distinct proname::text from pg_proc")
    # Expressions of SQL in the form of functions, and functions of C and Python.
    known = {row[0] for row in rows} | {"greatest", "mkstemp", *_named_in_python()}
    unknown = {
        (path.name, name)
        for path in [*(ROOT / "db").rglob("*.sql"), *(ROOT / "src").rglob("*.py")]
        for comment in re.findall(r"(?:--|#) ([^\n]*)", path.read_text())
        for name in re.findall(r"(?<![.\w])([a-z_]{3,})\(\)", comment)
    }
    assert {it for it in unknown if it[1] not in known} == set()


def _named_in_python() -> set[str]:
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    made = (re.findall(r"\b(?:def|import) ([\w, ]+)", text) for text in texts)
    return {*dir(builtins)}.union(*(re.split(r"\W+", names) for found in made for names in found))
