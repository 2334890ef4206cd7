"""Retry batches: each condition of select_retry_batch() where nothing else protects it.

peek_batch() answers most calls before select_retry_batch() runs. It does not while a window has
further events, while an event of the subscriber itself is due, and in a direct call.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from support.database import Connection, publish, rows, value

HOUR = timedelta(hours=1)
NOW = timedelta(0)


async def next_batch(connection: Connection, subscriber: str, quantity: int = 10) -> int | None:
    batch: int | None = await value(
        connection, "next_batch", stream="s", subscriber=subscriber, quantity=quantity
    )
    return batch


async def events(connection: Connection, batch: int | None) -> list[int]:
    assert batch is not None
    return [row["id"] for row in await rows(connection, "batch_events", batch=batch)]


async def postpone(
    connection: Connection, subscriber: str, delays: Sequence[timedelta], quantity: int = 10
) -> list[int]:
    """Take one batch, retry its first events after these delays, and finish it."""
    batch = await next_batch(connection, subscriber, quantity)
    found = await events(connection, batch)
    for event, delay in zip(found, delays, strict=False):
        assert await value(connection, "retry_event", batch=batch, event=event, delay=delay)
    assert await value(connection, "finish_batch", batch=batch)
    return found


async def retry_batch(connection: Connection, subscriber: str, quantity: int = 10) -> int | None:
    """Call the function alone, behind the last batch of the subscriber."""
    batch: int | None = await connection.fetchval(
        "select notifyq.select_retry_batch(notifyq.last_batch(u.id), $2, null) "
        "from messages.subscription as u where u.name = $1",
        subscriber,
        quantity,
    )
    return batch


async def waiting(connection: Connection, subscriber: str) -> list[int]:
    """Return the events of a subscriber that no batch holds."""
    found = await connection.fetch(
        "select r.event_id from notifyq.event_retry as r "
        "join messages.subscription as u on u.id = r.subscription "
        "where u.name = $1 and r.batch is null order by r.event_id",
        subscriber,
    )
    return [row["event_id"] for row in found]


@pytest.fixture
async def ids(connection: Connection) -> list[int]:
    """Give the three events of a stream that ann and bob subscribe to."""
    await value(connection, "create_stream", name="s")
    for subscriber in ("ann", "bob"):
        await value(connection, "subscribe", stream="s", subscriber=subscriber)
    return await publish(connection, 3, "s")


async def test_the_rest_of_a_window_comes_before_an_event_that_is_not_due(
    connection: Connection, ids: list[int]
) -> None:
    await postpone(connection, "ann", [HOUR], quantity=1)
    assert await events(connection, await next_batch(connection, "ann", 1)) == [ids[1]]


async def test_the_rest_of_a_window_comes_though_an_event_of_another_subscriber_is_due(
    connection: Connection, ids: list[int]
) -> None:
    await postpone(connection, "bob", [NOW])
    await postpone(connection, "ann", [], quantity=1)
    assert await events(connection, await next_batch(connection, "ann", 1)) == [ids[1]]
    assert await waiting(connection, "bob") == [ids[0]]


async def test_due_events_come_without_those_that_are_not_due(
    connection: Connection, ids: list[int]
) -> None:
    await postpone(connection, "ann", [HOUR, NOW, HOUR])
    assert await events(connection, await next_batch(connection, "ann")) == [ids[1]]
    assert await waiting(connection, "ann") == [ids[0], ids[2]]


async def test_due_events_come_without_those_of_another_subscriber(
    connection: Connection, ids: list[int]
) -> None:
    # The same event: due for bob, and not for ann.
    await postpone(connection, "bob", [NOW, NOW, NOW])
    await postpone(connection, "ann", [HOUR, NOW, HOUR])
    assert await events(connection, await next_batch(connection, "ann")) == [ids[1]]
    assert await waiting(connection, "ann") == [ids[0], ids[2]]
    assert await waiting(connection, "bob") == ids
    assert await events(connection, await next_batch(connection, "bob")) == ids


async def test_events_of_another_subscriber_do_not_count_against_the_quantity(
    connection: Connection, ids: list[int]
) -> None:
    await postpone(connection, "bob", [NOW, NOW, NOW])
    await postpone(connection, "ann", [NOW, NOW, NOW])
    assert await events(connection, await next_batch(connection, "ann", 2)) == ids[:2]
    assert await waiting(connection, "bob") == ids


async def test_an_event_is_in_one_batch_of_retries_at_a_time(
    connection: Connection, ids: list[int]
) -> None:
    await postpone(connection, "ann", [NOW, NOW, NOW])
    first = await retry_batch(connection, "ann", 2)
    second = await retry_batch(connection, "ann", 2)
    assert [await events(connection, batch) for batch in (first, second)] == [ids[:2], ids[2:]]
    assert await retry_batch(connection, "ann") is None


async def test_one_part_comes_without_another(connection: Connection, ids: list[int]) -> None:
    batch = await next_batch(connection, "ann")
    await value(connection, "recover_batch", stream="s", subscriber="ann")
    assert await value(connection, "finish_batch", batch=batch) is False
    parts = [await events(connection, await retry_batch(connection, "ann")) for _ in ids]
    assert parts == [[id_] for id_ in ids]


@pytest.mark.parametrize("delay", [None, HOUR], ids=["none", "later"])
async def test_no_batch_comes_if_nothing_is_due_for_the_subscriber(
    connection: Connection, ids: list[int], delay: timedelta | None
) -> None:
    await postpone(connection, "bob", [NOW])
    await postpone(connection, "ann", [delay] if delay else [])
    assert await retry_batch(connection, "ann") is None
    assert await waiting(connection, "bob") == [ids[0]]
