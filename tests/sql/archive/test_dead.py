"""Dead messages: received, logged, listed, counted, deleted, and followed without a gap."""

import asyncio
import random

import pytest

from notifyq.errors import InvalidArgumentError
from support.database import (
    Connect,
    Connection,
    Notices,
    Notifications,
    finish_all,
    let_fail,
    publish,
    rows,
    value,
)

FOLLOW = """
    select messages.current_position(), array(
      select d.id from messages.dead_since(seen => $1, queue => $2) as d
    )
"""


async def end_all(connection: Connection, status: str, details: str | None = None) -> list[int]:
    claimed = await rows(connection, "claim", quantity=10_000)
    return await finish_all(connection, claimed, status, details)


async def die(connection: Connection, quantity: int, queue: str = "default") -> list[int]:
    return await let_fail(connection, quantity, queue, "no luck")


async def snapshot(connection: Connection) -> str:
    return str(await connection.fetchval("select messages.current_position()"))


async def follow(
    connection: Connection, seen: str, queue: str | None = None
) -> tuple[str, list[int]]:
    row = await connection.fetchrow(FOLLOW, seen, queue)
    assert row
    return row[0], row[1]


async def test_the_log_has_at_most_ten_lines_and_a_sum_for_a_statement(
    connection: Connection, notices: Notices
) -> None:
    for dead, lines, summary in ((1, 1, 0), (10, 10, 0), (11, 10, 1), (500, 10, 1)):
        ids = await die(connection, dead)
        warnings = await notices.received("WARNING")
        assert len(warnings) == lines + summary
        assert [int(line.split()[3]) for line in warnings[:lines]] == ids[:lines]
        if summary:
            assert warnings[-1] == f"notifyq: {dead - 10} more dead messages in the same statement"


async def test_a_long_reason_is_cut_in_the_log_and_kept_in_the_archive(
    connection: Connection, notices: Notices
) -> None:
    await publish(connection, 1)
    await end_all(connection, "failed", "x" * 10_000)
    (line,) = await notices.received("WARNING")
    assert line.endswith(": " + "x" * 200)
    (dead,) = await rows(connection, "dead_list")
    assert dead["details"] == "x" * 10_000


async def test_a_mixed_statement_sends_one_notification_of_dead_messages_for_each_queue(
    connection: Connection, notifications: Notifications, notices: Notices
) -> None:
    await value(connection, "create_queue", name="other")
    ids = await publish(connection, 4)
    others = await publish(connection, 2, "other")
    await rows(connection, "claim", quantity=6)
    await rows(
        connection,
        "finish_many",
        ids=[*ids, *others],
        lock_tokens=[1] * 6,
        statuses=["failed", "success", "rejected", "failed", "failed", "success"],
    )
    assert sorted(
        notification.payload for notification in await notifications.received("dead_message")
    ) == [
        f"default:{ids[0]},{ids[2]}-{ids[3]}",
        f"other:{others[0]}",
    ]
    assert len(await notices.received("WARNING")) == 4


async def test_a_failure_that_is_rolled_back_is_not_notified(
    connection: Connection, notifications: Notifications
) -> None:
    await publish(connection, 1)
    await connection.execute("begin")
    await end_all(connection, "failed")
    await connection.execute("rollback")
    assert await notifications.received("dead_message") == []


async def test_the_notification_of_many_dead_messages_is_short(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="é" * 100)
    await connection.execute("alter table messages.message alter id restart 1000000000000000000")
    await connection.execute(
        "insert into messages.message (queue, message) select case n % 2 when 0 then $1 "
        "else 'default' end, '1' from generate_series(1, 9000) as g (n)",
        "é" * 100,
    )
    await end_all(connection, "failed")
    received = await notifications.received("dead_message")
    assert len(received) == 2
    assert all(len(notification.payload.encode()) < 8000 for notification in received)


async def test_dead_messages_are_listed_latest_first_by_pages(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    dead = [(await die(connection, 1))[0] for _ in range(4)]
    (elsewhere,) = await die(connection, 1, "other")
    await publish(connection, 1)
    await end_all(connection, "success")

    async def listed(**arguments: object) -> list[int]:
        return [row["id"] for row in await rows(connection, "dead_list", **arguments)]

    assert await listed() == [elsewhere, *reversed(dead)]
    assert await listed(queue="default", quantity=2) == [dead[3], dead[2]]
    assert await listed(queue="default", quantity=2, skip=2) == [dead[1], dead[0]]
    assert await listed(queue="other") == [elsewhere]
    assert await value(connection, "dead_count") == 5
    assert await value(connection, "dead_count", queue="default") == 4
    with pytest.raises(InvalidArgumentError):
        await listed(quantity=0)


async def test_only_dead_messages_are_deleted(connection: Connection) -> None:
    dead = await die(connection, 3)
    (good,) = await publish(connection, 1)
    await end_all(connection, "success")
    (waiting,) = await publish(connection, 1)

    deleted = await connection.fetchval(
        "select messages.dead_delete($1, $2, $3, $4)", dead[0], dead[2], good, waiting
    )
    assert deleted == 2
    assert [row["id"] for row in await rows(connection, "dead_list")] == [dead[1]]
    assert len(await rows(connection, "archive_find", id=good)) == 1
    assert len(await rows(connection, "message_find", id=waiting)) == 1
    deleted = await connection.fetchval("select messages.dead_delete(variadic $1)", dead)
    assert deleted == 1


async def test_a_follower_sees_each_dead_message_once(connection: Connection) -> None:
    seen = await snapshot(connection)
    first = await die(connection, 2)
    seen, found = await follow(connection, seen)
    assert found == first
    seen, found = await follow(connection, seen)
    assert found == []
    await publish(connection, 1)
    await end_all(connection, "success")
    last = await die(connection, 1)
    assert (await follow(connection, seen))[1] == last


async def test_a_follower_may_read_one_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    seen = await snapshot(connection)
    await die(connection, 1)
    others = await die(connection, 1, "other")
    assert (await follow(connection, seen, "other"))[1] == others


async def test_a_late_commit_is_neither_lost_nor_seen_twice(
    connection: Connection, connect: Connect
) -> None:
    late, reader = await connect(), await connect()
    seen = await snapshot(reader)
    async with late.transaction():
        slow = await die(late, 1)
        quick = await die(connection, 1)
        seen, found = await follow(reader, seen)
        assert found == quick
        seen, found = await follow(reader, seen)
        assert found == []
    seen, found = await follow(reader, seen)
    assert found == slow
    assert (await follow(reader, seen))[1] == []


async def test_a_follower_beside_busy_writers_misses_nothing_and_repeats_nothing(
    connection: Connection, connect: Connect
) -> None:
    seen = await snapshot(connection)
    chance = random.Random(1)

    async def write() -> list[int]:
        session = await connect()
        mine: list[int] = []
        for _ in range(25):
            is_kept = chance.random() < 0.8
            await session.execute("begin")
            (id_,) = await publish(session, 1)
            (claimed,) = await rows(session, "claim_id", id=id_)
            await value(
                session, "finish", id=id_, lock_token=claimed["lock_token"], status="failed"
            )
            if is_kept:
                await session.execute("commit")
                mine.append(id_)
            else:
                await session.execute("rollback")
        return mine

    writers = [asyncio.ensure_future(write()) for _ in range(4)]
    found: list[int] = []
    while not all(writer.done() for writer in writers):
        seen, more = await follow(connection, seen)
        found += more
    found += (await follow(connection, seen))[1]
    written = [id_ for writer in writers for id_ in writer.result()]
    assert sorted(found) == sorted(written)
