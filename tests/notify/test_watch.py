"""Places among those who answer the bell for a single message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from notify.protocol import orders, run
from support.database import terminate, value

if TYPE_CHECKING:
    from notify.protocol import Step
    from support.database import Bells, Connect, Connection

QUEUES = ["default"]


async def watch(session: Connection, places: int = 2) -> int | None:
    [place] = await value(session, "notifyq.take_wake_slots", queues=QUEUES, places=places)
    return None if place is None else int(place)


async def unwatch(session: Connection, place: int | None, places: int = 2) -> int:
    return int(
        await value(session, "notifyq.leave_wake_slots", queues=QUEUES, held=[place], places=places)
    )


async def test_there_are_so_many_places_and_no_more(connect: Connect) -> None:
    workers = [await connect() for _ in range(3)]
    assert [await watch(worker) for worker in workers] == [1, 2, None]


async def test_a_place_is_free_again_after_its_holder(
    connection: Connection, connect: Connect
) -> None:
    first, second = await connect(), await connect()
    assert await watch(first, 1) == 1
    await terminate(connection, first)
    assert await watch(second, 1) == 1
    await unwatch(second, 1, 1)
    assert await watch(connection, 1) == 1


async def test_places_of_queues_are_apart(connection: Connection, connect: Connect) -> None:
    await value(connection, "create_queue", name="b")
    assert await watch(connection, 1) == 1
    other = await connect()
    assert await value(other, "notifyq.take_wake_slots", queues=["default", "b"], places=1) == [
        None,
        1,
    ]


async def test_who_leaves_others_behind_rings_for_nobody(
    connection: Connection, connect: Connect, bells: Bells
) -> None:
    assert await watch(connection) == 1
    assert await watch(await connect()) == 2
    assert await unwatch(connection, 1) == 0
    assert not await bells.heard()


async def test_the_last_to_leave_rings_for_all_whether_or_not_a_message_waits(
    connection: Connection, bells: Bells
) -> None:
    assert await watch(connection) == 1
    assert await unwatch(connection, 1) == 1
    assert [bell.payload for bell in await bells.heard()] == ["default:"]


@pytest.mark.parametrize("silenced", ["pause_queue", "alter_queue"])
async def test_the_last_to_leave_is_as_silent_as_the_queue(
    connection: Connection, bells: Bells, silenced: str
) -> None:
    assert await watch(connection) == 1
    off = {"bell": "off"} if "alter" in silenced else {}
    await value(connection, silenced, name="default", **off)
    assert await unwatch(connection, 1) == 0
    assert not await bells.heard()


async def test_asking_whether_somebody_watches_takes_no_place(
    connection: Connection, connect: Connect
) -> None:
    assert await watch(connection) == 1
    async with connection.transaction():
        await unwatch(connection, 1)
        other = await connect()
        assert await watch(other) == 1, "held back by one who has left"


async def test_of_two_who_leave_one_rings_in_every_order(connect: Connect, bells: Bells) -> None:
    sessions = [await connect() for _ in range(2)]

    def leaving(session: Connection, place: int) -> list[Step]:
        async def leave() -> None:
            await session.execute("begin")
            await unwatch(session, place)

        async def commit() -> None:
            await session.execute("commit")

        return [leave, commit]

    for order in orders(2, 2):
        assert [await watch(session) for session in sessions] == [1, 2]
        await bells.heard()
        await run(order, *(leaving(session, n) for n, session in enumerate(sessions, 1)))
        assert await bells.heard(), order
