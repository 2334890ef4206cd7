"""Queues of one type, and queues with a JSON Schema."""

from typing import Any

import asyncpg
import pytest

from database import Connection, value
from notifyq.errors import InvalidArgumentError, PayloadError

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
# Whoever publishes may have any of them.
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
        found = await connection.fetchrow(
            f"select messages.value_of(m.message, {given}) is not distinct from {given}, "
            f"pg_typeof(messages.value_of(m.message, {given})) = pg_typeof({given}) "
            f"from messages.message as m where m.queue = 'q{number}'"
        )
        assert found is not None
        assert list(found) == [True, True], given


@pytest.mark.parametrize(
    "statement",
    [
        "select messages.enqueue('q', 1::bigint)",
        "select messages.enqueue('q', 'x'::text)",
        "select messages.enqueue('q', 'x')",
        "select messages.publish('q', '1')",
        "select messages.publish('q', '\"x\"')",
        "select messages.publish('q', '\"99999999999\"')",
        "select messages.publish_many('q', array['\"5\"', '{}']::jsonb[])",
        "insert into messages.message (queue, message) values ('q', '{}')",
    ],
)
async def test_the_wrong_type_stores_nothing(connection: Connection, statement: str) -> None:
    await value(connection, "create_queue", name="q", payload_type="integer")
    with pytest.raises(asyncpg.DatatypeMismatchError, match="type integer"):
        await connection.execute(statement)
    assert await count(connection) == 0
    await connection.execute("select messages.enqueue('q', 5), messages.enqueue('q', null)")
    assert await count(connection) == 2
    assert await connection.fetchval("select payload_type from messages.queue_info('q')") == (
        "integer"
    )


async def test_a_type_can_be_taken_away(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_type="integer")
    await connection.execute("select messages.alter_queue('q', payload_type => '-')")
    await connection.execute("select messages.publish('q', '{}')")
    with pytest.raises(InvalidArgumentError, match="has no payload_type"):
        await connection.execute("select messages.enqueue('q', 1)")


async def test_no_check_of_a_domain_runs_with_the_rights_of_the_owner(
    connection: Connection,
) -> None:
    await connection.execute("""
        create table public.seen (who text);
        create function public.look(given text) returns boolean language plpgsql as $$
          begin insert into public.seen values (current_user); return true; end $$;
        create domain public.trap as text check (public.look(value));
        create type public.outer as (inner_one public.trap[]);
    """)
    for name in ("public.trap", "public.outer", "public.outer[]"):
        with pytest.raises(InvalidArgumentError, match="calls a function"):
            await value(connection, "create_queue", name="q", payload_type=name)
        with pytest.raises(InvalidArgumentError, match="calls a function"):
            await connection.execute(f"select messages.value_of('\"x\"', null::{name})")
    seen = await connection.fetch("select distinct who from public.seen")
    assert "notifyq_owner" not in [row["who"] for row in seen]


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


@pytest.mark.parametrize(
    ("message", "wrong"),
    [
        ({"id": 1, "tags": ["a"]}, None),
        ({"id": 1.0}, None),
        ({"id": 0}, r"\$.id is less than 1"),
        ({"id": 1.5}, r"\$.id is no integer"),
        ({"id": 1, "tags": ["a", 5]}, r"\$.tags\[1\] is no string"),
        ({"id": 1, "tags": [""]}, r"\$.tags\[0\] does not match"),
        ({}, r'\$ has no "id"'),
        ({"id": 1, "x": 1}, r"\$.x is not allowed"),
        (5, r"\$ is no object"),
    ],
)
async def test_a_message_satisfies_the_schema(
    connection: Connection, message: Any, wrong: str | None
) -> None:
    await value(connection, "create_queue", name="q", payload_schema=SCHEMA)
    if wrong is None:
        await value(connection, "publish", queue="q", message=message)
        return
    with pytest.raises(PayloadError, match=wrong):
        await value(connection, "publish", queue="q", message=message)
    assert await count(connection) == 0


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"foo": 1}, "keyword foo of \\$ is not checked here"),
        ({"properties": {"a": {"unevaluatedItems": False}}}, "of \\$.properties.a is not checked"),
        ({"pattern": "("}, "cannot be read"),
        ({"patternProperties": {"(": True}}, "cannot be read"),
        ({"$ref": "#/$defs/a"}, "\\$ref of \\$ cannot be"),
        ({"type": "int"}, "type of \\$ cannot be"),
        ({"minimum": "1"}, "minimum of \\$ cannot be"),
        ({"items": [True]}, "must be an object or a boolean"),
        (5, "must be an object or a boolean"),
    ],
)
async def test_a_schema_that_is_not_checked_in_full_is_refused(
    connection: Connection, schema: Any, wrong: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=wrong):
        await value(connection, "create_queue", name="q", payload_schema=schema)


async def test_a_schema_that_refers_to_itself_ends(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", payload_schema={"$ref": "#"})
    with pytest.raises(PayloadError, match="too deep"):
        await value(connection, "publish", queue="q", message=1)
