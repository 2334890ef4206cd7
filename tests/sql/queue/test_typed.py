"""Queues of one type, and queues with a JSON Schema."""

from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError, PayloadError
from support.database import Connection, one_row, value

TYPES = """
    create type mood as enum ('sad', 'happy');
    create type pair as (a integer, b text);
    create domain positive as integer check (value > 0);
"""
VALUES = [
    r"'\x00ff'::bytea",
    "'NaN'::float8",
    "0.1::float8 + 0.2::float8",
    "1.10::numeric",
    "'infinity'::timestamptz",
    "'2020-02-03 04:05:06.789123+09'::timestamptz",
    "'1 mon 2 days 03:04:05.678'::interval",
    "'{1,null,3}'::integer[]",
    "row(1, 'a \"b\", \\c')::pair",
    "row(null, null)::pair",
    "array[row(1, 'x')::pair, null]",
    "'happy'::mood",
    "5::positive",
    "'[1,5)'::int4range",
    "'{[1,3),[5,7)}'::int4multirange",
    "'{\"a\": 1.00}'::jsonb",
    "'null'::jsonb",
    "'192.168.0.1/24'::inet",
    "null::integer",
    "''::text",
    "true",
]
# Publishers may have any of them.
SETTINGS = """
    set datestyle = 'SQL, DMY'; set extra_float_digits = -10; set bytea_output = 'escape';
    set intervalstyle = 'iso_8601'; set timezone = 'Asia/Tokyo';
"""


async def count(connection: Connection) -> int:
    return int(await connection.fetchval("select count(*) from messages.message"))


async def test_every_value_comes_back_exactly(connection: Connection) -> None:
    await connection.execute(TYPES)
    for number, given in enumerate(VALUES):
        await connection.execute(
            f"select messages.create_queue('q{number}', payload_type => pg_typeof({given}))"
        )
        await connection.execute(SETTINGS)
        await connection.execute(f"select messages.enqueue('q{number}', {given})")
        await connection.execute("reset all")
        found = await one_row(
            connection,
            f"select messages.value_of(m.message, {given}) is not distinct from {given}, "
            f"pg_typeof(messages.value_of(m.message, {given})) = pg_typeof({given}) "
            f"from messages.message as m where m.queue = 'q{number}'",
        )
        assert list(found) == [True, True], given


async def test_the_wrong_type_stores_nothing(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_type="integer")
    for statement in [
        "select messages.enqueue('q', 1::bigint)",
        "select messages.enqueue('q', 'x'::text)",
        "select messages.enqueue('q', 'x')",
        "select messages.publish('q', '1')",
        "select messages.publish('q', '\"x\"')",
        "select messages.publish('q', '\"99999999999\"')",
        "select messages.publish_many('q', array['\"5\"', '{}']::jsonb[])",
        "insert into messages.message (queue, message) values ('q', '{}')",
    ]:
        with pytest.raises(asyncpg.DatatypeMismatchError, match="type integer"):
            await connection.execute(statement)
        assert await count(connection) == 0, statement
    await connection.execute("select messages.enqueue('q', 5), messages.enqueue('q', null)")
    assert await count(connection) == 2
    assert await connection.fetchval("select payload_type from messages.queue_info('q')") == (
        "integer"
    )


async def test_a_type_can_be_removed(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_type="integer")
    await connection.execute("select messages.alter_queue('q', payload_type => '-')")
    await connection.execute("select messages.publish('q', '{}')")
    with pytest.raises(InvalidArgumentError, match="has no payload_type"):
        await connection.execute("select messages.enqueue('q', 1)")


async def test_no_check_of_a_domain_runs_with_the_rights_of_the_owner(
    connection: Connection,
) -> None:
    await connection.execute("""
        create table public.seen (role text);
        create function public.note(given text) returns boolean language plpgsql as $$
          begin insert into public.seen values (current_user); return true; end $$;
        create domain public.trap as text check (public.note(value));
        create type public.outer as (inner_one public.trap[]);
    """)
    values = {"public.trap": "x", "public.outer": '("{x,null}")', "public.outer[]": '{"({x})"}'}
    for name, text in values.items():
        await value(connection, "create_queue", name=name, payload_type=name)
        await value(connection, "publish", queue=name, message=text)
        await connection.execute("delete from public.seen")
        await connection.execute(f"select messages.enqueue('{name}', '{text}'::{name})")
        await connection.execute(
            f"select messages.value_of(m.message, null::{name}) from messages.message as m "
            f"where m.queue = '{name}'"
        )
        # It is evaluated, but as the caller.
        me = await connection.fetchval("select current_user::text")
        seen = await connection.fetch("select distinct role from public.seen")
        assert [row["role"] for row in seen] == [me]
    with pytest.raises(asyncpg.DatatypeMismatchError, match="outer"):
        await value(connection, "publish", queue="public.outer", message="x")


