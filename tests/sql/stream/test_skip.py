"""Lag: what becomes of a subscriber that is further behind than its stream allows; dead events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import SubscriptionNotFoundError
from support.database import Connect, Connection, Notices, Notifications, publish, rows, value


async def stream(connection: Connection, *subscribers: str, **policy: Any) -> None:
    await value(connection, "create_stream", name="s", **policy)
    for name in subscribers:
        await value(connection, "subscribe", stream="s", subscriber=name)


async def open_batch(
    connection: Connection, subscriber: str, **options: Any
) -> tuple[int, list[int]]:
    batch = await value(connection, "next_batch", stream="s", subscriber=subscriber, **options)
    if batch is None:
        return 0, []
    return batch, [row["id"] for row in await rows(connection, "batch_events", batch=batch)]


async def read(connection: Connection, subscriber: str) -> list[int]:
    """Read and finish all that there is."""
    found: list[int] = []
    while True:
        batch, ids = await open_batch(connection, subscriber)
        if not batch:
            return found
        found += ids
        await value(connection, "finish_batch", batch=batch)


async def retry(connection: Connection, id_: int) -> list[int]:
    return [row[0] for row in await connection.fetch("select messages.dead_retry($1)", id_)]


async def age(connection: Connection, ids: list[int]) -> None:
    await connection.execute(
        "update messages.event set created_at = created_at - interval '1 day' where id = any ($1)",
        ids,
    )


async def test_a_subscriber_with_too_many_events_is_skipped_with_a_warning(
    connection: Connection, notifications: Notifications, notices: Notices
) -> None:
    await stream(connection, "slow", "fast", max_events=100)
    ids = await publish(connection, 100, "s")
    await rows(connection, "maintain")
    assert await read(connection, "fast") == ids
    assert await rows(connection, "dead_list") == []
    more = await publish(connection, 30, "s")
    await rows(connection, "maintain")
    (dead,) = await rows(connection, "dead_list", queue="s", subscriber="slow")
    assert dead["message"] == {"first": ids[0], "last": ids[29], "count": 30}
    assert (dead["status"], dead["event_id"], dead["attempts"]) == ("rejected", None, 0)
    details = (
        f"skipped 30 events, ids {ids[0]} to {ids[29]}, of subscriber slow: "
        "more than 100 events behind"
    )
    assert dead["details"] == details
    assert await notices.received("WARNING") == [
        f"notifyq: dead event {dead['id']} of subscriber slow in stream s: rejected: {details}"
    ]
    assert await notifications.payloads("dead_message") == [f"s:{dead['id']}"]
    assert await read(connection, "slow") == ids[30:] + more
    assert await read(connection, "fast") == more
    # There is nothing to hand out again.
    assert await retry(connection, dead["id"]) == []
    assert await value(connection, "redrive", queue="s") == 0
    assert await connection.fetchval("select messages.dead_delete($1)", dead["id"]) == 1


async def test_events_older_than_the_lag_are_skipped(connection: Connection) -> None:
    await stream(connection, "slow", "fast", max_lag=timedelta(hours=1))
    old = await publish(connection, 30, "s")
    young = await publish(connection, 20, "s")
    await read(connection, "fast")
    await age(connection, old)
    await rows(connection, "maintain")
    (dead,) = await rows(connection, "dead_list")
    assert dead["message"] == {"first": old[0], "last": old[-1], "count": 30}
    assert dead["details"].endswith("of subscriber slow: more than 01:00:00 behind")
    assert await read(connection, "slow") == young
    await rows(connection, "maintain")
    assert await value(connection, "dead_count") == 1


async def test_a_batch_that_is_held_too_long_is_revoked(
    connection: Connection, notices: Notices
) -> None:
    await stream(connection, "stuck", max_lag=timedelta(hours=1))
    ids = await publish(connection, 10, "s")
    batch, held = await open_batch(connection, "stuck", quantity=4)
    assert held == ids[:4]
    await value(connection, "retry_event", batch=batch, event=ids[0])
    await age(connection, ids)
    await publish(connection, 1, "s")
    await rows(connection, "maintain")
    (dead,) = await rows(connection, "dead_list")
    assert dead["message"]["count"] == 10
    await notices.received()
    assert not await value(connection, "finish_batch", batch=batch)
    assert len(await notices.received("WARNING")) == 1
    again, youngest = await read(connection, "stuck")
    assert again == ids[0]
    assert youngest > ids[-1]


async def test_a_batch_that_its_reader_finishes_meanwhile_is_not_skipped(
    connection: Connection, connect: Connect
) -> None:
    await stream(connection, "slow", max_events=5)
    ids = await publish(connection, 10, "s")
    batch, _ = await open_batch(connection, "slow", quantity=5)
    reader = await connect()
    await connection.execute("set lock_timeout = '2 s'")
    async with reader.transaction():
        await value(reader, "finish_batch", batch=batch)
        await rows(connection, "maintain")
    await rows(connection, "maintain")
    assert await value(connection, "dead_count") == 0
    assert await read(connection, "slow") == ids[5:]


async def test_batches_that_members_finished_do_not_come_again(connection: Connection) -> None:
    await stream(connection, "team", max_events=15)
    ids = await publish(connection, 30, "s")
    _, one = await open_batch(connection, "team", quantity=10, member="a")
    other, two = await open_batch(connection, "team", quantity=10, member="b")
    assert (one, two) == (ids[:10], ids[10:20])
    await value(connection, "finish_batch", batch=other)
    await rows(connection, "maintain")
    (dead,) = await rows(connection, "dead_list")
    assert dead["message"] == {"first": ids[0], "last": ids[9], "count": 10}
    assert await read(connection, "team") == ids[20:]


async def test_a_subscriber_that_reads_now_is_not_skipped(
    connection: Connection, connect: Connect
) -> None:
    await stream(connection, "busy", max_events=5)
    ids = await publish(connection, 10, "s")
    reader = await connect()
    async with reader.transaction():
        batch, held = await open_batch(reader, "busy")
        assert held == ids
        await rows(connection, "maintain")
        assert await value(connection, "dead_count") == 0
        await value(reader, "finish_batch", batch=batch)
    await rows(connection, "maintain")
    assert await value(connection, "dead_count") == 0


async def test_skipping_is_bounded_and_continues(connection: Connection) -> None:
    await stream(connection, "slow", max_events=10)
    ids = await publish(connection, 50, "s")
    assert await value(connection, "notifyq.skip_behind", quantity=15) == 15
    assert await value(connection, "notifyq.skip_behind", quantity=15) == 15
    assert await value(connection, "notifyq.skip_behind", quantity=15) == 10
    assert await value(connection, "notifyq.skip_behind", quantity=15) == 0
    assert await read(connection, "slow") == ids[40:]
    assert await value(connection, "dead_count", subscriber="slow") == 3


async def test_a_dead_event_is_notified_and_redriven_for_its_subscriber_alone(
    connection: Connection, notifications: Notifications
) -> None:
    await stream(connection, "one", "two")
    ids = await publish(connection, 3, "s")
    for attempts in (1, 2):
        batch, found = await open_batch(connection, "one")
        assert found == (ids if attempts == 1 else ids[1:2])
        assert await value(connection, "fail_event", batch=batch, event=ids[1], reason="no luck")
        await value(connection, "finish_batch", batch=batch)
        (dead,) = await rows(connection, "dead_list")
        assert (dead["queue"], dead["event_id"], dead["attempts"]) == ("s", ids[1], attempts)
        assert (dead["status"], dead["details"], dead["message"]) == ("failed", "no luck", 1)
        received = await notifications.received("dead_message")
        assert [notification.payload for notification in received] == [f"s:{dead['id']}"]
        assert await value(connection, "redrive", subscriber="two") == 0
        assert await value(connection, "redrive", subscriber="one") == 1
    assert await read(connection, "one") == [ids[1]]
    assert await read(connection, "two") == ids


async def test_an_event_that_failed_in_the_open_batch_can_be_retried_at_once(
    connection: Connection,
) -> None:
    await stream(connection, "one")
    ids = await publish(connection, 2, "s")
    batch, _ = await open_batch(connection, "one")
    await value(connection, "fail_event", batch=batch, event=ids[0])
    assert await value(connection, "redrive") == 1
    await value(connection, "finish_batch", batch=batch)
    assert await read(connection, "one") == [ids[0]]


async def test_dead_events_of_former_subscribers_are_left_out(connection: Connection) -> None:
    await stream(connection, "gone")
    ids = await publish(connection, 1, "s")
    batch, _ = await open_batch(connection, "gone")
    await value(connection, "fail_event", batch=batch, event=ids[0])
    await value(connection, "unsubscribe", stream="s", subscriber="gone")
    assert await value(connection, "redrive", queue="s") == 0
    (dead,) = await rows(connection, "dead_list")
    with pytest.raises(SubscriptionNotFoundError):
        await retry(connection, dead["id"])


async def test_a_transaction_that_began_long_ago_counts_as_unread_beside_an_open_batch(
    connection: Connection, connect: Connect
) -> None:
    """Its ids are smaller than all that the open batch may have."""
    old = await connect()
    await stream(connection, "a")
    async with old.transaction():
        [first] = await publish(old, 1, "s")
        for _ in range(3):
            assert len(await publish(connection, 2, "s")) == len(await read(connection, "a"))
        last = await publish(connection, 2, "s")
        batch, ids = await open_batch(connection, "a")
        assert ids == last
        [report] = await rows(connection, "subscription_info", stream="s")
        assert report["pending"] == 2
    [report] = await rows(connection, "subscription_info", stream="s")
    assert report["pending"] == 3
    await value(connection, "finish_batch", batch=batch)
    [report] = await rows(connection, "subscription_info", stream="s")
    assert report["pending"] == 1
    assert await read(connection, "a") == [first]


async def test_the_lag_counts_events_behind_a_batch_of_retries(connection: Connection) -> None:
    await stream(connection, "a")
    [event] = await publish(connection, 1, "s")
    batch, _ = await open_batch(connection, "a")
    await value(connection, "retry_event", batch=batch, event=event)
    await value(connection, "finish_batch", batch=batch)
    again, ids = await open_batch(connection, "a")
    assert ids == [event]
    await publish(connection, 1, "s")
    for step in ("beside", "behind"):
        [report] = await rows(connection, "subscription_info", stream="s")
        assert report["pending"] == 1, step
        assert report["lag"] > timedelta(0), step
        if step == "beside":
            await value(connection, "finish_batch", batch=again)
