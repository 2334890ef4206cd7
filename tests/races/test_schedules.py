"""Whoever fires schedules at once, each of their times is published once."""

from __future__ import annotations

import asyncio

from database import Connect, Connection, rows, value


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
        functions = ["maintain", "fire_schedules"] * (len(sessions) // 2)
        await asyncio.gather(
            *(rows(it, function) for it, function in zip(sessions, functions, strict=True))
        )
        counts = await connection.fetch(
            "select headers ->> 'schedule', count(*), count(distinct headers ->> 'due'), "
            "max(headers ->> 'due') from messages.message group by 1"
        )
        assert len(counts) == 10
        for name, published, times, _ in counts:
            # Five, if a minute ends just now.
            assert published == times, name
            assert published in {4, 5}, name
