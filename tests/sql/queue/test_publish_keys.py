"""messages.publish_many with a dedup key for each message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from notifyq.errors import InvalidArgumentError, QueueNotFoundError
from support.database import Connect, Notifications, rows, until_blocked, value

if TYPE_CHECKING:
    from support.database import Connection


async def publish(connection: Connection, keys: list[str | None], **options: Any) -> list[int]:
    published = await rows(
        connection,
        "publish_many",
        queue=options.pop("queue", "default"),
        messages=list(range(len(keys))),
        dedup_keys=keys,
        **options,
    )
    return [row[0] for row in published]


async def stored(connection: Connection) -> list[tuple[Any, ...]]:
    found = await connection.fetch(
        "select id, message, dedup_key from messages.message order by id"
    )
    return [tuple(row) for row in found]


async def test_each_key_is_published_once_in_the_order_of_the_array(
    connection: Connection, notifications: Notifications
) -> None:
    taken = await value(connection, "publish", queue="default", message=-1, dedup_key="m")
    await notifications.received()
    ids = await publish(connection, ["z", None, "a", "m", "z", None], priority=2)
    assert ids[3] == taken
    assert ids[4] == ids[0]
    assert await stored(connection) == [
        (taken, -1, "m"),
        (ids[0], 0, "z"),
        (ids[1], 1, None),
        (ids[2], 2, "a"),
        (ids[5], 5, None),
    ]
    (notification,) = await notifications.received()  # which may have only some of the ids
    assert set(notification.ids) <= {*ids} - {taken}


async def test_a_key_is_free_again_when_its_message_is_finished(connection: Connection) -> None:
    first = await publish(connection, ["a", "b"])
    assert await publish(connection, ["a", "b"]) == first
    (message,) = await rows(connection, "claim", worker="worker")
    await value(connection, "finish", id=message["id"], lock_token=message["lock_token"])
    again = await publish(connection, ["b", "a"])
    assert again[0] == first[1]
    assert again[1] not in first


async def test_publishers_of_the_same_keys_in_another_order_do_not_deadlock(
    connect: Connect,
) -> None:
    one, two, observer = await connect(), await connect(), await connect()
    keys: list[str | None] = [str(number) for number in range(1000)]
    for _ in range(5):
        ids = await asyncio.gather(publish(one, keys), publish(two, keys[::-1]))
        assert ids[0] == ids[1][::-1]
        await observer.execute("delete from messages.message")


async def test_a_key_that_another_transaction_rolls_back_is_published(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    transaction = connection.transaction()
    await transaction.start()
    (given_up,) = await publish(connection, ["k"])
    publishing = asyncio.ensure_future(publish(other, ["j", "k"]))
    await until_blocked(await connect(), other)
    await transaction.rollback()
    ids = await publishing
    assert given_up not in ids
    assert [key for _, _, key in await stored(connection)] == ["j", "k"]


async def test_keys_and_messages_must_have_the_same_length(connection: Connection) -> None:
    for messages, keys in (([1], ["a", "b"]), ([1, 2], ["a"]), ([1], [])):
        with pytest.raises(InvalidArgumentError, match="dedup_keys"):
            await rows(
                connection, "publish_many", queue="default", messages=messages, dedup_keys=keys
            )
    assert await publish(connection, []) == []
    with pytest.raises(QueueNotFoundError):
        await publish(connection, ["a"], queue="nope")
    assert await stored(connection) == []
