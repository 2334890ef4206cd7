"""Claiming: which messages, in which order, how many, for how long, and never by waiting."""

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError, QueueNotFoundError
from support.database import Connect, Connection, claim_one, live, make_due, publish, rows, value


async def claimed(connection: Connection, **arguments: Any) -> list[int]:
    return [row["id"] for row in await rows(connection, "claim", **arguments)]


async def test_a_claim_locks_the_message_for_the_worker(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    before = await connection.fetchval("select clock_timestamp()")
    message = await claim_one(connection, "w1")
    after = await connection.fetchval("select clock_timestamp()")

    assert message["id"] == id_
    assert message["state"] == "locked"
    assert message["locked_by"] == "w1"
    assert message["attempts"] == 1
    assert message["lock_token"] == 1
    assert before <= message["locked_at"] <= after
    assert message["lock_expires_at"] - message["locked_at"] == timedelta(minutes=1)
    assert message == await live(connection, id_)


async def test_the_name_of_a_worker_is_bounded(connection: Connection) -> None:
    await publish(connection, 2)
    await claim_one(connection, "w" * 500)
    with pytest.raises(InvalidArgumentError, match="500 bytes"):
        await rows(connection, "claim", worker="w" * 501)


async def test_larger_priority_goes_first_then_the_older_message(connection: Connection) -> None:
    ids = {
        (priority, n): await value(
            connection, "publish", queue="default", message=n, priority=priority
        )
        for priority, n in [(0, 1), (5, 1), (-1, 1), (5, 2), (0, 2), (2**31 - 1, 1)]
    }
    expected = [(2**31 - 1, 1), (5, 1), (5, 2), (0, 1), (0, 2), (-1, 1)]
    assert await claimed(connection, quantity=4) == [ids[key] for key in expected[:4]]
    assert await claimed(connection, quantity=4) == [ids[key] for key in expected[4:]]


async def test_order_is_by_id_also_where_rows_lie_in_another_order(connection: Connection) -> None:
    await publish(connection, 1000)
    await connection.execute("delete from messages.message where id % 2 = 0")
    await connection.execute("vacuum messages.message")
    await publish(connection, 200)

    ids = await claimed(connection, quantity=700)
    assert len(ids) == 700
    assert ids == sorted(ids)


# The last is the one under which a limit in a plain sub-select runs once for each outer row.
PLANS = [
    "",
    "hashjoin",
    "mergejoin",
    "nestloop",
    "indexscan",
    "hashjoin,mergejoin,material",
    "hashjoin,mergejoin,material,hashagg,sort",
]


@pytest.mark.parametrize("forbidden", PLANS)
@pytest.mark.parametrize("is_analysed", [False, True])
async def test_a_claim_returns_exactly_the_quantity_under_any_plan(
    connection: Connection, forbidden: str, *, is_analysed: bool
) -> None:
    await publish(connection, 500)
    if is_analysed:
        await connection.execute("analyze messages.message")
    for method in filter(None, forbidden.split(",")):
        await connection.execute(f"set enable_{method} = off")

    taken: list[int] = []
    for quantity in (1, 7, 7, 7, 7, 7, 7, 7, 100, 1):
        ids = await claimed(connection, quantity=quantity)
        assert len(ids) == quantity
        taken += ids
    locked = await connection.fetch(
        "select id from messages.message where state = 'locked' order by id"
    )
    assert [row["id"] for row in locked] == taken


async def test_queues_are_read_in_the_order_given(connection: Connection) -> None:
    published = {}
    for queue in ("a", "b", "c"):
        await value(connection, "create_queue", name=queue)
        published[queue] = await publish(connection, 2, queue)

    assert await claimed(connection, queues=["c", "a"], quantity=3) == [
        *published["c"],
        published["a"][0],
    ]
    assert await claimed(connection, queues=["b", "a"], quantity=2) == published["b"]
    assert await claimed(connection, queues=["b", "c"], quantity=9) == []
    assert await claimed(connection, queues=["a"], quantity=9) == published["a"][1:]


async def test_the_first_queue_goes_before_the_priorities_of_the_second(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="first")
    urgent = await value(connection, "publish", queue="default", message=1, priority=100)
    (ordinary,) = await publish(connection, 1, "first")
    assert await claimed(connection, queues=["first", "default"]) == [ordinary]
    assert await claimed(connection, queues=["first", "default"]) == [urgent]


async def test_no_queues_means_all_of_them(connection: Connection) -> None:
    ids = set()
    for queue in ("a", "z"):
        await value(connection, "create_queue", name=queue)
        ids.update(await publish(connection, 2, queue))
    ids.update(await publish(connection, 2))
    assert set(await claimed(connection, queues=None, quantity=100)) == ids


async def test_a_paused_queue_gives_no_message_until_it_is_resumed(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    ids = await publish(connection, 2)
    others = await publish(connection, 2, "other")
    await value(connection, "pause_queue", name="default")

    assert await claimed(connection, queues=["default"], quantity=9) == []
    assert await claimed(connection, quantity=9) == others
    await value(connection, "resume_queue", name="default")
    assert await claimed(connection, queues=["default"], quantity=9) == ids


async def test_a_filter_selects_by_content_and_keeps_the_order(connection: Connection) -> None:
    messages: list[Any] = [{"n": 1}, {"n": 9}, {"m": 1}, {"n": 2}, "text", []]
    ids = [
        await value(connection, "publish", queue="default", message=message) for message in messages
    ]
    assert await claimed(connection, quantity=9, filter="$.n < 3") == [ids[0], ids[3]]
    assert await claimed(connection, quantity=9, filter="exists ($.m)") == [ids[2]]
    assert await claimed(connection, quantity=9) == [ids[1], ids[4], ids[5]]


async def test_a_filter_fills_the_quantity_from_the_whole_backlog(connection: Connection) -> None:
    await publish(connection, 300)
    assert len(await claimed(connection, quantity=10, filter="$ >= 290")) == 10


async def test_the_lock_duration_is_that_of_the_call_or_the_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="slow", lock_duration=timedelta(hours=2))
    await publish(connection, 2, "slow")

    async def held(**arguments: Any) -> timedelta:
        message = (await rows(connection, "claim", queues=["slow"], **arguments))[0]
        lasts: timedelta = message["lock_expires_at"] - message["locked_at"]
        return lasts

    assert await held() == timedelta(hours=2)
    assert await held(lock_duration=timedelta(milliseconds=1500)) == timedelta(milliseconds=1500)


async def test_a_lock_starts_at_the_claim_not_at_the_start_of_the_transaction(
    connection: Connection,
) -> None:
    await publish(connection, 1)
    async with connection.transaction():
        before = await connection.fetchval("select clock_timestamp()")
        message = await claim_one(connection)
    assert message["locked_at"] >= before


async def test_a_quantity_out_of_range_is_refused(connection: Connection) -> None:
    for quantity in [0, -1, 10_001, None]:
        for function, arguments in (("claim", {}), ("take", {"queue": "default"})):
            with pytest.raises(InvalidArgumentError, match="between 1 and 10000"):
                await rows(connection, function, quantity=quantity, **arguments)


@pytest.mark.parametrize("lock_duration", [timedelta(0), timedelta(seconds=-1)])
async def test_a_lock_must_last(connection: Connection, lock_duration: timedelta) -> None:
    await publish(connection, 1)
    with pytest.raises(InvalidArgumentError, match="lock_duration"):
        await rows(connection, "claim", lock_duration=lock_duration)
    with pytest.raises(InvalidArgumentError, match="lock_duration"):
        await rows(connection, "claim_id", id=1, lock_duration=lock_duration)
    await claim_one(connection)
    with pytest.raises(InvalidArgumentError, match="lock_duration"):
        await value(connection, "extend", id=1, lock_token=1, lock_duration=lock_duration)


async def test_an_unknown_queue_is_refused_whatever_waits_in_the_known_ones(
    connection: Connection,
) -> None:
    for waiting in (0, 1, 5):
        await publish(connection, waiting)
        with pytest.raises(QueueNotFoundError, match="'nope'"):
            await rows(connection, "claim", queues=["default", "nope"], quantity=2)
        assert (
            await connection.fetchval("select count(*) from messages.message where attempts > 0")
            == 0
        )


async def test_a_queue_named_twice_is_read_once(connection: Connection) -> None:
    ids = await publish(connection, 2)
    assert await claimed(connection, queues=["default", "default"], quantity=9) == ids


@pytest.mark.parametrize("function", ["claim", "take"])
async def test_no_call_waits_for_a_message_that_another_session_has_locked(
    connection: Connection, connect: Connect, function: str
) -> None:
    other = await connect()
    await other.execute("set lock_timeout = '50ms'")
    queue = {"take": {"queue": "default"}, "claim": {}}[function]
    for holding in (
        "select * from messages.claim(quantity => 2)",
        "select * from messages.take('default', 2)",
        "select * from messages.message order by id limit 2 for update",
        "delete from messages.message where id in (select min(id) from messages.message)",
    ):
        ids = await publish(connection, 4)
        async with connection.transaction():
            held = [row["id"] for row in await connection.fetch(holding)] or ids[:1]
            free = await rows(other, function, quantity=4, **queue)
            assert [row["id"] for row in free] == [id_ for id_ in ids if id_ not in held]
            assert await rows(other, function, quantity=4, **queue) == []
        await connection.execute("delete from messages.message")


async def test_scheduled_messages_are_handed_out_when_due_among_the_others(
    connection: Connection,
) -> None:
    later = [
        await value(
            connection, "publish", queue="default", message=n, priority=n, delay=timedelta(hours=1)
        )
        for n in range(3)
    ]
    (now,) = await publish(connection, 1)
    assert await claimed(connection, quantity=9) == [now]
    await make_due(connection, later[0], later[2])
    assert await claimed(connection, quantity=1) == [later[2]]
    assert await claimed(connection, quantity=9) == [later[0]]
    assert await claimed(connection, quantity=9) == []


async def test_claim_id_locks_the_one_message(connection: Connection) -> None:
    ids = await publish(connection, 3)
    (message,) = await rows(
        connection, "claim_id", id=ids[1], lock_duration=timedelta(seconds=5), worker="me"
    )
    assert message["id"] == ids[1]
    assert message == await live(connection, ids[1])
    assert (message["state"], message["locked_by"], message["attempts"]) == ("locked", "me", 1)
    assert message["lock_expires_at"] - message["locked_at"] == timedelta(seconds=5)
    assert await claimed(connection, quantity=9) == [ids[0], ids[2]]


async def test_claim_id_gives_nothing_for_a_message_that_is_not_free(
    connection: Connection,
) -> None:
    locked, paused = await publish(connection, 2)
    later = await value(connection, "publish", queue="default", message=1, delay=timedelta(hours=1))
    await rows(connection, "claim_id", id=locked)
    assert await rows(connection, "claim_id", id=locked) == []
    assert await rows(connection, "claim_id", id=later) == []
    assert await rows(connection, "claim_id", id=10**9) == []
    await value(connection, "pause_queue", name="default")
    assert await rows(connection, "claim_id", id=paused) == []
    await value(connection, "resume_queue", name="default")
    await make_due(connection, later)
    (message,) = await rows(connection, "claim_id", id=later)
    assert message["state"] == "locked"
