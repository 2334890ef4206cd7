"""Publishers meet each other and the end of their queue."""

import asyncio

from notifyq.errors import QueueNotFoundError
from support.database import Connect, Connection, Notifications, publish, rows, until_blocked, value


async def publish_key(connection: Connection, key: str) -> int:
    return int(await value(connection, "publish", queue="default", message=1, dedup_key=key))


async def test_a_second_publisher_of_a_key_waits_and_gets_the_first_id(
    connection: Connection, connect: Connect, notifications: Notifications
) -> None:
    second, observer = await connect(), await connect()
    async with connection.transaction():
        first = await publish_key(connection, "k")
        publishing = asyncio.ensure_future(publish_key(second, "k"))
        await until_blocked(observer, second)
    assert await publishing == first
    assert len(await rows(connection, "message_list")) == 1
    assert await notifications.ids() == [[first]]


async def test_a_key_that_is_freed_in_between_is_published_anew(
    connection: Connection, connect: Connect
) -> None:
    second, observer = await connect(), await connect()
    first = await publish_key(connection, "k")
    await rows(connection, "claim")
    async with connection.transaction():
        assert await value(connection, "finish", id=first, lock_token=1)
        publishing = asyncio.ensure_future(publish_key(second, "k"))
        await until_blocked(observer, second)
    second_id = await publishing
    assert second_id != first
    assert [row["id"] for row in await rows(connection, "message_list")] == [second_id]


async def test_dropping_a_queue_beside_its_publishers_leaves_no_message_without_a_queue(
    connection: Connection, connect: Connect
) -> None:
    async def publish_until_dropped() -> int:
        session = await connect()
        published = 0
        try:
            while True:
                published += len(await publish(session, 5, "q"))
        except QueueNotFoundError:
            return published

    for _ in range(5):
        await value(connection, "create_queue", name="q")
        publishing = [asyncio.ensure_future(publish_until_dropped()) for _ in range(4)]
        seen = 0
        while seen < 20:
            seen = await connection.fetchval("select count(*) from messages.message")
        dropped = await value(connection, "drop_queue", name="q", force=True)
        assert dropped == sum(await asyncio.gather(*publishing))
        assert await rows(connection, "message_list") == []
