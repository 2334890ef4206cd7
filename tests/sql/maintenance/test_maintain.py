"""Maintenance: it reaps expired locks, stages due messages and notifies again."""

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError
from support.database import (
    Connect,
    Connection,
    Notices,
    Notifications,
    alive,
    archived,
    expire,
    live,
    make_due,
    publish,
    rows,
    value,
)


async def claim_all(connection: Connection, worker: str | None = "w1") -> list[int]:
    return [row["id"] for row in await rows(connection, "claim", quantity=10_000, worker=worker)]


async def test_reap_archives_an_expired_lock_of_the_last_attempt(
    connection: Connection, notifications: Notifications, notices: Notices
) -> None:
    ids = await publish(connection, 3)
    await claim_all(connection)
    await expire(connection, ids[0], ids[2])
    assert await value(connection, "reap") == 2

    for id_ in (ids[0], ids[2]):
        assert await live(connection, id_) is None
        (row,) = await archived(connection, id_)
        assert (row["status"], row["handled_by"]) == ("lock_expired", "w1")
        assert (row["attempts"], row["lock_token"]) == (1, 1)
        assert row["details"] == "lock of w1 expired"
    held = await alive(connection, ids[1])
    assert (held["state"], held["lock_token"]) == ("locked", 1)
    assert await notifications.ids("dead_message") == [[ids[0], ids[2]]]
    assert len(await notices.received("WARNING")) == 2
    assert await value(connection, "reap") == 0


async def test_reap_puts_back_what_has_attempts_left(connection: Connection) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=2)
    (id_,) = await publish(connection, 1)
    (claimed,) = await rows(connection, "claim", worker="w1")
    await expire(connection, id_)
    before = await connection.fetchval("select clock_timestamp()")
    assert await value(connection, "reap") == 1

    waiting = await alive(connection, id_)
    assert (waiting["state"], waiting["attempts"]) == ("scheduled", 1)
    assert (waiting["locked_by"], waiting["lock_expires_at"]) == (None, None)
    assert waiting["lock_token"] > claimed["lock_token"]
    assert waiting["details"] == "lock of w1 expired"
    assert timedelta(seconds=1) <= waiting["available_at"] - before < timedelta(seconds=9)
    assert await archived(connection, id_) == []

    await make_due(connection, id_)
    assert await claim_all(connection) == [id_]
    await expire(connection, id_)
    assert await value(connection, "reap") == 1
    assert [row["status"] for row in await archived(connection, id_)] == ["lock_expired"]


async def test_reap_sorts_messages_by_the_policy_of_their_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="patient", max_attempts=5)
    once = await publish(connection, 2)
    often = await publish(connection, 2, "patient")
    await claim_all(connection)
    await expire(connection, *once, *often)
    assert await value(connection, "reap") == 4
    assert [row["id"] for row in await rows(connection, "message_list")] == often
    assert {row["id"] for row in await rows(connection, "dead_list")} == set(once)


async def test_reap_without_a_backoff_notifies_for_returned_messages(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=2, backoff=timedelta(0))
    (id_,) = await publish(connection, 1)
    await claim_all(connection)
    await expire(connection, id_)
    await notifications.received()
    await value(connection, "reap")
    assert await notifications.ids() == [[id_]]
    assert await claim_all(connection) == [id_]


