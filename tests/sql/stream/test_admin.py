"""Streams: two changes of one at the same time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from support.database import Connect, Connection, rows, until_blocked, value


async def test_two_changes_at_once_keep_what_each_has_changed(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_stream", name="s")
    other, observer = await connect(), await connect()
    async with connection.transaction():
        await value(connection, "alter_stream", name="s", retention=timedelta(days=2))
        changing = asyncio.create_task(value(other, "alter_stream", name="s", max_events=7))
        await until_blocked(observer, other)
    await changing
    [found] = await rows(connection, "stream_info", stream="s")
    assert (found["retention"], found["max_events"]) == (timedelta(days=2), 7)
