"""Polls that find nothing: they wait for no lock and write nothing, and none of them errs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.database import Connect, Connection, publish, rows, value


async def poll(connection: Connection, **options: Any) -> int | None:
    batch: int | None = await value(connection, "next_batch", stream="s", subscriber="a", **options)
    return batch


async def read(connection: Connection, **options: Any) -> list[int]:
    """Take one batch and finish it; return its events."""
    batch = await poll(connection, **options)
    if batch is None:
        return []
    found = [row["id"] for row in await rows(connection, "batch_events", batch=batch)]
    await value(connection, "finish_batch", batch=batch)
    return found


async def leaves_no_trace(connection: Connection, **options: Any) -> bool:
    """Poll in a transaction: whether nothing was there, and it has no transaction id."""
    async with connection.transaction():
        if await poll(connection, **options) is not None:
            return False
        return bool(await connection.fetchval("select pg_current_xact_id_if_assigned() is null"))


@pytest.fixture
async def stream(connection: Connection) -> None:
    for name in ("s", "other"):
        await value(connection, "create_stream", name=name)
    await value(connection, "subscribe", stream="s", subscriber="a")


@pytest.mark.parametrize("member", [None, "m"])
@pytest.mark.usefixtures("stream")
async def test_a_poll_without_events_writes_nothing(
    connection: Connection, member: str | None
) -> None:
    assert await leaves_no_trace(connection, member=member)
    ids = await publish(connection, 4, "s")
    # The second one ends exactly where there is no more.
    assert await read(connection, quantity=2, member=member) == ids[:2]
    assert await read(connection, quantity=2, member=member) == ids[2:]
    assert await leaves_no_trace(connection, member=member)
    await publish(connection, 1, "other")
    assert await leaves_no_trace(connection, member=member)
    await publish(connection, 1, "s")
    batch = await poll(connection, member=member)
    await rows(connection, "retry_batch", batch=batch, delay=timedelta(hours=1))
    await value(connection, "finish_batch", batch=batch)
    assert await leaves_no_trace(connection, member=member)


@pytest.mark.usefixtures("stream")
async def test_a_poll_without_events_waits_for_no_lock(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    await other.execute("set lock_timeout = '1ms'")
    async with connection.transaction():
        await connection.fetch("select from messages.subscription for update")
        assert await poll(other) is None


@pytest.mark.usefixtures("stream")
async def test_a_poll_finds_committed_events(connection: Connection, connect: Connect) -> None:
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    [first] = await publish(late, 1, "s")
    assert await poll(connection) is None
    [second] = await publish(connection, 1, "s")
    assert await read(connection) == [second]
    assert await poll(connection) is None
    await transaction.commit()
    assert await read(connection) == [first]
    # Events of a transaction that has polled itself, before and after.
    async with late.transaction():
        assert await poll(late) is None
        [third] = await publish(late, 1, "s")
        assert await poll(late) is None
        [fourth] = await publish(connection, 1, "s")
        assert await read(late) == [fourth]
        [fifth] = await publish(late, 1, "s")
        assert await poll(late) is None
    assert await read(connection) == [third, fifth]
    assert await leaves_no_trace(connection)
    # An empty batch that ends at a tick, and an event that is due again.
    await value(connection, "tick", stream="s")
    assert await read(connection) == []
    assert await leaves_no_trace(connection)
    await publish(connection, 1, "s")
    batch = await poll(connection)
    await rows(connection, "retry_batch", batch=batch)
    await value(connection, "finish_batch", batch=batch)
    assert len(await read(connection)) == 1


@pytest.mark.usefixtures("stream")
async def test_a_member_finds_its_batch_and_takes_over_that_of_another(
    connection: Connection,
) -> None:
    await publish(connection, 1, "s")
    batch = await poll(connection, member="m")
    assert batch is not None
    assert await poll(connection, member="m") == batch
    assert await leaves_no_trace(connection, member="n")
    assert await leaves_no_trace(connection, member="n", takeover=timedelta(hours=1))
    assert await poll(connection, member="n", takeover=timedelta(microseconds=1)) == batch
    assert await leaves_no_trace(connection, member="m")


@pytest.mark.usefixtures("stream")
async def test_a_transaction_with_an_older_snapshot_gets_an_error_to_retry(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    await publish(connection, 1, "s")
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("select count(*) from messages.event")
        assert await read(connection)
        with pytest.raises(asyncpg.SerializationError, match="'a' since this") as caught:
            await poll(other)
    assert "read committed" in str(caught.value.hint)
    assert await poll(other) is None


async def test_a_batch_is_read_by_the_statement_that_has_opened_it(connection: Connection) -> None:
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select messages.subscribe('s', 'one', 'now')")
    await connection.execute("select messages.publish('s', '7')")
    found = await connection.fetch("""
        select e.message from (select messages.next_batch('s', 'one') as id offset 0) as b
        cross join lateral messages.batch_events(b.id) as e
    """)
    assert [row["message"] for row in found] == [7]
