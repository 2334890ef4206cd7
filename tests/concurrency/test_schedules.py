"""Sessions that fire schedules at the same time publish each time once."""

from __future__ import annotations

import asyncio

from support.database import Connect, Connection, fire, rows, until_blocked, value


async def test_many_sessions_publish_each_time_once(
    connection: Connection, connect: Connect
) -> None:
    for number in range(10):
        await value(
            connection, "schedule", name=f"s{number}", cron="* * * * *", queue="default", backfill=5
        )
    sessions = [await connect() for _ in range(20)]
    for _ in range(5):
        await connection.execute(
            "update messages.schedule set "
            "next_at = date_trunc('minute', clock_timestamp()) - interval '3 minutes'"
        )
        await connection.execute("delete from messages.message")
        functions = ["maintain", "notifyq.fire_schedules"] * (len(sessions) // 2)
        await asyncio.gather(
            *(rows(it, function) for it, function in zip(sessions, functions, strict=True))
        )
        # On a slow machine: a call stops after two seconds, and the others have skipped its rows.
        while await fire(connection):
            pass
        counts = await connection.fetch(
            "select headers ->> 'schedule', count(*), count(distinct headers ->> 'due'), "
            "max(headers ->> 'due') from messages.message group by 1"
        )
        assert len(counts) == 10
        for name, published, times, _ in counts:
            # Five, if a minute ends just now.
            assert published == times, name
            assert published in {4, 5}, name


async def test_drop_queue_waits_for_a_schedule_that_fires_into_it(
    connection: Connection, connect: Connect
) -> None:
    """A session that fires holds the schedule and needs the queue; drop_queue must not hold it."""
    await value(connection, "create_queue", name="q")
    await value(connection, "schedule", name="s", cron="@hourly", queue="q")
    await connection.execute("update messages.schedule set next_at = next_at - interval '2 hours'")
    firing, dropping = await connect(), await connect()
    async with firing.transaction():
        await firing.execute("select from messages.schedule for update")
        drop = asyncio.create_task(value(dropping, "drop_queue", name="q", force=True))
        await until_blocked(connection, dropping)
        assert len(await fire(firing)) == 1
    assert await drop == 1
    assert await rows(connection, "schedule_info") == []


async def test_a_schedule_that_is_being_changed_holds_up_no_other(
    connection: Connection, connect: Connect
) -> None:
    for name in ("changed", "other"):
        await value(connection, "schedule", name=name, cron="@hourly", queue="default")
    await connection.execute("update messages.schedule set next_at = now() - interval '1 minute'")
    worker = await connect()
    await worker.execute("set lock_timeout = '5s'")
    async with connection.transaction():
        await value(connection, "pause_schedule", name="changed")
        assert len(await fire(worker)) == 1
    assert await fire(worker) == []
