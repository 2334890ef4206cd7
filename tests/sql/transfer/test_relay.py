"""What a relay calls, in both databases: claim, receive_many, finish, and the marks of targets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError, LostReceiptsError, QueueNotFoundError
from support.database import (
    Connect,
    Connection,
    Notifications,
    one_row,
    publish,
    until_blocked,
    value,
)

RECEIVE = """
select * from notifyq.receive_many(
  $1, $2, $3, $4::text[]::jsonb[], $5, $6, $7::text[]::jsonb[], $8, $9, $10, $11, $12,
  interval '1 day')
"""


async def receive(
    connection: Connection,
    positions: Sequence[str],
    *,
    queue: str = "default",
    source: str = "s",
    payloads: Sequence[str] | None = None,
    dedup_keys: Sequence[str | None] | None = None,
    after: Sequence[str] = (),
) -> tuple[list[int], int, int]:
    count = len(positions)
    row: Any = await connection.fetchrow(
        RECEIVE,
        source,
        positions,
        [queue] * count,
        payloads or [f'"{position}"' for position in positions],
        [0] * count,
        ["t"] * count,
        ['{"h": 1}'] * count,
        ["k"] * count,
        dedup_keys or [None] * count,
        [None] * count,
        [None] * count,
        after,
    )
    return tuple(row)


async def messages(connection: Connection) -> list[tuple[int, str]]:
    rows = await connection.fetch("select id, message #>> '{}' from messages.message order by id")
    return [tuple(row) for row in rows]


async def relayed(connection: Connection, quantity: int = 10) -> list[asyncpg.Record]:
    return await connection.fetch(
        "select *, (extract(epoch from created_at) * 1000000)::bigint as created "
        "from notifyq.relay_claim('{default}', $1, '1 min', 'relay')",
        quantity,
    )


async def finish(connection: Connection, rows: Sequence[Any], position: str | None) -> list[int]:
    found = await connection.fetch(
        "select notifyq.relay_finish('t', 's', $1, $2, $3, $4, "
        "array_fill('success'::messages.message_status, array[$5::integer]))",
        position,
        [row["id"] for row in rows],
        [row["lock_token"] for row in rows],
        [row["created"] for row in rows],
        len(rows),
    )
    return [row[0] for row in found]


async def test_each_message_is_received_once_in_order(connection: Connection) -> None:
    ids, merged, known = await receive(connection, ["10", "9", "8"])
    assert (merged, known) == (0, 0)
    assert await messages(connection) == list(zip(ids, ["10", "9", "8"], strict=True))

    again, merged, known = await receive(connection, ["7", "9", "10"])
    assert (merged, known) == (0, 2)
    assert again[1:] == [ids[1], ids[0]]
    assert await messages(connection) == [*zip(ids, ["10", "9", "8"], strict=True), (again[0], "7")]
    assert (await receive(connection, ["10"], source="other"))[2] == 0
    assert await receive(connection, []) == ([], 0, 0)
    row = await one_row(connection, "select * from messages.message order by id limit 1")
    assert (row["type"], row["headers"], row["key"]) == ("t", {"h": 1}, "k")


async def test_a_dedup_key_that_is_taken_merges(connection: Connection) -> None:
    standing = await value(connection, "publish", queue="default", message="first", dedup_key="d")
    sent = ["1", "2", "3"]
    ids, merged, known = await receive(connection, sent, dedup_keys=["d", None, "e"])
    assert (merged, known) == (1, 0)
    assert ids[0] == standing
    assert [text for _, text in await messages(connection)] == ["first", "2", "3"]
    assert await receive(connection, sent, dedup_keys=["d", None, "e"]) == (ids, 0, 3)


async def test_an_unlogged_queue_receives_each_message_once(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('v', durable => false)")
    sent = ["1", "2", "3"]
    ids, merged, known = await receive(connection, sent, queue="v", dedup_keys=[None, "d", None])
    assert (merged, known) == (0, 0)
    assert await messages(connection) == sorted(zip(ids, sent, strict=True))
    assert await connection.fetchval("select count(*) from only messages.message") == 0
    assert await receive(connection, sent, queue="v") == (ids, 0, 3)


async def test_a_batch_with_a_mistake_receives_nothing(connection: Connection) -> None:
    with pytest.raises(QueueNotFoundError):
        await receive(connection, ["1"], queue="absent")
    with pytest.raises(InvalidArgumentError, match="once each"):
        await receive(connection, ["1", "1"])
    with pytest.raises(InvalidArgumentError, match="same length"):
        await receive(connection, ["1"], dedup_keys=["a", "b"])
    with pytest.raises(InvalidArgumentError, match="source"):
        await receive(connection, ["1"], source="")
    assert (await receive(connection, ["1"]))[2] == 0


async def test_a_batch_is_one_notification(
    connection: Connection, notifications: Notifications
) -> None:
    ids, _, _ = await receive(connection, ["1", "2", "3"])
    assert await notifications.payloads() == [f"default:{ids[0]}-{ids[2]}"]


async def test_two_senders_of_the_same_message_publish_it_once(
    connection: Connection, connect: Connect
) -> None:
    other, watcher = await connect(), await connect()
    await connection.execute("begin")
    ids, _, _ = await receive(connection, ["1", "2"])
    second = asyncio.create_task(receive(other, ["2", "3"]))
    await until_blocked(watcher, other)
    await connection.execute("commit")
    again, _, known = await second
    assert (again[0], known) == (ids[1], 1)
    assert [text for _, text in await messages(connection)] == ["1", "2", "3"]


async def test_a_target_without_its_last_receipts_was_restored(connection: Connection) -> None:
    await receive(connection, ["1", "2"])
    await receive(connection, ["3"], after=["2"])
    await connection.execute("delete from notifyq.relay_receipt where position = '3'")
    with pytest.raises(LostReceiptsError, match="restored to an earlier state"):
        await receive(connection, ["4"], after=["2", "3"])
    assert (await receive(connection, ["4"], after=["2"]))[2] == 0


async def test_receipts_of_another_role_are_not_those_of_the_caller(connection: Connection) -> None:
    await receive(connection, ["1"])
    await connection.execute("update notifyq.relay_receipt set role = 'another'")
    with pytest.raises(LostReceiptsError, match="restored to an earlier state"):
        await receive(connection, ["2"], after=["1"])


async def test_a_mark_counts_from_when_it_was_made_last(connection: Connection) -> None:
    await finish(connection, [], "1")
    await connection.execute("update notifyq.relay_mark set noted_at = now() - interval '1 hour'")
    await finish(connection, [], "1")
    assert await connection.fetchval("select notifyq.relay_marks('t', 's', '1 min')") == "1"


async def test_a_killed_relay_uses_up_no_attempts(connection: Connection) -> None:
    await publish(connection, 1)
    await value(connection, "publish", queue="default", message=2, max_attempts=1)
    for token in (1, 3):
        rows = await relayed(connection)
        assert [row["lock_token"] for row in rows] == [token] * 2
        await connection.execute(
            "update messages.message set lock_expires_at = now() - interval '1 s'"
        )
        assert await value(connection, "reap") == 2
        await connection.execute(
            "update messages.message set available_at = now(), state = 'waiting'"
        )
    assert not await connection.fetchval("select count(*) from messages.message_archive")
    # After the relay the message has its own limit again.
    await connection.execute(
        "update messages.message set attempts = 0; select messages.claim(quantity => 2)"
    )
    await connection.execute("update messages.message set lock_expires_at = now() - interval '1 s'")
    await value(connection, "reap")
    assert await connection.fetchval("select count(*) from messages.message_archive") == 2


async def test_only_the_message_that_was_claimed_is_finished(connection: Connection) -> None:
    """After a restore its id and its token may be those of another one."""
    await publish(connection, 2)
    first, second = await relayed(connection)
    await connection.execute(
        "update messages.message set created_at = created_at + interval '1 s' where id = $1",
        second["id"],
    )
    assert await finish(connection, [first, second], "p") == [first["id"]]
    (left,) = await connection.fetch("select id from messages.message")
    assert left["id"] == second["id"]


async def test_each_message_is_finished_by_its_own_token(connection: Connection) -> None:
    await publish(connection, 2)
    await connection.execute("update messages.message set lock_token = id")
    first, second = await relayed(connection)
    assert await finish(connection, [second, first], "p") == [first["id"], second["id"]]


async def test_marks_are_kept_in_a_bounded_number(connection: Connection) -> None:
    for number in range(30):
        await finish(connection, [], str(number))
    assert await finish(connection, [], None) == []
    marks = "select notifyq.relay_marks('t', 's', $1)"
    assert len(await connection.fetch(marks, timedelta(days=1))) == 30
    await connection.execute(
        "update notifyq.relay_mark set noted_at = noted_at - interval '2 minutes'"
    )
    await value(connection, "maintain")
    left = {row[0] for row in await connection.fetch(marks, timedelta(days=1))}
    assert left == {str(number) for number in range(10, 30)}
    assert await connection.fetch(marks, timedelta(minutes=1)) == []
    assert await value(connection, "notifyq.relay_forget", target="t") == 20


async def test_a_database_has_two_names(connection: Connection) -> None:
    source = await value(connection, "notifyq.relay_source")
    target = await value(connection, "notifyq.relay_target")
    assert source != target
    assert await value(connection, "notifyq.relay_source") == source
