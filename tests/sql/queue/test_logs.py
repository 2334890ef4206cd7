"""Logs: the records of each call, beside its end, kept and erased as its attempts are."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifyq.errors import MessageLimitError
from sql.archive.test_partitions import maintain
from support.database import (
    Connect,
    Connection,
    claim_one,
    lock_of,
    publish,
    rows,
    until_blocked,
    value,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def line(text: str, **fields: Any) -> dict[str, Any]:
    return {"created_at": str(NOW), "level": "INFO", "logger": "shop", "text": text} | fields


async def keep(
    connection: Connection, lock: dict[str, Any], *lines: Any, attempt: int | None = 1
) -> int:
    arguments = [lock["id"]], [lock["lock_token"]], [attempt], [json.dumps(lines)]
    call = "select notifyq.keep_logs($1, $2, $3, $4::text[]::json[])"
    kept: int = await connection.fetchval(call, *arguments)
    return kept


async def texts(connection: Connection, id_: int) -> list[tuple[int, int, str]]:
    found = await rows(connection, "logs", id=id_)
    return [(row["lock_token"], row["attempt"], row["text"]) for row in found]


async def test_of_two_calls_for_a_lock_at_once_the_first_one_counts(
    connection: Connection, connect: Connect
) -> None:
    again, observer = await connect(), await connect()
    await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    async with connection.transaction():
        assert await keep(connection, lock, line("first")) == 1
        keeping = asyncio.ensure_future(keep(again, lock, line("second")))
        await until_blocked(observer, again)
    assert await keeping == 0
    assert await texts(connection, lock["id"]) == [(lock["lock_token"], 1, "first")]


async def test_records_are_kept_by_the_lock_of_their_call(connection: Connection) -> None:
    await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    assert await keep(connection, lock, line("a"), line("b", level="ERROR")) == 1
    assert await keep(connection, lock, line("again")) == 0
    assert await keep(connection, lock | {"lock_token": 2}, line("not yet")) == 0
    assert await keep(connection, lock | {"lock_token": 0}, line("never")) == 0
    await value(connection, "release", **lock)
    again = lock_of(await claim_one(connection))
    await value(connection, "finish", **again)
    assert await keep(connection, again, line("late"), attempt=2) == 1
    found = await rows(connection, "logs", id=lock["id"])
    assert [tuple(row) for row in found] == [
        (1, "INFO", "shop", "a", NOW, 1),
        (1, "ERROR", "shop", "b", NOW, 1),
        (2, "INFO", "shop", "late", NOW, again["lock_token"]),
    ]
    assert await keep(connection, {"id": 99, "lock_token": 1}, line("unknown")) == 0
    assert await texts(connection, 99) == []


async def test_messages_of_unlogged_queues_have_logs(connection: Connection) -> None:
    await value(connection, "create_queue", name="quick", durable=False)
    await publish(connection, 1, "quick")
    [row] = await rows(connection, "claim", queues=["quick"])
    assert await keep(connection, lock_of(row), line("a")) == 1
    await value(connection, "finish", **lock_of(row))
    assert await texts(connection, row["id"]) == [(1, 1, "a")]


async def test_what_a_program_gives_can_be_read(connection: Connection) -> None:
    await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    given: list[dict[str, Any]] = [
        {},
        line("early", created_at="-infinity"),
        line("late", created_at="20000-01-01"),
        line("null", level=None, logger=None, other=1),
    ]
    assert await keep(connection, lock, *given, attempt=None) == 0
    assert await keep(connection, lock, *given) == 1
    first, early, late, null = await rows(connection, "logs", id=lock["id"])
    assert (first["level"], first["logger"], first["text"], first["attempt"]) == ("", "", "", 1)
    assert first["created_at"] == early["created_at"] == datetime(1, 1, 1, tzinfo=UTC)
    assert NOW < late["created_at"] <= await connection.fetchval("select clock_timestamp()")
    assert (null["level"], null["logger"], null["text"]) == ("", "", "null")


async def test_more_than_64_kb_are_refused(connection: Connection) -> None:
    await publish(connection, 1)
    lock = lock_of(await claim_one(connection))
    empty = len(json.dumps([line("")]))
    with pytest.raises(MessageLimitError, match="has 65537 bytes"):
        await keep(connection, lock, line("x" * (65537 - empty)))
    assert await keep(connection, lock, line("x" * (65536 - empty))) == 1


async def test_they_are_deleted_with_a_dead_message(connection: Connection) -> None:
    ids = []
    for status in ("failed", "success"):
        ids += await publish(connection, 1)
        lock = lock_of(await claim_one(connection))
        await keep(connection, lock, line(status))
        await value(connection, "finish", **lock, status=status)
        await connection.execute("select messages.dead_delete($1)", lock["id"])
    kept = await connection.fetch("select message_id from notifyq.attempt_log")
    assert [row[0] for row in kept] == ids[1:]


LOG = """
    insert into notifyq.attempt_log (message_id, lock_token, ended_at, attempt, queue, lines)
    select n, 1, now() - $2::interval, 1, $1, '{}' from generate_series(1, $3) as n
"""


@pytest.mark.parametrize("quantity", [3, 200])
async def test_they_are_kept_as_long_as_the_messages_of_their_queue(
    connection: Connection, quantity: int
) -> None:
    await value(connection, "create_queue", name="short", retention=timedelta(days=3))
    await value(
        connection, "create_queue", name="safe", retention=timedelta(days=3),
        retention_dead=timedelta(days=60),
    )  # fmt: skip
    for name in ("short", "safe", "default"):
        for days in (2, 10, 40, 70):
            await connection.execute(LOG, name, timedelta(days=days), quantity)
    await maintain(connection)  # makes the days
    while await value(connection, "notifyq.retain", quantity=50, few=10):
        await connection.execute("update notifyq.retention_day set next_at = now()")
    while await value(connection, "notifyq.drop_partitions"):
        pass
    found = await connection.fetch(
        "select queue, date_part('day', now() - ended_at)::integer as age, count(*) as quantity "
        "from notifyq.attempt_log group by 1, 2 order by 1, 2"
    )
    assert {(row["queue"], row["age"]) for row in found} == {
        ("default", 2), ("default", 10), ("safe", 2), ("safe", 10), ("safe", 40), ("short", 2),
    }  # fmt: skip
    assert {row["quantity"] for row in found} == {quantity}
    homeless = "select count(*) from notifyq.attempt_log_default"
    assert await connection.fetchval(homeless) == 0
