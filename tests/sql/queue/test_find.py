"""Claims with very many dead rows: positions, and that no message is skipped permanently."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from support.database import Connect, Connection, make_due, publish, rows, value

POSITION = """
    select nullif(current_setting('notifyq.position_' || to_hex(
      hashtextextended($1 || coalesce(chr(10) || $2::text::jsonpath::text, ''), 0)), true), '')
      ::bigint[]
"""
MOVE = """
    select set_config('notifyq.position_' || to_hex(hashtextextended('default', 0)), $1, false)
"""


async def claimed(connection: Connection, quantity: int = 1, **arguments: Any) -> list[int]:
    found = await rows(connection, "claim", quantity=quantity, **arguments)
    return [row["id"] for row in found]


async def position(
    connection: Connection, queue: str = "default", filter: str | None = None
) -> list[int] | None:
    """Return what is remembered: since when, for how many milliseconds, priority, id."""
    remembered: list[int] | None = await connection.fetchval(POSITION, queue, filter)
    return remembered


async def let_time_pass(connection: Connection) -> None:
    """Date the last full scan of the session back."""
    remembered = await position(connection)
    assert remembered
    remembered[0] -= remembered[1] + 1
    await connection.execute(MOVE.replace("$1", f"'{{{','.join(map(str, remembered))}}}'"))


async def full_scan(connection: Connection) -> list[int]:
    return await claimed(connection, full_scan=True)


async def scan_later(connection: Connection) -> list[int]:
    await let_time_pass(connection)
    return await claimed(connection)


@pytest.fixture
async def holder(connect: Connect) -> Connection:
    """Give a session with an open snapshot, under which 40,000 messages were worked."""
    holder = await connect()
    await holder.execute("begin isolation level repeatable read; select from messages.queue")
    other = await connect()
    await other.execute(
        "insert into messages.message (message) select '1' from generate_series(1, 40000)"
    )
    await other.execute("delete from messages.message")
    return holder


async def commit_late(connection: Connection, other: Connection) -> int:
    await other.execute("commit")
    id_: int = await other.fetchval("select id from messages.message where message = '\"late\"'")
    return id_


async def publish_urgently(connection: Connection, other: Connection) -> int:
    id_: int = await value(other, "publish", queue="default", message="urgent", priority=9)
    return id_


async def release(connection: Connection, other: Connection) -> int:
    id_: int = await other.fetchval("select min(id) from messages.message where state = 'locked'")
    assert await value(other, "release", id=id_, lock_token=1)
    return id_


async def retry(connection: Connection, other: Connection) -> int:
    id_: int = await other.fetchval("select min(id) from messages.message where state = 'locked'")
    assert await value(other, "retry", id=id_, lock_token=1, delay=timedelta(0))
    return id_


async def come_due(connection: Connection, other: Connection) -> int:
    id_: int = await other.fetchval("select id from messages.message where message = '\"later\"'")
    await make_due(other, id_)
    return id_


async def roll_back(connection: Connection, other: Connection) -> int:
    id_: int = await other.fetchval(
        "select min(id) from messages.message where locked_by = 'other'"
    )
    await other.execute("rollback")
    return id_


@pytest.mark.parametrize("again", [full_scan, scan_later])
@pytest.mark.parametrize(
    ("before", "comes_in"),
    [
        ("select", publish_urgently),
        ("select", release),
        ("select", retry),
        ("select messages.publish('default', '\"later\"', delay => '1 hour')", come_due),
    ],
)
async def test_messages_before_the_position_are_found_by_the_next_full_scan(
    connection: Connection,
    connect: Connect,
    holder: Connection,
    before: str,
    comes_in: Callable[[Connection, Connection], Awaitable[int]],
    again: Callable[[Connection], Awaitable[list[int]]],
) -> None:
    assert holder
    await value(connection, "alter_queue", name="default", max_attempts=9)
    other = await connect()
    await other.execute(before)
    ids = await publish(connection, 10)
    assert await claimed(connection, 3) == ids[:3]
    assert await claimed(connection, 3) == ids[3:6]

    behind = await comes_in(connection, other)
    assert await claimed(connection) == [ids[6]]
    assert await again(connection) == [behind]
    assert await claimed(connection, 9) == ids[7:]
    assert await claimed(connection, 9, full_scan=True) == []


@pytest.mark.parametrize(
    ("before", "comes_in"),
    [
        ("begin; select messages.publish('default', '\"late\"')", commit_late),
        ("begin; select messages.publish('default', '\"late\"', 5)", commit_late),
        (
            "begin; select messages.publish('default', '1'); commit; begin;"
            "select messages.claim(worker => 'other')",
            roll_back,
        ),
    ],
)
async def test_messages_of_a_transaction_open_at_the_last_scan_are_found_at_once(
    connection: Connection,
    connect: Connect,
    holder: Connection,
    before: str,
    comes_in: Callable[[Connection, Connection], Awaitable[int]],
) -> None:
    assert holder
    other = await connect()
    await other.execute(before)
    ids = await publish(connection, 10)
    assert await claimed(connection, 3) == ids[:3]
    assert await claimed(connection, 3) == ids[3:6]

    behind = await comes_in(connection, other)
    assert await claimed(connection, 2) == [behind, ids[6]]
    assert await claimed(connection, 9) == ids[7:]
    assert await claimed(connection, 9, full_scan=True) == []


async def test_no_position_is_kept_where_full_scans_are_little_work(connection: Connection) -> None:
    ids = await publish(connection, 10_000)
    assert await claimed(connection, 10_000) == ids
    assert await claimed(connection, full_scan=True) == []
    assert await position(connection) is None


async def test_dead_rows_are_read_once(connection: Connection, holder: Connection) -> None:
    ids = await publish(connection, 10)
    assert await claimed(connection, 2) == ids[:2]
    first = await position(connection)
    assert first
    assert first[1] >= 1000
    assert first[2:] == [0, ids[1]]
    assert await claimed(connection, 3) == ids[2:5]
    assert await position(connection) == [*first[:2], 0, ids[4]]

    await holder.execute("rollback")
    await connection.execute("vacuum messages.message")
    assert await claimed(connection, 3, full_scan=True) == ids[5:8]
    assert await position(connection) is None


async def test_lower_priorities_come_after_the_position(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    (now,) = await publish(connection, 1)
    assert await claimed(connection) == [now]
    lower = [
        await value(connection, "publish", queue="default", message=1, priority=priority)
        for priority in (-(2**31), -1)
    ]
    (new,) = await publish(connection, 1)
    assert await claimed(connection, 9) == [new, *reversed(lower)]
    assert await claimed(connection, 9) == []


@pytest.mark.parametrize(
    ("begin", "undo"),
    [("begin", "rollback"), ("begin; savepoint s", "rollback to savepoint s; commit")],
)
async def test_a_position_is_rolled_back_with_the_claim(
    connection: Connection, holder: Connection, begin: str, undo: str
) -> None:
    assert holder
    ids = await publish(connection, 10)
    await claimed(connection, 2)
    before = await position(connection)
    await connection.execute(begin)
    assert await claimed(connection, 3) == ids[2:5]
    assert await position(connection) != before
    await connection.execute(undo)
    assert await position(connection) == before
    assert await claimed(connection, 8) == ids[2:]


async def test_a_first_claim_that_is_rolled_back_leaves_no_position(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    ids = await publish(connection, 2)
    await connection.execute("begin")
    assert await claimed(connection, 2) == ids
    await connection.execute("rollback")
    assert await position(connection) is None
    assert await claimed(connection, 2) == ids


async def test_a_filter_has_its_own_position(connection: Connection, holder: Connection) -> None:
    assert holder
    ids = await publish(connection, 20)
    assert await claimed(connection, 2, filter="$ >= 10") == ids[10:12]
    assert await position(connection) is None
    assert await position(connection, filter="$ >= 10")
    assert await claimed(connection, 12) == [*ids[:10], *ids[12:14]]
    assert await claimed(connection, 1, filter="$ >= 10") == ids[14:15]
    assert await claimed(connection, 1, filter="$ >= 16") == ids[16:17]
    assert await claimed(connection, 9) == [ids[15], *ids[17:]]


async def test_a_filter_that_matches_late_reads_the_backlog_once(connection: Connection) -> None:
    ids = await publish(connection, 40_000)
    assert await claimed(connection, 1, filter="$ >= 39000") == [ids[39_000]]
    assert await position(connection, filter="$ >= 39000")
    assert await claimed(connection, 2, filter="$ >= 39000") == ids[39_001:39_003]
    assert await claimed(connection, 2) == ids[:2]


async def test_a_pause_does_not_move_the_position(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    ids = await publish(connection, 4)
    await claimed(connection)
    before = await position(connection)
    await value(connection, "pause_queue", name="default")
    assert await claimed(connection, 9) == []
    assert await position(connection) == before
    await value(connection, "resume_queue", name="default")
    assert await claimed(connection, 9) == ids[1:]


async def test_each_queue_has_its_position(connection: Connection, holder: Connection) -> None:
    assert holder
    await value(connection, "create_queue", name="other")
    others = await publish(connection, 2, "other")
    ids = await publish(connection, 2)
    assert await claimed(connection, queues=["default"]) == ids[:1]
    assert await position(connection)
    assert await claimed(connection, 9, queues=["other", "default"]) == [*others, ids[1]]
    assert await position(connection, "other") is None


async def test_in_a_drained_queue_new_messages_are_found_at_once(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    assert await claimed(connection) == []
    remembered = await position(connection)
    assert remembered
    assert remembered[2] == 0
    assert await claimed(connection) == []
    assert await position(connection) == remembered
    ids = await publish(connection, 2)
    urgent = await value(connection, "publish", queue="default", message=1, priority=1)
    assert await claimed(connection, 9) == ids
    assert await claimed(connection, 9, full_scan=True) == [urgent]


async def test_sessions_with_their_own_positions_share_a_backlog(
    connection: Connection, connect: Connect, holder: Connection
) -> None:
    assert holder
    one, two = connection, await connect()
    ids = await publish(connection, 40)
    assert await claimed(one, 10) == ids[:10]
    assert await claimed(two, 10) == ids[10:20]
    for id_ in ids[:5]:
        assert await value(two, "release", id=id_, lock_token=1)
    assert await claimed(two, 10) == ids[20:30]
    assert await claimed(one, 15) == ids[30:]
    assert await claimed(two, 15) == []
    assert await claimed(two, 3, full_scan=True) == ids[:3]
    assert await claimed(one, 9, full_scan=True) == ids[3:5]


async def test_a_reset_session_makes_a_full_scan(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    ids = await publish(connection, 4)
    await claimed(connection, 2)
    assert await value(connection, "release", id=ids[0], lock_token=1)
    await connection.execute("reset all")
    assert await position(connection) is None
    assert await claimed(connection, 9) == [ids[0], *ids[2:]]


@pytest.mark.parametrize(
    "remembered", ["{99999999999999,1000,0,1000000}", "{null,null,0,1000000}", "{}"]
)
async def test_a_position_with_an_unknown_or_later_time_is_not_used(
    connection: Connection, remembered: str
) -> None:
    ids = await publish(connection, 2)
    await connection.execute(MOVE.replace("$1", f"'{remembered}'"))
    assert await claimed(connection, 9) == ids
    assert await position(connection) is None
