"""Limits: on every way to publish, and none is got round."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import pytest

from notifyq import App
from notifyq.errors import InvalidArgumentError, MessageLimitError
from support.database import Connection, rows, value

REFUSED = {
    "an array in 101 others": ("[" * 102 + "]" * 102, "nested more than 100 levels deep"),
    "an object in 101 others": ('{"a":' * 101 + "{}" + "}" * 101, "nested more than 100"),
    "a deep value beside a flat one": ("[1," + "[" * 101 + "]" * 102, "nested more than 100"),
    "a number": ("1e4000", "number of more than 4000 characters"),
    "a number below zero": ("-1e5000", "number of more than 4000"),
    "a number inside": ('{"a": ["x", {"b": 1e5000}]}', "number of more than 4000"),
    "a number of many digits": ("1e-4000", "number of more than 4000"),
    "a number written out": ("1" + "0" * 4000, "number of more than 4000"),
    "a large one": ('"' + "x" * 2**20 + '"', "has 1048580 bytes, queue 'default' takes 1048576"),
}
TAKEN = [
    "[" * 101 + "]" * 101,
    "1e3999",
    "-1" + "0" * 3998,
    '"' + "7" * 5000 + '"',
    '["' + "1" * 2000 + '", 1, -1.5e300]',
    '"' + "x" * (2**20 - 4) + '"',
]
WAYS = {
    "publish": "select messages.publish('default', $1::text::jsonb)",
    "publish_many": "select messages.publish_many('default', array['1', $1::text::jsonb])",
    "insert": "insert into messages.message (message) values ($1::text::jsonb)",
    "insert of several": "insert into messages.message (message) "
    "select m from (values ('1'::jsonb), ($1::text::jsonb)) as v (m)",
    "headers": "insert into messages.message (message, headers) "
    "values ('1', jsonb_build_object('h', $1::text::jsonb))",
}


async def test_every_way_to_publish_has_the_limits(connection: Connection) -> None:
    for way in WAYS:
        for name, (text, error) in REFUSED.items():
            # Quotes, braces and the message itself add to the bytes of headers.
            expected = "the message has" if way == "headers" and "bytes" in error else error
            with pytest.raises(MessageLimitError, match=expected) as caught:
                await connection.execute(WAYS[way], text)
            assert caught.value.hint, name
        assert await connection.fetchval("select count(*) from messages.message") == 0


async def test_what_is_within_the_limits_comes_out_as_it_went_in(connection: Connection) -> None:
    for text in TAKEN:
        await connection.execute(WAYS["insert"], text)
    same = await connection.fetch(
        "select m.message = t.text::jsonb from messages.message as m "
        "join unnest($1::text[]) with ordinality as t (text, number) on t.number = m.id",
        TAKEN,
    )
    assert [row[0] for row in same] == [True] * len(TAKEN)


async def test_a_value_that_is_stored_compressed_is_measured_as_it_is(
    connection: Connection,
) -> None:
    await connection.execute(
        "create temporary table hoard (bomb jsonb); "
        "insert into hoard select (repeat('[', 3000) || repeat(']', 3000))::jsonb; "
        "insert into hoard select to_jsonb(repeat('x', 3000000))"
    )
    assert await connection.fetchval("select max(pg_column_size(bomb)) from hoard") < 100_000
    for row in await connection.fetch("select ctid::text from hoard"):
        with pytest.raises(MessageLimitError):
            await connection.execute(
                "insert into messages.message (message) select bomb from hoard "
                f"where ctid = '{row[0]}'"
            )


async def test_copy_has_the_limits(connection: Connection) -> None:
    with pytest.raises(MessageLimitError, match="4000 characters"):
        await connection.copy_to_table(
            "message", schema_name="messages", columns=["message"], source=BytesIO(b"1e4200\n")
        )


async def test_a_number_beyond_what_postgresql_has_is_refused_before(
    connection: Connection,
) -> None:
    with pytest.raises(Exception, match="numeric format"):
        await connection.execute(WAYS["insert"], "1e400000")


async def test_the_size_is_policy_of_the_queue(connection: Connection) -> None:
    assert await value(connection, "create_queue", name="small", max_bytes=4096)
    await value(connection, "publish", queue="small", message="x" * 4092)
    with pytest.raises(MessageLimitError, match="4097 bytes, queue 'small' takes 4096"):
        await value(connection, "publish", queue="small", message="x" * 4093)
    # Headers count.
    with pytest.raises(MessageLimitError, match="queue 'small' takes 4096"):
        await value(connection, "publish", queue="small", message=1, headers={"h": "x" * 4090})
    await rows(connection, "alter_queue", name="small", max_bytes=5000)
    await value(connection, "publish", queue="small", message="x" * 4093)
    for wrong in (4095, 2**28 + 1):
        with pytest.raises(InvalidArgumentError, match="max_bytes must be between"):
            await rows(connection, "alter_queue", name="small", max_bytes=wrong)


@pytest.mark.parametrize("column", ["type", "dedup_key"])
async def test_names_are_short(connection: Connection, column: str) -> None:
    most = {"type": 200, "dedup_key": 1000}[column]
    options: dict[str, Any] = {column: "ü" * (most // 2)}
    await value(connection, "publish", queue="default", message=1, **options)
    with pytest.raises(MessageLimitError, match=f"{column} has more than {most} bytes"):
        await value(
            connection, "publish", queue="default", message=1, **{column: options[column] + "x"}
        )


async def test_an_app_gets_a_one_line_error(database: str) -> None:
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    async with App(database) as app:
        with pytest.raises(MessageLimitError, match="nested more than 100") as caught:
            await app.publish("default", deep)
        assert "a string instead of deep or long values" in (caught.value.hint or "")
