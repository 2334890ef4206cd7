"""Wake slots: few idle workers answer the notification for a single message."""

from __future__ import annotations

import pytest

from notify.protocol import Step, orders, run
from support.database import Connect, Connection, Notifications, terminate, value

QUEUES = ["default"]


async def take(session: Connection, slots: int = 2) -> int | None:
    [slot] = await value(session, "notifyq.take_wake_slots", queues=QUEUES, slots=slots)
    return None if slot is None else int(slot)


async def leave(session: Connection, slot: int | None, slots: int = 2) -> int:
    return int(
        await value(session, "notifyq.leave_wake_slots", queues=QUEUES, held=[slot], slots=slots)
    )


async def test_a_queue_has_so_many_slots_and_no_more(connect: Connect) -> None:
    workers = [await connect() for _ in range(3)]
    assert [await take(worker) for worker in workers] == [1, 2, None]


async def test_a_slot_is_free_after_its_holder_has_gone(
    connection: Connection, connect: Connect
) -> None:
    first, second = await connect(), await connect()
    assert await take(first, 1) == 1
    await terminate(connection, first)
    assert await take(second, 1) == 1
    await leave(second, 1, 1)
    assert await take(connection, 1) == 1


async def test_each_queue_has_its_own_slots(connection: Connection, connect: Connect) -> None:
    await value(connection, "create_queue", name="b")
    assert await take(connection, 1) == 1
    other = await connect()
    assert await value(other, "notifyq.take_wake_slots", queues=["default", "b"], slots=1) == [
        None,
        1,
    ]


async def test_a_worker_that_leaves_others_behind_notifies_none(
    connection: Connection, connect: Connect, notifications: Notifications
) -> None:
    assert await take(connection) == 1
    assert await take(await connect()) == 2
    assert await leave(connection, 1) == 0
    assert not await notifications.received()


async def test_the_last_to_leave_wakes_all_even_if_no_message_waits(
    connection: Connection, notifications: Notifications
) -> None:
    assert await take(connection) == 1
    assert await leave(connection, 1) == 1
    assert [notification.payload for notification in await notifications.received()] == ["default:"]


@pytest.mark.parametrize("changed", ["pause_queue", "alter_queue"])
async def test_the_last_to_leave_a_paused_or_muted_queue_notifies_none(
    connection: Connection, notifications: Notifications, changed: str
) -> None:
    assert await take(connection) == 1
    off = {"notify": "off"} if "alter" in changed else {}
    await value(connection, changed, name="default", **off)
    assert await leave(connection, 1) == 0
    assert not await notifications.received()


async def test_checking_for_holders_takes_no_slot(connection: Connection, connect: Connect) -> None:
    assert await take(connection) == 1
    async with connection.transaction():
        await leave(connection, 1)
        other = await connect()
        assert await take(other) == 1, "a worker that has left still holds a slot"


async def test_when_two_leave_one_of_them_notifies_in_every_order(
    connect: Connect, notifications: Notifications
) -> None:
    sessions = [await connect() for _ in range(2)]

    def leaving(session: Connection, slot: int) -> list[Step]:
        async def begin() -> None:
            await session.execute("begin")
            await leave(session, slot)

        async def commit() -> None:
            await session.execute("commit")

        return [begin, commit]

    for order in orders(2, 2):
        assert [await take(session) for session in sessions] == [1, 2]
        await notifications.received()
        await run(order, *(leaving(session, n) for n, session in enumerate(sessions, 1)))
        assert await notifications.received(), order