async def test_reap_names_a_worker_without_a_name(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    await claim_all(connection, worker=None)
    await expire(connection, id_)
    await value(connection, "reap")
    (row,) = await archived(connection, id_)
    assert row["details"] == "lock of an unnamed worker expired"


async def test_reap_ends_at_most_the_given_quantity(connection: Connection) -> None:
    ids = await publish(connection, 25)
    await claim_all(connection)
    await expire(connection, *ids)
    reaped = [await value(connection, "reap", quantity=10) for _ in range(4)]
    assert reaped == [10, 10, 5, 0]
    assert await value(connection, "dead_count") == 25
    assert await connection.fetchval("select count(*) from messages.message_archive") == 25


@pytest.mark.parametrize(("function", "most"), [("reap", 100_000), ("stage_due", 1_000_000)])
async def test_the_quantity_of_maintenance_is_bounded(
    connection: Connection, function: str, most: int
) -> None:
    for quantity in (0, -1, most + 1, None):
        with pytest.raises(InvalidArgumentError, match=f"between 1 and {most}"):
            await value(connection, function, quantity=quantity)


async def test_stage_due_makes_due_messages_available_and_notifies(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="other")
    ids = {
        queue: [
            await value(connection, "publish", queue=queue, message=n, delay=timedelta(hours=1))
            for n in range(3)
        ]
        for queue in ("default", "other")
    }
    await make_due(connection, *ids["default"][:2], ids["other"][2])

    assert await value(connection, "stage_due") == 3
    waiting = await rows(connection, "message_list", state="waiting")
    assert [row["id"] for row in waiting] == [*ids["default"][:2], ids["other"][2]]
    assert [
        (notification.queue, notification.ids) for notification in await notifications.received()
    ] == [("default", ids["default"][:2]), ("other", [ids["other"][2]])]
    assert await value(connection, "stage_due") == 0
    assert await notifications.received() == []


async def test_stage_due_stages_the_longest_due_first_and_at_most_the_quantity(
    connection: Connection,
) -> None:
    ids = [
        await value(connection, "publish", queue="default", message=n, delay=timedelta(hours=1))
        for n in range(4)
    ]
    await connection.execute(
        "update messages.message set available_at = now() - make_interval(secs => id::int)"
    )
    assert await value(connection, "stage_due", quantity=3) == 3
    scheduled = await rows(connection, "message_list", state="scheduled")
    assert [row["id"] for row in scheduled] == [ids[0]]


async def test_renotify_notifies_once_for_each_queue_with_a_message_waiting(
    connection: Connection, notifications: Notifications
) -> None:
    for queue in ("busy", "empty", "later", "paused", "quiet"):
        await value(connection, "create_queue", name=queue)
    await value(connection, "alter_queue", name="quiet", notify="off")
    await value(connection, "pause_queue", name="paused")
    ids = await publish(connection, 5)
    busy = await publish(connection, 2, "busy")
    await rows(connection, "claim", queues=["busy"])
    await value(connection, "publish", queue="later", message=1, delay=timedelta(hours=1))
    for queue in ("paused", "quiet"):
        await publish(connection, 1, queue)
    await notifications.received()

    for _ in range(2):
        assert await value(connection, "notifyq.renotify") == 2
        assert await notifications.payloads() == [f"busy:{busy[1]}", f"default:{ids[0]}"]


async def test_maintain_does_everything_and_reports_it(
    connection: Connection, notifications: Notifications
) -> None:
    expired, waiting = await publish(connection, 2)
    later = await value(connection, "publish", queue="default", message=1, delay=timedelta(hours=1))
    await rows(connection, "claim_id", id=expired)
    await expire(connection, expired)
    await make_due(connection, later)
    await notifications.received()

    (report,) = await rows(connection, "maintain")
    assert dict(report) == {
        "reaped": 1,
        "staged": 1,
        "notified": 1,
        "partitions_made": 0,
        "partitions_dropped": 0,
    }
    assert [row["id"] for row in await rows(connection, "dead_list")] == [expired]
    assert {id_ for notification in await notifications.received() for id_ in notification.ids} == {
        waiting,
        later,
    }


async def test_one_session_at_a_time_runs_maintain(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    await other.execute("set lock_timeout = '50ms'")

    async def is_null(session: Connection) -> Any:
        return await session.fetchval("select messages.maintain() is null")

    async with connection.transaction():
        assert await is_null(connection) is False
        assert await is_null(other) is True
    assert await is_null(other) is False


async def test_messages_without_a_queue_are_rejected_with_the_reason(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="q")
    other = await connect()
    assert await value(other, "notifyq.suppress", queue="q")
    await value(connection, "drop_queue", name="q")
    # The suppressing session has not noticed, so publishers skip NOTIFY and do not read the queue.
    orphans = [
        await value(connection, "publish", queue="q", message=1),
        await value(connection, "publish", queue="q", message=2, delay=timedelta(hours=1)),
    ]
    kept = await value(connection, "publish", queue="default", message=3)
    assert (await rows(connection, "maintain"))[0]["reaped"] == 2
    archived = await rows(connection, "archive_list", queue="q")
    assert sorted((row["id"], row["status"], row["details"]) for row in archived) == [
        (orphan, "rejected", "there is no queue 'q' any more") for orphan in orphans
    ]
    assert [row["id"] for row in await rows(connection, "message_list")] == [kept]
    assert (await rows(connection, "maintain"))[0]["reaped"] == 0
