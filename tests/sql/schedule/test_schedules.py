"""Schedules: defined and redefined, fired once for each of their times, made up for, left out."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from notifyq.errors import InvalidArgumentError, QueueNotFoundError, ScheduleNotFoundError
from support.database import (
    Connect,
    Connection,
    Notices,
    Notifications,
    fire,
    lock_of,
    rows,
    value,
)

HOURLY: dict[str, Any] = {"name": "s", "cron": "@hourly", "queue": "default"}


async def define(connection: Connection, **changes: Any) -> bool:
    defined: bool = await value(connection, "schedule", **(HOURLY | changes))
    return defined


async def info(connection: Connection, name: str = "s") -> Any:
    (found,) = await rows(connection, "schedule_info", name=name)
    return found


async def move(connection: Connection, when: str, name: str = "s") -> datetime:
    """Let the next run be at this time; the clock is the server's and cannot be moved."""
    moved: datetime = await connection.fetchval(
        f"update messages.schedule set next_at = {when} where name = $1 returning next_at", name
    )
    return moved


async def due(connection: Connection) -> list[datetime]:
    """The times that the live messages were meant for, in the order of their ids."""
    found = await connection.fetch("select headers ->> 'due' from messages.message order by id")
    return [datetime.fromisoformat(row[0]) for row in found]


HOURS_AGO = "date_trunc('hour', clock_timestamp()) - interval '{} hours'"


