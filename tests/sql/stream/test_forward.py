"""Forwarding: events of a subscription go into a queue, each exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from notifyq.errors import (
    QueueDeniedError,
    QueueNotFoundError,
    StreamNotFoundError,
    SubscriptionNotFoundError,
)
from support.database import (
    Connect,
    Connection,
    Notices,
    Notifications,
    lock_of,
    publish,
    rows,
    value,
)


@pytest.fixture
async def forwarding(connection: Connection) -> Connection:
    """Give a session where stream `orders` is forwarded into queue `packing`."""
    await value(connection, "create_stream", name="orders")
    await value(connection, "create_queue", name="packing")
    assert await value(
        connection, "forward", stream="orders", subscriber="warehouse", queue="packing"
    )
    return connection


async def claimed(connection: Connection, queue: str = "packing") -> list[Any]:
    found = await rows(connection, "claim", queues=[queue], quantity=1000)
    return [row["message"] for row in found]


async def test_a_claim_finds_what_was_published_into_the_stream(forwarding: Connection) -> None:
    ids = [
        await value(
            forwarding, "publish", queue="orders", message={"n": n}, type="order", key=f"c{n}",
            headers={"trace": "t"},
        )
        for n in range(3)
    ]  # fmt: skip
    found = await rows(forwarding, "claim", queues=["packing"], quantity=10)
    assert [row["message"] for row in found] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert [(row["type"], row["key"]) for row in found] == [("order", f"c{n}") for n in range(3)]
    assert [row["headers"] for row in found] == [
        {"trace": "t", "stream": "orders", "event": id_} for id_ in ids
    ]
    assert await claimed(forwarding) == []
    assert await value(forwarding, "notifyq.forward_pending") == 0
    (info,) = await rows(forwarding, "subscription_info", stream="orders")
    assert (info["pending"], info["current_batch"]) == (0, None)


async def test_a_claim_of_all_queues_moves_too_and_one_of_others_does_not(
    forwarding: Connection,
) -> None:
    await publish(forwarding, 2, "orders")
    assert await claimed(forwarding, "default") == []
    assert await forwarding.fetchval("select count(*) from messages.message") == 0
    assert len(await rows(forwarding, "claim", quantity=10)) == 2


async def test_maintenance_moves_events_without_workers(forwarding: Connection) -> None:
    await publish(forwarding, 5, "orders")
    await rows(forwarding, "maintain")
    found = await forwarding.fetch("select message from messages.message order by id")
    assert [row["message"] for row in found] == list(range(5))


async def test_each_event_is_moved_once_and_a_rollback_moves_none(forwarding: Connection) -> None:
    await publish(forwarding, 3, "orders")
    await forwarding.execute("begin")
    assert await value(forwarding, "notifyq.forward_pending") == 3
    await forwarding.execute("rollback")
    assert await forwarding.fetchval("select count(*) from messages.message") == 0
    assert await value(forwarding, "notifyq.forward_pending", quantity=2) == 2
    assert await claimed(forwarding) == [0, 1, 2]


async def test_workers_are_notified_of_new_events(
    forwarding: Connection, notifications: Notifications
) -> None:
    await publish(forwarding, 1, "orders")
    assert {notification.queue for notification in await notifications.received()} == {"packing"}
    assert await claimed(forwarding) == [0]


async def test_a_filter_leaves_events_out(connection: Connection) -> None:
    await value(connection, "create_stream", name="orders")
    await value(connection, "create_queue", name="packing")
    await rows(
        connection, "publish_many", queue="orders", messages=[{"n": n} for n in range(10)]
    )  # fmt: skip
    await connection.execute(
        "select messages.forward('orders', 'few', 'packing', 'start', '$.n >= 8')"
    )
    assert await value(connection, "notifyq.forward_pending") == 10
    assert await claimed(connection) == [{"n": 8}, {"n": 9}]
    (forward,) = await rows(connection, "forwards", stream="orders")
    assert (forward["subscriber"], forward["queue"]) == ("few", "packing")
    # Again: another queue and filter, from where it is.
    assert not await value(
        connection, "forward", stream="orders", subscriber="few", queue="default"
    )
    await value(connection, "publish", queue="orders", message={"n": 1})
    assert await claimed(connection, "default") == [{"n": 1}]


async def test_an_event_that_the_queue_rejects_is_a_dead_event(
    forwarding: Connection, notices: Notices
) -> None:
    await value(forwarding, "alter_queue", name="packing", max_bytes=4096)
    await rows(
        forwarding, "publish_many", queue="orders", messages=["a", "b" * 5000, "c"], type="t"
    )  # fmt: skip
    assert await value(forwarding, "notifyq.forward_pending") == 3
    assert await claimed(forwarding) == ["a", "c"]
    (dead,) = await rows(forwarding, "dead_list", queue="orders", subscriber="warehouse")
    assert (dead["status"], dead["message"], dead["type"]) == ("rejected", "b" * 5000, "t")
    assert dead["details"].startswith("queue packing rejects it: ")
    assert len(await notices.received("WARNING")) == 1
    await value(forwarding, "alter_queue", name="packing", max_bytes=2**20)
    assert (
        await forwarding.fetchval("select messages.dead_retry($1)", dead["id"])
        == (dead["event_id"])
    )
    assert await claimed(forwarding) == ["b" * 5000]


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        ({"payload_schema": {"type": "integer"}}, 7, "text"),
        ({"payload_type": "integer"}, "7", "text"),
        ({"payload_type": "integer"}, "7", {"n": 1}),
    ],
)
async def test_an_event_that_breaks_the_policy_of_the_queue_is_a_dead_event(
    forwarding: Connection, options: dict[str, Any], good: Any, bad: Any
) -> None:
    await value(forwarding, "alter_queue", name="packing", **options)
    await rows(forwarding, "publish_many", queue="orders", messages=[good, bad, good])
    assert await value(forwarding, "notifyq.forward_pending") == 3
    assert await claimed(forwarding) == [good, good]
    (dead,) = await rows(forwarding, "dead_list", queue="orders", subscriber="warehouse")
    assert (dead["status"], dead["message"]) == ("rejected", bad)
    assert dead["details"].startswith("queue packing rejects it: 'packing' ")
    (forward,) = await rows(forwarding, "forwards")
    assert forward["failed_at"] is None


async def test_events_wait_while_the_queue_is_full(forwarding: Connection) -> None:
    await value(forwarding, "alter_queue", name="packing", capacity=4)
    await publish(forwarding, 3, "orders")
    assert await value(forwarding, "notifyq.forward_pending") == 3
    await publish(forwarding, 3, "orders")
    assert await value(forwarding, "notifyq.forward_pending") == 0
    first = await rows(forwarding, "claim", queues=["packing"], quantity=10)
    for row in first:
        await value(forwarding, "finish", **lock_of(row))
    assert await claimed(forwarding) == [0, 1, 2]
    (forward,) = await rows(forwarding, "forwards")
    assert forward["failed_at"] is None


async def test_a_forward_that_fails_warns_and_stops_no_other(
    forwarding: Connection, notices: Notices
) -> None:
    await value(forwarding, "create_queue", name="other")
    await value(forwarding, "forward", stream="orders", subscriber="second", queue="other")
    await value(forwarding, "drop_queue", name="packing")
    await publish(forwarding, 1, "orders")
    assert await value(forwarding, "notifyq.forward_pending") == 1
    assert await claimed(forwarding, "other") == [0]
    (warning,) = await notices.received("WARNING")
    assert "there is no queue 'packing'" in warning
    failed = [row["last_error"] for row in await rows(forwarding, "forwards")]
    assert failed == [None, "there is no queue 'packing'"]
    await value(forwarding, "create_queue", name="packing")
    assert await claimed(forwarding) == []
    await forwarding.execute("update notifyq.forward set failed_at = now() - interval '1 hour'")
    assert await claimed(forwarding) == [0]
    assert (await rows(forwarding, "forwards"))[1]["failed_at"] is None


async def test_forwarding_needs_rights_and_moving_does_not(
    forwarding: Connection, connect: Connect
) -> None:
    role = f"notifyq_test_worker_{forwarding.get_server_pid()}"
    admin = f"notifyq_test_admin_{forwarding.get_server_pid()}"
    await forwarding.execute(f"create role {role}; grant notifyq_worker to {role}")
    await forwarding.execute(f"create role {admin}")
    try:
        await value(forwarding, "grant_queue", queue="orders", role=admin)
        await value(forwarding, "grant_queue", queue="packing", role=admin)
        await publish(forwarding, 1, "orders")
        worker = await connect()
        await worker.execute(f"set role {role}")
        assert await value(worker, "notifyq.forward_pending") == 1
        await forwarding.execute(
            "grant execute on function messages.forward(text, text, text, text, jsonpath), "
            f"messages.unforward(text, text, boolean) to {role}"
        )
        for queue in ("packing", "default"):
            with pytest.raises(QueueDeniedError):
                await value(worker, "forward", stream="orders", subscriber="x", queue=queue)
        with pytest.raises(QueueDeniedError):
            await value(worker, "unforward", stream="orders", subscriber="warehouse")
        assert await claimed(forwarding) == [0]
    finally:
        for name in (role, admin):
            await forwarding.execute(f"drop owned by {name}; drop role {name}")


async def test_unforward_ends_the_subscription_or_keeps_it(forwarding: Connection) -> None:
    await publish(forwarding, 1, "orders")
    where = {"stream": "orders", "subscriber": "warehouse"}
    assert await value(forwarding, "unforward", **where, keep=True)
    assert not await value(forwarding, "unforward", **where)
    assert await claimed(forwarding) == []
    batch = await value(forwarding, "next_batch", **where)
    assert len(await rows(forwarding, "batch_events", batch=batch)) == 1
    assert await value(forwarding, "forward", **where, queue="packing")
    # The batch that is open goes first.
    assert await claimed(forwarding) == [0]
    assert await value(forwarding, "unforward", **where)
    with pytest.raises(SubscriptionNotFoundError):
        await value(forwarding, "unforward", **where)


async def test_it_ends_with_the_subscription(forwarding: Connection) -> None:
    await value(forwarding, "unsubscribe", stream="orders", subscriber="warehouse")
    assert await rows(forwarding, "forwards") == []
    with pytest.raises(StreamNotFoundError):
        await value(forwarding, "forward", stream="nope", subscriber="x", queue="packing")
    with pytest.raises(QueueNotFoundError):
        await value(forwarding, "forward", stream="orders", subscriber="x", queue="nope")
