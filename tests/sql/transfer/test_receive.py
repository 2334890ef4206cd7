"""Receiving from elsewhere: each message once, however often it is sent."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError, QueueDeniedError, QueueNotFoundError
from support.database import (
    Connect,
    Connection,
    Notifications,
    claim_one,
    lock_of,
    rows,
    until_blocked,
    value,
)


async def receive(connection: Connection, *sent: Any, source: str = "s") -> tuple[int, int, int]:
    (row,) = await rows(connection, "receive", source=source, messages=list(sent))
    return row["published"], row["merged"], row["known"]


async def live(connection: Connection) -> list[asyncpg.Record]:
    return await connection.fetch("select * from messages.message order by id")


def sent(position: str, **options: Any) -> dict[str, Any]:
    return {"position": position, "queue": "default", "message": position} | options


async def test_a_message_that_comes_again_is_known(
    connection: Connection, notifications: Notifications
) -> None:
    assert await receive(connection, sent("2"), sent("1"), sent("2", message="again")) == (2, 0, 1)
    assert await receive(connection, sent("1"), sent("3")) == (1, 0, 1)
    assert await receive(connection, sent("1"), source="other") == (1, 0, 0)
    assert await receive(connection) == (0, 0, 0)

    messages = await live(connection)
    assert [message["message"] for message in messages] == ["2", "1", "3", "1"]
    assert {notification.queue for notification in await notifications.received()} == {"default"}
    receipts = await connection.fetch(
        "select position, message_id from notifyq.relay_receipt where source = 's' "
        "order by position"
    )
    one, two, three = receipts
    assert [one["message_id"], two["message_id"], three["message_id"]] == [
        messages[1]["id"],
        messages[0]["id"],
        messages[2]["id"],
    ]


async def test_a_message_is_known_long_after_it_finished(connection: Connection) -> None:
    await receive(connection, sent("1"))
    message = await claim_one(connection)
    await value(connection, "finish", **lock_of(message))
    assert await receive(connection, sent("1")) == (0, 0, 1)
    assert not await live(connection)


async def test_every_property_arrives(connection: Connection) -> None:
    await receive(
        connection,
        sent(
            "1",
            message=None,
            priority=-3,
            available_at="2050-01-01T00:00:00Z",
            type="t",
            headers={"h": 1},
            dedup_key="d",
            key="k",
            max_attempts=7,
        ),
        {"position": "2", "queue": "default"},
    )
    first, second = await live(connection)
    names = "priority", "type", "headers", "dedup_key", "key", "max_attempts", "state"
    assert [first[name] for name in names] == [-3, "t", {"h": 1}, "d", "k", 7, "scheduled"]
    assert first["available_at"] == datetime(2050, 1, 1, tzinfo=UTC)
    assert [second[name] for name in names] == [0, None, {}, None, None, None, "waiting"]
    assert await connection.fetchval("select every(message = 'null') from messages.message")


async def test_a_taken_key_merges(connection: Connection) -> None:
    standing = await value(connection, "publish", queue="default", message=1, dedup_key="d")
    both = sent("1", dedup_key="d"), sent("2", dedup_key="e")
    assert await receive(connection, *both) == (1, 1, 0)
    assert len(await live(connection)) == 2
    receipt = await connection.fetchval(
        "select message_id from notifyq.relay_receipt where position = '1'"
    )
    assert receipt == standing
    assert await receive(connection, sent("1", dedup_key="d")) == (0, 0, 1)


async def test_a_refused_message_refuses_all(connection: Connection) -> None:
    with pytest.raises(QueueNotFoundError):
        await receive(connection, sent("1"), sent("2", queue="absent"))
    assert not await live(connection)
    assert await receive(connection, sent("1")) == (1, 0, 0)


async def test_an_invalid_array_is_refused(connection: Connection) -> None:
    for wrong in [{"a": 1}, "text", [{"queue": "default"}], [{"position": "1"}], [1]]:
        with pytest.raises(InvalidArgumentError):
            await rows(connection, "receive", source="s", messages=wrong)
        with pytest.raises(InvalidArgumentError):
            await rows(connection, "receive", source="", messages=[])


async def test_a_queue_granted_to_others_receives_nothing(
    connection: Connection, connect: Connect
) -> None:
    guest = await connect()
    await guest.execute("set role notifyq_publisher")
    await value(connection, "grant_queue", queue="default", role="notifyq_worker")
    await connection.execute(
        "grant execute on function messages.receive(text, jsonb) to notifyq_publisher"
    )
    with pytest.raises(QueueDeniedError):
        await receive(guest, sent("1"))


async def test_a_receipt_counts_for_the_role_that_received(
    connection: Connection, connect: Connect
) -> None:
    """A role that may only publish cannot keep the messages of another from being received."""
    guest = await connect()
    await guest.execute("set role notifyq_publisher")
    forge = """
        select known from notifyq.receive_many(
            's', array[$1], '{default}', array['1'::jsonb], '{0}', '{null}', '{null}', '{null}',
            '{null}', '{null}', '{null}'
        )
    """
    assert await guest.fetchval(forge, "1") == 0
    assert await receive(connection, sent("1")) == (1, 0, 0)
    assert await guest.fetchval(forge, "2") == 0
    assert await connection.fetchval(forge, "2") == 0
    assert await receive(connection, sent("1"), sent("2")) == (0, 0, 2)
    assert [await guest.fetchval(forge, position) for position in ("1", "2")] == [1, 1]


@pytest.mark.parametrize(("end", "report"), [("commit", (1, 0, 2)), ("rollback", (3, 0, 0))])
async def test_a_second_sender_of_the_same_message_waits_and_delivers_what_is_not_there(
    connection: Connection, connect: Connect, end: str, report: tuple[int, ...]
) -> None:
    other, observer = await connect(), await connect()
    await connection.execute("begin")
    assert await receive(connection, sent("2"), sent("1")) == (2, 0, 0)
    second = asyncio.create_task(receive(other, sent("1"), sent("2"), sent("3")))
    await until_blocked(observer, other)
    await connection.execute(end)
    assert await second == report
    assert len(await live(connection)) == 3


async def test_maintenance_deletes_old_receipts(connection: Connection) -> None:
    await receive(connection, sent("old"), sent("new"))
    await connection.execute(
        "update notifyq.relay_receipt set forget_at = now() - interval '1 day' "
        "where position = 'old'"
    )
    await value(connection, "maintain")
    left = await connection.fetch("select position from notifyq.relay_receipt")
    assert [row["position"] for row in left] == ["new"]
