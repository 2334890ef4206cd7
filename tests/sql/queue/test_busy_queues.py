"""Claiming from many queues: only queues with work are read, and all of those."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import QueueNotFoundError
from support.database import Connect, Connection, make_due, publish, rows, value

NAMES = [f"q{number:02}" for number in range(30)]


@pytest.fixture
async def queues(connection: Connection) -> list[str]:
    """Make many queues; give their names."""
    for name in NAMES:
        await value(connection, "create_queue", name=name)
    return NAMES


async def claimed(connection: Connection, quantity: int = 1, **arguments: Any) -> list[int]:
    found = await rows(connection, "claim", quantity=quantity, **arguments)
    return [row["id"] for row in found]


async def test_many_empty_queues_give_no_row(connection: Connection, queues: list[str]) -> None:
    assert await claimed(connection) == []
    assert await claimed(connection, queues=queues) == []


async def test_many_queues_are_read_in_the_order_given(
    connection: Connection, queues: list[str]
) -> None:
    late, early, other = [
        (await publish(connection, 1, name))[0] for name in ("q20", "q03", "default")
    ]
    assert await claimed(connection, 9, queues=queues[::-1]) == [late, early]
    assert await claimed(connection, 9) == [other]


async def test_all_of_many_queues_are_read_by_name(
    connection: Connection, queues: list[str]
) -> None:
    ids = {name: await publish(connection, 2, name) for name in (queues[29], queues[4])}
    assert await claimed(connection, 3) == [*ids[queues[4]], ids[queues[29]][0]]


async def test_many_queues_include_due_messages_and_no_paused_queues(
    connection: Connection, queues: list[str]
) -> None:
    await publish(connection, 1, queues[1])
    await value(connection, "pause_queue", name=queues[1])
    due, later = [
        await value(connection, "publish", queue=name, message=1, delay=timedelta(hours=1))
        for name in queues[2:4]
    ]
    assert await claimed(connection, 9) == []
    await make_due(connection, due)
    assert await claimed(connection, 9) == [due]
    await make_due(connection, later)
    assert await claimed(connection, 9, queues=queues) == [later]


async def test_one_unknown_queue_among_many_is_refused(
    connection: Connection, queues: list[str]
) -> None:
    with pytest.raises(QueueNotFoundError, match="'nope'"):
        await claimed(connection, queues=[*queues, "nope"])


async def test_dead_rows_in_one_of_many_queues_hide_no_other(
    connection: Connection, connect: Connect, queues: list[str]
) -> None:
    holder = await connect()
    await holder.execute("begin isolation level repeatable read; select from messages.queue")
    await connection.execute(
        "insert into messages.message (queue, message) "
        f"select '{queues[3]}', '1' from generate_series(1, 40000)"
    )
    await connection.execute("delete from messages.message")
    for index in (0, 3, 9):
        ids = await publish(connection, 3, queues[index])
        assert await claimed(connection) == ids[:1]
        assert await connection.fetchval("show notifyq.queue_scan")
        assert await claimed(connection, queues=queues) == ids[1:2]
        assert await claimed(connection, 9, full_scan=True) == ids[2:]
    await holder.execute("rollback")
    await connection.execute("vacuum messages.message")
    assert await claimed(connection, full_scan=True) == []
    assert await connection.fetchval("show notifyq.queue_scan") == ""
