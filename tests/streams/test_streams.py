"""Streams from Python: positions, batches in one's own loop, and what becomes of their events."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from notifyq import (
    App,
    BatchNotFoundError,
    ConfigurationError,
    EventNotFoundError,
    InvalidArgumentError,
    StreamNotFoundError,
    StreamPausedError,
    StreamPolicy,
    SubscriptionNotFoundError,
)
from notifyq.database import statements as sql
from notifyq.streams.tail import Tail
from notifyq.telemetry import log_events
from support.database import Connection, until


async def test_a_stream_lives_from_create_to_drop(app: App) -> None:
    streams = app.streams
    assert await streams.create("s", StreamPolicy(retention=60, max_bytes=5000))
    assert not await streams.create("s")
    await streams.alter("s", StreamPolicy(notify="always"))
    [info] = await streams.info("s")
    assert info["stream"] == "s"
    assert await streams.pause("s")
    assert not await streams.pause("s")
    with pytest.raises(StreamPausedError):
        await app.publish("s", 1)
    assert await streams.resume("s")
    assert await streams.subscribe("s", "a")
    assert not await streams.subscribe("s", "a", "start")
    await app.publish("s", 1)
    assert await streams.unsubscribe("s", "a")
    assert not await streams.unsubscribe("s", "a")
    await streams.drop("s", force=True)
    with pytest.raises(StreamNotFoundError):
        await streams.subscribe("s", "a")


async def test_batches_are_repeated_until_they_are_finished(app: App) -> None:
    await app.streams.create("s")
    await app.streams.subscribe("s", "a")
    await app.publish_many("s", [1, 2, 3], type="t", key=str)
    read = app.subscription("s", "a")
    first, again = await read.next_batch(), await read.next_batch()
    assert first is not None
    assert again is not None
    assert first.id == again.id
    assert [(it.payload(), it.key, it.type) for it in first.events] == [
        (1, "1", "t"), (2, "2", "t"), (3, "3", "t"),
    ]  # fmt: skip
    one, two, _ = first.events
    assert await first.retry(one, reason="once more")
    assert not await first.retry(one)
    assert await first.fail(two, "no")
    with pytest.raises(EventNotFoundError):
        await first.fail(10**12)
    assert await first.finish()
    assert not await again.finish()
    with pytest.raises(BatchNotFoundError):
        await first.retry(one)
    later = await read.next_batch()
    assert later is not None
    assert [(it.id, it.retries, it.attempts, it.reason) for it in later.events] == [
        (one.id, 1, 2, "once more")
    ]
    await later.finish()
    assert await read.next_batch() is None
    with pytest.raises(SubscriptionNotFoundError):
        await app.subscription("s", "b").next_batch()
    with pytest.raises(ConfigurationError, match="quantity must be between"):
        await read.next_batch(0)


async def test_a_loop_is_woken_and_finishes_its_batches(app: App) -> None:
    await app.streams.create("s")
    await app.streams.subscribe("s", "a")
    await app.publish("s", 0)
    seen: list[int] = []

    async def follow() -> None:
        async for batch in app.subscription("s", "a").batches(quantity=2):
            seen.extend(event.payload() for event in batch.events)
            if len(seen) < 6:
                await app.publish("s", len(seen))
            else:
                return  # not finished

    async with asyncio.timeout(20):
        await follow()
    assert seen == [0, 1, 2, 3, 4, 5]
    [info] = await app.streams.subscriptions("s", "a")
    assert info.current_batch is not None
    rest = await app.subscription("s", "a").next_batch()
    assert rest is not None
    assert [event.payload() for event in rest.events] == [5]


async def test_effect_and_end_are_one_commit(app: App, connection: Connection) -> None:
    await connection.execute("create table effect (id bigint)")
    await app.streams.create("s")
    await app.streams.subscribe("s", "a")
    ids = [int(it) for it in await app.publish_many("s", [1, 2])]
    read = app.subscription("s", "a")

    async def copy(*, fails: bool) -> int:
        async with read.transaction() as (transaction, batch):
            events = batch.events if batch else []
            for event in events:
                await transaction.execute("insert into effect values ($1)", event.id)
            if fails:
                raise ValueError("undone")
            return len(events)

    with pytest.raises(ValueError, match="undone"):
        await copy(fails=True)
    assert await connection.fetchval("select count(*) from effect") == 0
    assert await copy(fails=False) == 2
    assert await copy(fails=False) == 0
    assert [row["id"] for row in await connection.fetch("select id from effect")] == ids


async def test_a_large_batch_is_read_bit_by_bit(app: App) -> None:
    await app.streams.create("s")
    await app.streams.subscribe("s", "a")
    await app.publish_many("s", range(2500))
    batch = await app.subscription("s", "a").next_batch(100_000)
    assert batch is not None
    with pytest.raises(ConfigurationError, match="async for"):
        _ = batch.events
    assert [event.payload() async for event in batch] == list(range(2500))
    async for _ in batch:
        break
    assert await batch.finish()


@pytest.mark.parametrize("position", ["start", datetime(2020, 1, 1, tzinfo=UTC), 1])
async def test_a_replay(app: App, position: Any) -> None:
    await app.streams.create("s")
    await app.streams.subscribe("s", "a", "start")
    await app.publish_many("s", [1, 2])
    read = app.subscription("s", "a")

    async def read_all() -> list[int]:
        found = []
        while batch := await read.next_batch():
            found += [event.payload() for event in batch.events]
            await batch.finish()
        return found

    assert await read_all() == [1, 2]
    await app.streams.seek("s", "a", "start" if position == 1 else position)
    assert await read_all() == [1, 2]
    await app.publish("s", 3)
    await app.streams.seek("s", "a", "now")
    assert await read_all() == []
    with pytest.raises(InvalidArgumentError):
        await app.streams.seek("s", "a", "nowhere")


async def test_a_tail_sees_what_is_committed_late_and_keeps_nothing(
    app: App, connection: Connection
) -> None:
    await app.streams.create("s")
    await app.publish("s", 0)
    found: list[int] = []
    ready = asyncio.Event()

    async def follow() -> None:
        async for events in Tail(app.database, "s", telemetry=log_events).events(poll=0.05):
            found.extend(event.payload() for event in events)
            ready.set()

    following = asyncio.create_task(follow())

    async def has(number: int) -> None:
        async def came() -> bool:
            if number not in found:
                await app.publish("s", 1)  # it may not poll yet
            return number in found

        await until(came, f"{number} came", 20)

    await has(1)
    async with connection.transaction():
        await connection.fetchval("select messages.publish('s', '2')")
        await app.publish("s", 3)
        await has(3)
        assert 2 not in found
    await has(2)
    following.cancel()
    await asyncio.wait([following])
    assert 0 not in found
    assert (found.count(2), found.count(3)) == (1, 1)
    assert await app.streams.subscriptions("s") == []


async def test_a_transaction_that_has_failed_does_not_hide_why(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.streams.create("s")
    await app.streams.subscribe("s", "a")
    await app.publish("s", 1)
    monkeypatch.setattr(sql, "FETCH_EVENTS", "select 1 / 0")
    async with app.database.begun() as connection:
        batch = await app.subscription("s", "a").next_batch(20_000, connection=connection)
        assert batch is not None
        with pytest.raises(asyncpg.DivisionByZeroError):
            await anext(aiter(batch))
