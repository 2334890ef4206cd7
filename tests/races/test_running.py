"""A poll that reads rows of open transactions: its position does not pass what those publish."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from database import publish, rows, until_blocked, value

if TYPE_CHECKING:
    from database import Connect, Connection

BULK = """
    insert into messages.message (queue, message, priority, key)
    select 'bulk', to_jsonb(n), case when $1 then n % 3 else 0 end,
      case when $2 > 0 then 'k' || n % $2 end
    from generate_series(1, 40000) as n
"""
"""So many that a poll, which reads them all, is much work."""

KINDS: dict[str, tuple[dict[str, Any], bool, int]] = {
    "plain": ({}, False, 0),
    "priority": ({}, True, 0),
    "ordered": ({"ordered": True}, False, 40_000),
    "limit of each key": ({"key_concurrency": 1}, False, 40_000),
    "limit": ({"concurrency": 1000}, False, 0),
    "rate": ({"rate": 100_000}, False, 0),
    "rate of each key": ({"key_rate": 100}, False, 40_000),
    "not durable": ({"durable": False}, False, 0),
    "fair": ({"fair": True}, False, 500),
    "fair without keys": ({"fair": True}, False, 0),
}
"""Options of the queue, whether priorities differ, and how many keys there are."""

EXPECTED = """
    select id from messages.message where queue = 'bulk' and state = 'waiting'
    order by priority desc, id limit $1
"""


async def claimed(connection: Connection, quantity: int = 10, **arguments: Any) -> list[int]:
    found = await rows(connection, "claim", queues=["bulk"], quantity=quantity, **arguments)
    return [row["id"] for row in found]


async def first(connection: Connection, quantity: int) -> list[int]:
    return [row["id"] for row in await connection.fetch(EXPECTED, quantity)]


async def position(connection: Connection) -> str | None:
    remembered: str | None = await connection.fetchval(
        "select current_setting('notifyq.look_' || to_hex(hashtextextended('bulk', 0)), true)"
    )
    return remembered or None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_bulk_that_commits_after_a_poll_is_handed_out_at_once_from_its_first(
    connection: Connection, connect: Connect, kind: str, *, is_drained: bool
) -> None:
    options, has_priorities, keys = KINDS[kind]
    await value(connection, "create_queue", name="bulk", **options)
    publisher = await connect()
    await publisher.execute("begin")
    await publisher.execute(BULK.replace("$1", str(has_priorities)).replace("$2", str(keys)))
    later = await publish(connection, 0 if is_drained else 3, "bulk")
    for _ in range(2):
        assert await claimed(connection) == later
        later = []
    await publisher.execute("commit")
    for _ in range(3):
        expected = await first(connection, 10)
        found = await claimed(connection)
        assert len(found) == 10
        if not options.get("fair"):
            assert found == expected


async def test_the_polls_of_a_bulk_remember_a_position(
    connection: Connection, connect: Connect
) -> None:
    """Else the others would show nothing."""
    await value(connection, "create_queue", name="bulk")
    publisher = await connect()
    await publisher.execute("begin")
    await publisher.execute(BULK.replace("$1", "false").replace("$2", "0"))
    assert await claimed(connection) == []
    assert await position(connection)
