"""Batches whose reader has ended: harmless events get through, a harmful one fails at last."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import BatchNotFoundError
from support.database import Connect, Connection, publish, rows, until_blocked, value


class Reader:
    """Reads batches of at most 100 and is killed by some of the events."""

    def __init__(self, connection: Connection, *poison: int, **options: Any) -> None:
        self.connection = connection
        self.poison = poison
        self.options = options
        self.done: list[int] = []
        self.sizes: list[int] = []
        """Of the batches that killed it."""

    async def open(self) -> int | None:
        batch: int | None = await value(
            self.connection, "next_batch", stream="s", subscriber="a", quantity=100
        )
        return batch

    async def recover(self, **options: Any) -> int:
        given = {"stream": "s", "subscriber": "a"} | self.options | options
        return int(await value(self.connection, "recover_batch", **given))

    async def live(self) -> bool:
        """Work until nothing is there. False: it was killed."""
        while (batch := await self.open()) is not None:
            found = await rows(self.connection, "batch_events", batch=batch)
            if not {row["id"] for row in found}.isdisjoint(self.poison):
                self.sizes.append(len(found))
                return False
            self.done += [row["id"] for row in found]
            await value(self.connection, "finish_batch", batch=batch)
        return True


@pytest.fixture
async def stream(connection: Connection) -> None:
    await value(connection, "create_stream", name="s")
    await value(connection, "subscribe", stream="s", subscriber="a")


async def dead(connection: Connection) -> list[tuple[int, int]]:
    found = await rows(connection, "dead_list", queue="s")
    return [(row["event_id"], row["attempts"]) for row in found]


@pytest.mark.usefixtures("stream")
async def test_an_event_that_kills_its_reader_fails_after_its_attempts(
    connection: Connection,
) -> None:
    ids = await publish(connection, 120, "s")
    reader = Reader(connection, ids[37])
    assert await reader.recover() == 0
    while not await reader.live():
        assert await reader.recover() == reader.sizes[-1]
        assert await reader.recover() == 0
    assert reader.sizes == [100, 10, 1, 1, 1]
    assert sorted(reader.done) == sorted({*ids} - {ids[37]})
    assert await dead(connection) == [(ids[37], 5)]
    assert not await connection.fetchval("select count(*) from notifyq.event_retry")
    # Retried by hand it may kill once more, alone or not, and is dead again.
    await connection.fetch("select messages.dead_retry(id) from messages.dead_message")
    assert not await reader.live()
    assert await reader.recover() == 1
    assert await dead(connection) == [(ids[37], 6)]


@pytest.mark.parametrize("quantity", [1, 3, 25, 100])
@pytest.mark.usefixtures("stream")
async def test_each_event_is_alone_before_it_fails(connection: Connection, quantity: int) -> None:
    ids = await publish(connection, quantity, "s")
    reader = Reader(connection, ids[0], ids[-1], max_attempts=1)
    while not await reader.live():
        await reader.recover()
    assert sorted(reader.done) == ids[1:-1]
    assert sorted(id_ for id_, _ in await dead(connection)) == sorted({ids[0], ids[-1]})


@pytest.mark.usefixtures("stream")
async def test_keeps_order_keeps_the_order(connection: Connection) -> None:
    ids = await publish(connection, 60, "s")
    reader = Reader(connection, ids[10], keeps_order=True)
    while not await reader.live():
        await reader.recover()
        await publish(connection, 1, "s")
    assert reader.done == sorted(reader.done)
    assert {*ids} - {*reader.done} == {ids[10]}


@pytest.mark.usefixtures("stream")
async def test_without_order_events_overtake_one_that_ends_its_reader_twice(
    connection: Connection,
) -> None:
    """What docs/guides/streams.md describes for a crash."""
    ids = await publish(connection, 60, "s")
    reader = Reader(connection, ids[10])
    first = await reader.open()
    assert await reader.open() == first, "without recover_batch() it is the same one"
    while not await reader.live():
        await reader.recover()
        await publish(connection, 1, "s")
    assert reader.sizes[:3] == [60, 6, 1]
    assert reader.done != sorted(reader.done)
    part = ids[6:12]
    # All other events of the batch keep their order, and what came later follows them.
    assert [id_ for id_ in reader.done if id_ not in part] == sorted({*reader.done} - {*part})
    done = [id_ for id_ in reader.done if id_ in part]
    assert done == sorted({*part} - {ids[10]})
    assert reader.done.index(ids[6]) > reader.done.index(ids[12])


@pytest.mark.usefixtures("stream")
async def test_a_recovered_event_keeps_its_outcome(connection: Connection) -> None:
    ids = await publish(connection, 3, "s")
    reader = Reader(connection)
    batch = await reader.open()
    hour = timedelta(hours=1)
    await value(connection, "retry_event", batch=batch, event=ids[0], delay=hour, reason="later")
    await value(connection, "fail_event", batch=batch, event=ids[1], reason="no")
    assert await reader.recover() == 1
    found = await connection.fetch(
        "select event_id, retries, reason, due_at > now() from notifyq.event_retry order by 1"
    )
    assert [tuple(row) for row in found] == [
        (ids[0], 1, "later", True),
        (ids[2], 1, "its reader was gone before the end", False),
    ]
    assert await dead(connection) == [(ids[1], 1)]
    assert not await value(connection, "finish_batch", batch=batch)
    with pytest.raises(BatchNotFoundError):
        await value(connection, "fail_event", batch=batch, event=ids[2])


@pytest.mark.usefixtures("stream")
async def test_a_released_batch_counts_no_attempt(connection: Connection) -> None:
    await publish(connection, 3, "s")
    reader = Reader(connection)
    batch = await reader.open()
    assert await value(connection, "release_batch", batch=batch)
    assert await reader.recover() == 0
    assert await reader.open() == batch
    # The next one has given no word.
    assert await reader.recover() == 3
    assert not await value(connection, "release_batch", batch=batch)
    with pytest.raises(BatchNotFoundError):
        await value(connection, "release_batch", batch=10**9)


@pytest.mark.usefixtures("stream")
async def test_only_the_batch_of_one_member_is_recovered(connection: Connection) -> None:
    asked = {"stream": "s", "subscriber": "a"}
    opened = {}
    for member in ("one", "two"):
        await publish(connection, 2, "s")
        opened[member] = await value(connection, "next_batch", **asked, member=member)
    assert await value(connection, "recover_batch", **asked, member="one") == 2
    assert await value(connection, "next_batch", **asked, member="two") == opened["two"]
    assert await value(connection, "next_batch", **asked, member="one") != opened["one"]
    assert await value(connection, "recover_batch", **asked, member="three") == 0


@pytest.mark.usefixtures("stream")
async def test_a_finish_and_a_recovery_at_once_have_one_winner(
    connection: Connection, connect: Connect
) -> None:
    await publish(connection, 2, "s")
    first, second = await connect(), await connect()
    reader = Reader(second)
    batch = await reader.open()
    await first.execute("begin")
    assert await value(first, "finish_batch", batch=batch)
    recovering = asyncio.create_task(reader.recover())
    await until_blocked(connection, second)
    await first.execute("commit")
    assert await recovering == 0
    assert await reader.open() is None


@pytest.mark.usefixtures("stream")
async def test_the_time_until_the_next_retry(connection: Connection) -> None:
    asked = {"stream": "s", "subscriber": "a"}
    assert await value(connection, "notifyq.next_retry", **asked) is None
    await publish(connection, 2, "s")
    batch = await value(connection, "next_batch", **asked)
    assert await value(connection, "notifyq.next_retry", **asked) is None
    for delay in (timedelta(hours=2), timedelta(hours=1)):
        [event, *_] = [
            row["id"]
            for row in await rows(connection, "batch_events", batch=batch)
            if not await connection.fetchval(
                "select count(*) from notifyq.event_retry where event_id = $1", row["id"]
            )
        ]
        await value(connection, "retry_event", batch=batch, event=event, delay=delay)
    left = await value(connection, "notifyq.next_retry", **asked)
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    await connection.execute("update notifyq.event_retry set due_at = now() - interval '1 day'")
    assert await value(connection, "notifyq.next_retry", **asked) == timedelta(0)