async def test_defining_twice_changes_nothing(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    full = {
        "cron": " 0 8 * * mon-fri ", "queue": "q", "message": {"n": 1}, "timezone": "europe/oslo",
        "type": "t", "headers": {"h": 1}, "priority": 5, "key": "k", "max_attempts": 3,
        "jitter": timedelta(minutes=1), "overlap": "skip", "backfill": 0,
        "grace": timedelta(minutes=2), "when_unserved": "skip",
    }  # fmt: skip
    assert await define(connection, **full)
    first = dict(await info(connection))
    expected = full | {"cron": "0 8 * * mon-fri", "timezone": "Europe/Oslo"}
    assert {name: first[name] for name in expected} == expected
    at = first["next_at"].astimezone(ZoneInfo("Europe/Oslo"))
    assert (at.hour, at.minute, at.weekday() < 5) == (8, 0, True)
    assert at > datetime.now(UTC)
    assert not await define(connection, **full)
    assert dict(await info(connection)) == first

    for changes in ({"priority": 6}, {"cron": "0 9 * * *"}, {"key": None}):
        full.update(changes)
        assert await define(connection, **full), changes
        assert not await define(connection, **full), changes


async def test_a_new_definition_keeps_what_is_due_and_whether_it_is_enabled(
    connection: Connection,
) -> None:
    await define(connection)
    moved = await move(connection, HOURS_AGO.format(1))
    assert await define(connection, message={"n": 2})
    assert (await info(connection))["next_at"] == moved
    assert await value(connection, "pause_schedule", name="s")
    assert not await value(connection, "pause_schedule", name="s")
    assert await define(connection, cron="@daily")
    assert not (await info(connection))["enabled"]
    assert (await info(connection))["next_at"] > moved


async def test_an_invalid_schedule_is_refused(connection: Connection) -> None:
    for changes, complaint in (
        ({"name": None}, "must not be null"),
        ({"name": " s"}, "cannot be the name"),
        ({"cron": "61 * * * *"}, "'61' cannot be the minute"),
        ({"cron": "0 0 31 2 *"}, "never runs"),
        ({"timezone": "Europe/Olso"}, "no time zone"),
        ({"timezone": "UTC+3"}, "no time zone"),
        ({"headers": [1]}, "headers must be"),
        ({"max_attempts": 0}, "max_attempts must"),
        ({"jitter": timedelta(days=2)}, "jitter must"),
        ({"overlap": "never"}, "overlap must be allow, skip_waiting or skip"),
        ({"when_unserved": "stop"}, "when_unserved must be publish or skip"),
        ({"backfill": 101}, "backfill must"),
        ({"grace": timedelta(seconds=-1)}, "grace must"),
        ({"message": "x" * 1_048_576}, "too long for queue 'default'"),
        ({"type": "x" * 201}, "type and key"),
    ):
        with pytest.raises(InvalidArgumentError, match=complaint):
            await define(connection, **changes)
    with pytest.raises(QueueNotFoundError):
        await define(connection, queue="nowhere")
    assert await rows(connection, "schedule_info") == []


async def test_a_run_is_published_in_time_and_notifies(
    connection: Connection, notifications: Notifications
) -> None:
    await define(connection, message={"n": 1}, headers={"h": 1}, type="t", priority=3, key="k")
    assert await fire(connection) == []
    at = await move(connection, "date_trunc('second', clock_timestamp())")
    assert len(await fire(connection)) == 1
    assert await fire(connection) == []
    (message,) = await connection.fetch("select * from messages.message")
    assert (message["message"], message["type"], message["priority"], message["key"]) == (
        {"n": 1}, "t", 3, "k")  # fmt: skip
    assert message["headers"] == {"h": 1, "schedule": "s", "due": at.isoformat()}
    assert message["state"] == "waiting"
    assert await notifications.ids() == [[message["id"]]]
    after = await info(connection)
    assert (after["last_id"], after["failed_at"]) == (message["id"], None)
    assert after["next_at"] > at


@pytest.mark.parametrize(
    ("backfill", "grace", "expected"),
    [(0, 0, []), (0, 5, [1]), (1, 0, [1]), (1, 5, [1]), (2, 0, [2, 1]), (50, 0, [3, 2, 1])],
)
async def test_missed_runs_are_made_up_for(
    connection: Connection, backfill: int, grace: int, expected: list[int]
) -> None:
    """Three were missed, 1 to 3 hours ago; a grace of hours takes the last for late only."""
    await define(connection, backfill=backfill, grace=timedelta(hours=grace))
    # Away from the full hour, so that no other comes while the test runs.
    await connection.execute(
        "update messages.schedule set cron = "
        "extract(minute from clock_timestamp() - interval '30 minutes') || ' * * * *'"
    )
    last = await connection.fetchval(
        "select date_trunc('minute', clock_timestamp() - interval '30 minutes')"
    )
    first = last - timedelta(hours=2)
    await connection.execute("update messages.schedule set next_at = $1", first)
    await fire(connection)
    assert await due(connection) == [last - timedelta(hours=ago - 1) for ago in expected]
    after = await info(connection)
    assert after["next_at"] == last + timedelta(hours=1)
    assert after["last_at"] == (last if expected else None)
    assert after["skipped_at"] == (None if expected else last)


async def test_years_without_workers_take_no_longer(connection: Connection) -> None:
    await define(connection, cron="* * * * * *", backfill=100)
    await move(connection, "'2001-01-01Z'")
    async with asyncio.timeout(20):
        assert len(await fire(connection)) == 100
    times = await due(connection)
    assert times == [times[0] + timedelta(seconds=n) for n in range(100)]


async def test_overlapping_runs_are_skipped(connection: Connection) -> None:
    for name in ("allow", "skip_waiting", "skip"):
        await define(connection, name=name, overlap=name, backfill=3)

    async def fired() -> set[str]:
        await connection.execute(
            "update messages.schedule set next_at = next_at - interval '2 hours'"
        )
        before = await rows(connection, "schedule_info")
        await fire(connection)
        after = await rows(connection, "schedule_info")
        pairs = zip(before, after, strict=True)
        return {old["name"] for old, new in pairs if new["last_id"] != old["last_id"]}

    assert await fired() == {"allow", "skip_waiting", "skip"}
    # What overlaps is not made up for either.
    assert await connection.fetchval("select count(*) from messages.message") == 4
    assert await fired() == {"allow"}
    assert (await info(connection, "skip"))["skipped_at"]
    claimed = await rows(connection, "claim", quantity=100)
    assert await fired() == {"allow", "skip_waiting"}
    for message in claimed:
        await value(connection, "finish", **lock_of(message))
    assert await fired() == {"allow", "skip"}


async def test_a_queue_that_no_worker_serves_is_reported_once_and_skipped_on_request(
    connection: Connection, notices: Notices
) -> None:
    for name in ("publish", "skip"):
        await define(connection, name=name, when_unserved=name)
    serve = "select notifyq.worker_heartbeat('w', queues => '{default}')"

    async def run() -> tuple[list[str], list[str]]:
        for name in ("publish", "skip"):
            await move(connection, "clock_timestamp() - interval '1 second'", name)
        row = await connection.fetchrow("select * from notifyq.fire_schedules()")
        assert row is not None
        warnings = [it for it in await notices.received("WARNING") if "no worker serves" in it]
        assert len(warnings) == len(row["unserved"])
        return sorted(row["fired"]), sorted(row["unserved"])

    both = ["publish", "skip"]
    # Nothing has waited for long: a worker may be about to start.
    assert await run() == (both, [])
    assert await run() == (both, [])
    await connection.execute("update messages.message set available_at = now() - interval '2 min'")
    text = "no worker serves queue default, where messages wait and schedule"
    assert await run() == (
        ["publish"],
        [f"{text} publish publishes more", f"{text} skip skips its runs"],
    )
    assert (await info(connection, "skip"))["skipped_at"] is not None
    since = (await info(connection, "skip"))["unserved_at"]
    assert await run() == (["publish"], [])
    assert (await info(connection, "skip"))["unserved_at"] == since
    await connection.execute(serve)
    assert await run() == (both, [])
    assert (await info(connection, "skip"))["unserved_at"] is None
    await connection.execute("update notifyq.worker set seen_at = now() - interval '1 minute'")
    assert len((await run())[1]) == 2
    # A client that calls the functions itself reports nothing, but has a message locked.
    await rows(connection, "claim")
    assert await run() == (both, [])


async def test_jitter_makes_a_run_available_later(connection: Connection) -> None:
    await define(connection, jitter=timedelta(days=1))
    await move(connection, "date_trunc('hour', clock_timestamp())")
    await fire(connection)
    (message,) = await connection.fetch("select * from messages.message")
    at = datetime.fromisoformat(message["headers"]["due"])
    assert at <= message["available_at"] <= at + timedelta(days=1)


async def test_a_failing_schedule_stops_neither_the_others_nor_maintenance(
    connection: Connection, notices: Notices
) -> None:
    await value(connection, "create_queue", name="gone")
    await define(connection, name="broken", queue="gone")
    await define(connection)
    await connection.execute("delete from messages.queue where name = 'gone'")
    for name in ("broken", "s"):
        await move(connection, HOURS_AGO.format(2), name)
    assert await value(connection, "maintain")
    broken = await info(connection, "broken")
    assert broken["last_error"] == "there is no queue 'gone'"
    assert (await info(connection))["last_id"]
    assert [text for text in await notices.received("WARNING") if "broken cannot fire" in text]
    # Not again at once, ...
    assert await fire(connection) == []
    assert await notices.received("WARNING") == []
    # ... but when it can, and then what is due is not lost.
    await value(connection, "create_queue", name="gone")
    await connection.execute(
        "update messages.schedule set failed_at = failed_at - interval '1 minute' "
        "where failed_at is not null"
    )
    assert len(await fire(connection)) == 1
    fixed = await info(connection, "broken")
    assert (fixed["failed_at"], fixed["last_error"]) == (None, None)


async def test_the_time_until_the_next_run_is_null_without_schedules(
    connection: Connection,
) -> None:
    left = "select notifyq.next_schedule()"
    assert await connection.fetchval(left) is None
    await define(connection)
    assert timedelta(0) < await connection.fetchval(left) <= timedelta(hours=1)
    await move(connection, HOURS_AGO.format(1))
    assert await connection.fetchval(left) == timedelta(0)


async def test_run_now_disable_enable_and_remove(connection: Connection) -> None:
    await define(connection)
    await value(connection, "pause_schedule", name="s")
    before = await move(connection, HOURS_AGO.format(5))
    assert await fire(connection) == []
    id_ = await value(connection, "run_schedule", name="s")
    row = await info(connection)
    assert (row["last_id"], row["next_at"]) == (id_, before)
    assert await value(connection, "resume_schedule", name="s")
    assert not await value(connection, "resume_schedule", name="s")
    # What came while it was disabled is not made up for.
    assert await fire(connection) == []
    assert await value(connection, "unschedule", name="s")
    assert not await value(connection, "unschedule", name="s")
    for function in ("run_schedule", "resume_schedule", "pause_schedule"):
        with pytest.raises(ScheduleNotFoundError, match="no schedule 's'"):
            await value(connection, function, name="s")


async def test_schedules_go_with_their_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    await define(connection, queue="q")
    await define(connection, name="other")
    await value(connection, "drop_queue", name="q")
    assert [row["name"] for row in await rows(connection, "schedule_info")] == ["other"]


async def test_a_worker_fires_into_a_queue_that_it_may_not_publish_into(
    connection: Connection, connect: Connect
) -> None:
    await define(connection)
    await move(connection, HOURS_AGO.format(1))
    worker = await connect()
    await value(connection, "grant_queue", queue="default", role="pg_monitor")
    await worker.execute("set role notifyq_worker")
    assert await value(worker, "maintain")
    assert await connection.fetchval("select count(*) from messages.message") == 1
    await worker.execute("reset role; set role notifyq_publisher")
    with pytest.raises(Exception, match="may not publish into"):
        await value(worker, "publish", queue="default", message=1)
    await worker.execute("reset role")


async def test_a_run_that_is_not_available_yet_waits_to_be_claimed(connection: Connection) -> None:
    await define(connection, overlap="skip_waiting")
    await value(connection, "run_schedule", name="s")
    await connection.execute(
        "update messages.message set state = 'scheduled', available_at = now() + interval '1 hour'"
    )
    await move(connection, HOURS_AGO.format(2))
    assert await fire(connection) == []
    assert (await info(connection))["skipped_at"]


async def test_a_run_by_hand_has_no_jitter(connection: Connection) -> None:
    await define(connection, jitter=timedelta(days=1))
    await value(connection, "run_schedule", name="s")
    assert [row["message"] for row in await rows(connection, "claim")] == [None]


async def test_workers_do_not_wait_for_a_schedule_that_cannot_fire(connection: Connection) -> None:
    await define(connection)
    await move(connection, HOURS_AGO.format(1))
    await connection.execute("update messages.schedule set failed_at = now()")
    assert await value(connection, "notifyq.next_schedule") is None
    await define(connection, name="other")
    assert await value(connection, "notifyq.next_schedule") > timedelta(0)
