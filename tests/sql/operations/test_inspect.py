"""Inspection: the reports show the right rows and numbers."""

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError
from support.database import Connection, expire, make_due, publish, rows, value


async def test_queue_info_counts_messages_by_state(connection: Connection) -> None:
    await value(
        connection, "create_queue", name="busy", max_attempts=3, retention=timedelta(days=9)
    )
    ids = await publish(connection, 6, "busy")
    for delay in (1, 2):
        await value(connection, "publish", queue="busy", message=1, delay=timedelta(hours=delay))
    await value(connection, "publish", queue="busy", message=1, after=[ids[5]])
    await rows(connection, "claim", queues=["busy"], quantity=3)
    await expire(connection, ids[0])
    oldest = await connection.fetchval(
        "select available_at from messages.message where id = $1", ids[3]
    )

    busy, default = await rows(connection, "queue_info")
    assert busy == (await rows(connection, "queue_info", queue="busy"))[0]
    assert dict(busy) == {
        "queue": "busy",
        "paused": False,
        "waiting": 3,
        "scheduled": 3,
        "locked": 3,
        "expired": 1,
        "oldest_waiting_at": oldest,
        "lock_duration": timedelta(minutes=1),
        "max_attempts": 3,
        "backoff": timedelta(seconds=2),
        "backoff_max": timedelta(minutes=5),
        "notify": "auto",
        "retention": timedelta(days=9),
        "max_bytes": 2**20,
        "concurrency": None,
        "key_concurrency": None,
        "rate": None,
        "rate_period": timedelta(seconds=1),
        "rate_burst": None,
        "key_rate": None,
        "key_rate_period": timedelta(seconds=1),
        "key_rate_burst": None,
        "ordered": False,
        "fair": False,
        "capacity": None,
        "overflow": "reject",
        "blocked": 1,
        "durable": True,
        "payload_type": None,
        "payload_schema": None,
        "finished": None,
        "resumes_at": None,
        "parked": 0,
        "dropped": None,
        "retention_dead": None,
        "aging": None,
        "encrypted": False,
    }
    assert default["queue"] == "default"
    assert (default["waiting"], default["oldest_waiting_at"]) == (0, None)
    assert default["blocked"] == 0
    assert await rows(connection, "queue_info", queue="nope") == []


async def test_live_messages_are_listed_by_queue_state_and_page(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    ids = await publish(connection, 3)
    others = await publish(connection, 1, "other")
    await rows(connection, "claim", queues=["default"])

    async def listed(**arguments: Any) -> list[int]:
        return [row["id"] for row in await rows(connection, "message_list", **arguments)]

    assert await listed() == [*ids, *others]
    assert await listed(queue="default", state="waiting") == ids[1:]
    assert await listed(state="locked") == ids[:1]
    assert await listed(quantity=2) == ids[:2]
    with pytest.raises(InvalidArgumentError):
        await listed(quantity=0)
    (found,) = await rows(connection, "message_find", id=ids[1])
    assert found["id"] == ids[1]
    assert await rows(connection, "message_find", id=10**9) == []


async def test_the_archive_is_listed_by_queue_status_and_time_latest_first(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="other")
    ids = await publish(connection, 3)
    others = await publish(connection, 1, "other")
    await rows(connection, "claim", quantity=9)
    for id_, status in zip(
        [*ids, *others], ("success", "failed", "success", "failed"), strict=True
    ):
        await value(connection, "finish", id=id_, lock_token=1, status=status)

    async def listed(**arguments: Any) -> list[int]:
        return [row["id"] for row in await rows(connection, "archive_list", **arguments)]

    middle = (await rows(connection, "archive_find", id=ids[1]))[0]["archived_at"]
    assert await listed() == [*others, *reversed(ids)]
    assert await listed(queue="default", status="success") == [ids[2], ids[0]]
    assert await listed(since=middle) == [*others, ids[2], ids[1]]
    assert await listed(quantity=1) == others
    assert await rows(connection, "archive_find", id=10**9) == []


async def test_the_summary_counts_by_status_and_as_a_whole(connection: Connection) -> None:
    await publish(connection, 10)
    ids = [row["id"] for row in await rows(connection, "claim", quantity=10)]
    await rows(
        connection,
        "finish_many",
        ids=ids,
        lock_tokens=[1] * 10,
        statuses=["success"] * 7 + ["failed"] * 2 + ["rejected"],
    )
    found = await rows(connection, "archive_summary")
    assert [(row["queue"], row["status"], row["messages"]) for row in found] == [
        ("default", "success", 7),
        ("default", "rejected", 1),
        ("default", "failed", 2),
        ("default", None, 10),
    ]
    assert await rows(connection, "archive_summary", queue="nope") == []
    later = found[-1]["last_archived_at"] + timedelta(seconds=1)
    assert await rows(connection, "archive_summary", since=later) == []


async def test_the_summary_has_percentiles_of_waiting_and_running(connection: Connection) -> None:
    await connection.execute("""
        insert into messages.message_archive (
          id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts,
          status, queue, message, headers
        )
        select n, t, t, t + n * interval '1 second', t + n * interval '3 seconds', 1, 0, 1,
          'success', 'default', '1', '{}'
        from generate_series(1, 101) as g (n), date_trunc('day', now()) as t
    """)
    (row, whole) = await rows(connection, "archive_summary")
    assert row["wait_p50"] == timedelta(seconds=51)
    assert row["wait_p95"] == timedelta(seconds=96)
    assert row["wait_p99"] == timedelta(seconds=100)
    assert row["run_p50"] == timedelta(seconds=102)
    assert row["run_p99"] == timedelta(seconds=200)
    assert {**row, "status": None} == dict(whole)
    assert row["first_created_at"] + timedelta(seconds=303) == row["last_archived_at"]


async def test_scheduled_messages_that_are_due_are_still_counted(connection: Connection) -> None:
    id_ = await value(connection, "publish", queue="default", message=1, delay=timedelta(hours=1))
    await make_due(connection, id_)
    (info,) = await rows(connection, "queue_info")
    assert (info["waiting"], info["scheduled"]) == (0, 1)
