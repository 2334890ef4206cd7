"""Notifications: their payload, how often they are sent, and how long they can get."""

import pytest

from support.database import Connection, Notifications, lock_of, publish, rows, value

LONGEST_NAME = "é" * 100  # 200 bytes
LIMIT = 8000

INTERLEAVED = """
    insert into messages.message (queue, message)
    select case n % 2 when 0 then $1 else 'default' end, '1' from generate_series(1, $2) as g (n)
"""


async def test_ids_are_written_as_spans(connection: Connection) -> None:
    for ids, spans in (
        ([], ""),
        ([7], "7"),
        ([7, 8], "7-8"),
        ([41, 42, 43, 50], "41-43,50"),
        ([50, 43, 41, 42], "41-43,50"),
        ([1, 3, 5], "1,3,5"),
        ([1, 2, 4, 5, 9223372036854775806, 9223372036854775807],
         "1-2,4-5,9223372036854775806-9223372036854775807"),
    ):  # fmt: skip
        assert await value(connection, "notifyq.compact_ids", ids=ids) == spans


async def test_ids_that_do_not_fit_are_left_out_from_the_end(connection: Connection) -> None:
    ids = list(range(10**18, 10**18 + 2000, 2))
    spans = await value(connection, "notifyq.compact_ids", ids=ids)
    named = [int(span) for span in spans.split(",")]
    assert 7600 < len(spans) <= 7700
    assert named == ids[: len(named)]


async def test_a_statement_notifies_each_of_its_queues_once_with_its_ids(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="b")
    for quantity in (6, 3):
        await connection.execute(INTERLEAVED, "b", quantity)
        ids = [row["id"] for row in await rows(connection, "take", queue="b", quantity=9)]
        others = [row["id"] for row in await rows(connection, "take", queue="default", quantity=9)]
        assert len(ids + others) == quantity
        assert await notifications.payloads() == [
            f"b:{','.join(map(str, ids))}", f"default:{','.join(map(str, others))}"
        ]  # fmt: skip


async def test_the_ids_of_a_notification_are_those_of_its_queue(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="b")
    await connection.execute(INTERLEAVED, "b", 400)
    for notification in await notifications.received():
        live = await rows(connection, "message_list", queue=notification.queue, quantity=1000)
        assert notification.ids == [row["id"] for row in live]


@pytest.mark.parametrize("first_id", [1, 9 * 10**18])
async def test_a_notification_is_short_whatever_is_published(
    connection: Connection, notifications: Notifications, first_id: int
) -> None:
    await value(connection, "create_queue", name=LONGEST_NAME)
    await connection.execute(f"alter table messages.message alter id restart {first_id}")
    await connection.execute(INTERLEAVED, LONGEST_NAME, 100_000)

    received = await notifications.received()
    assert [notification.queue for notification in received] == ["default", LONGEST_NAME]
    assert all(len(notification.payload.encode()) < LIMIT for notification in received)
    assert all(notification.ids for notification in received)


async def test_messages_for_later_are_not_in_the_notification(
    connection: Connection, notifications: Notifications
) -> None:
    await connection.execute("""
        insert into messages.message (message, available_at)
        select '1', now() + case when n in (2, 3) then interval '1 hour' else interval '0' end
        from generate_series(1, 5) as g (n)
    """)
    first = await connection.fetchval("select min(id) from messages.message")
    assert await notifications.payloads() == [f"default:{first},{first + 3}-{first + 4}"]


async def test_a_queue_with_notify_off_sends_no_notification(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="quiet", notify="off")
    await publish(connection, 3, "quiet")
    await rows(connection, "notifyq.renotify")
    (message,) = await rows(connection, "claim", queues=["quiet"])
    await value(connection, "release", **lock_of(message))
    assert await notifications.received() == []


async def test_a_queue_with_notify_off_does_not_affect_others_of_a_statement(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="quiet", notify="off")
    await connection.execute(INTERLEAVED, "quiet", 10)
    assert [notification.queue for notification in await notifications.received()] == ["default"]