ODD = """
    create type word as enum ('one', 'two');
    create domain short as varchar(3);
    create domain even as integer check (value % 2 = 0);
    create type inner_row as (a integer, b text, c short[]);
    create type outer_row as (one inner_row, many inner_row[], w word, ws word[], at timestamptz);
    create type words as range (subtype = word);
    create type evens as range (subtype = even);
    create type nothing as ();
"""
TEXTS: dict[str, list[str | None]] = {
    "word": ["one"],
    "word[]": ["{one,NULL}", "[0:1]={one,two}", "{{one},{two}}"],
    "short": ["abc", ""],
    "short[]": ["{abc,NULL}"],
    "even": ["4"],
    "inner_row": ['(1,"a ""b"", (c)\\\\",{abc})', "(,,)", '( 1 ,"","{}")', "(1,a(b,)"],
    "inner_row[]": ['{"(1,a,{abc})",NULL}', '{{"(1,,)"},{"(2,,)"}}'],
    "outer_row": ['("(1,x,{a})","{""(2,y,)""}",one,"{one,two}",2020-01-02)', "(,,,,)"],
    "words": ["[one,two]", "empty"],
    "nothing": ["()"],
    '"char"': ["x", ""],
    "name": ["x"],
    "point[]": ['{"(1,2)"}'],
    "box[]": ["{(1,2),(0,0);(3,4),(0,0)}"],
    "int2vector": ["1 2"],
}
WRONG = {
    "word": ["three"],
    "word[]": ["{one,three}", "one"],
    "short": ["abcd"],
    "short[]": ["{abcd}"],
    "even": ["x"],
    "inner_row": ["(x,,)", "(1,)", "(1,2,3,4)", "1", "(1,a,{abcd})", '(1,"a,)', "(1,a,)x"],
    "inner_row[]": ['{"(x,,)"}', "(1,,)"],
    "outer_row": ['("(x,,)",,,,)', '(,"{""(x,,)""}",,,)', "(,,three,,)", "(,,,,noon)"],
    "words": ["[one,three]"],
    "nothing": ["(1)", ""],
}


async def test_a_text_is_checked_without_making_a_value(connection: Connection) -> None:
    """What the server takes for a value of the type is one, and nothing else, but for checks."""
    await connection.execute(ODD)
    for name, texts in TEXTS.items():
        await value(connection, "create_queue", name=name, payload_type=name)
        for text in texts:
            await connection.execute(f"select ${text}$::{name}".replace("$", "$$"))
            await value(connection, "publish", queue=name, message=text)
        for text in WRONG.get(name, []):
            # A cast cuts off what a column refuses.
            with pytest.raises(asyncpg.PostgresError):
                await connection.execute(
                    f"create temporary table t (v {name}); insert into t values ($${text}$$)"
                )
            await connection.execute("drop table if exists t")
            with pytest.raises(asyncpg.DatatypeMismatchError, match="has values of type"):
                await value(connection, "publish", queue=name, message=text)
    assert await count(connection) == sum(map(len, TEXTS.values()))


async def test_the_check_of_a_domain_runs_as_the_caller(connection: Connection) -> None:
    await connection.execute("create domain email as text check (value ~ '@')")
    await value(connection, "create_queue", name="q", payload_type="email")
    for given in ("'nope'", "'nope'::text", "'nope'::email"):
        with pytest.raises(asyncpg.CheckViolationError):
            await connection.execute(f"select messages.enqueue('q', {given})")
    await connection.execute("select messages.enqueue('q', 'a@b'), messages.enqueue('q', null)")
    assert await count(connection) == 2


async def test_each_type_for_columns_can_be_enqueued(connection: Connection) -> None:
    """Also those that are texts by themselves, as far as a function goes."""
    found = await connection.fetch("""
        select format_type(t.oid, null) as name from pg_type as t
        where t.typtype in ('b', 'r', 'm') and t.typnamespace = 'pg_catalog'::regnamespace
          and t.oid not in ('aclitem'::regtype, 'gtsvector'::regtype)
          -- Those of which nobody can give a value.
          and t.typname !~ '^_?pg_(node_tree|ndistinct|dependencies|mcv_list|brin_|ddl_)'
        order by 1
    """)
    assert len(found) > 100
    for number, (name,) in enumerate(found):
        await value(connection, "create_queue", name=f"q{number}", payload_type=name)
        await connection.execute(f"select messages.enqueue('q{number}'::text, null::{name})")
    for name, given in {'"char"': "x", "name": "x", "character": "x", "text": "x"}.items():
        number = [row["name"] for row in found].index(name)
        await connection.execute(f"select messages.enqueue('q{number}'::text, '{given}'::{name})")
        got = await connection.fetch(
            f"select messages.value_of(m.message, null::{name})::text from messages.message as m "
            "where m.queue = $1 order by m.id",
            f"q{number}",
        )
        assert [row[0] for row in got] == [None, given]


async def test_a_char_is_one_byte(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_type='"char"')
    for given in ("'x'", "''", "'x'::\"char\""):
        await connection.execute(f"select messages.enqueue('q', {given})")
    with pytest.raises(asyncpg.DatatypeMismatchError, match='"char"'):
        await connection.execute("select messages.enqueue('q', 'xy')")
    assert await count(connection) == 3


async def test_a_type_may_be_in_a_schema_of_others(connection: Connection) -> None:
    await connection.execute("""
        create schema "A.b";
        create type "A.b"."m[]o" as enum ('x', 'y');
        create type "A.b".row as (m "A.b"."m[]o"[]);
    """)
    assert not await connection.fetchval(
        "select has_schema_privilege('notifyq_owner', 'A.b', 'usage')"
    )
    given = {'"A.b"."m[]o"': "x", '"A.b"."m[]o"[]': "{x,y}", '"A.b".row': '("{x,y}")'}
    for name, text in given.items():
        await value(connection, "create_queue", name=name, payload_type=name)
        await connection.execute(f"select messages.enqueue('{name}', '{text}'::{name})")
        await value(connection, "publish", queue=name, message=text)
        with pytest.raises(asyncpg.DatatypeMismatchError):
            await value(connection, "publish", queue=name, message="z")
    assert await count(connection) == 6


SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
    },
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "pattern": r"^\w+\b"}},
}


async def test_a_message_satisfies_the_schema(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_schema=SCHEMA)
    for message in ({"id": 1, "tags": ["a"]}, {"id": 1.0}):
        await value(connection, "publish", queue="q", message=message)
    wrong: list[tuple[Any, str]] = [
        ({"id": 0}, r"\$.id is less than 1"),
        ({"id": 1.5}, r"\$.id is no integer"),
        ({"id": 1, "tags": ["a", 5]}, r"\$.tags\[1\] is no string"),
        ({"id": 1, "tags": [""]}, r"\$.tags\[0\] does not match"),
        ({}, r'\$ has no "id"'),
        ({"id": 1, "x": 1}, r"\$.x is not allowed"),
        (5, r"\$ is no object"),
    ]
    for message, why in wrong:
        with pytest.raises(PayloadError, match=why):
            await value(connection, "publish", queue="q", message=message)
    assert await count(connection) == 2


async def test_a_schema_with_unsupported_keywords_is_refused(connection: Connection) -> None:
    refused: list[tuple[Any, str]] = [
        ({"foo": 1}, "keyword foo of \\$ is not supported"),
        (
            {"properties": {"a": {"unevaluatedItems": False}}},
            "of \\$.properties.a is not supported",
        ),
        ({"pattern": "("}, "is invalid"),
        ({"patternProperties": {"(": True}}, "is invalid"),
        ({"$ref": "#/$defs/a"}, "\\$ref of \\$ cannot be"),
        ({"type": "int"}, "type of \\$ cannot be"),
        ({"minimum": "1"}, "minimum of \\$ cannot be"),
        ({"items": [True]}, "must be an object or a boolean"),
        (5, "must be an object or a boolean"),
    ]
    for schema, wrong in refused:
        with pytest.raises(InvalidArgumentError, match=wrong):
            await value(connection, "create_queue", name="q", payload_schema=schema)


async def test_a_recursive_schema_ends(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_schema={"$ref": "#"})
    with pytest.raises(PayloadError, match="too deep"):
        await value(connection, "publish", queue="q", message=1)
