"""Workers without a free slot wake the others, but not each other again and again."""

from __future__ import annotations

import asyncio

from notifyq import App
from support.database import Connection, Notifications, publish, until, value
from support.running import Events, working


async def test_full_workers_do_not_wake_each_other_without_end(
    database: str, connection: Connection, notifications: Notifications
) -> None:
    app = App(database, retry_for=30)
    may_end = asyncio.Event()

    @app.handler("default")
    async def wait(_payload: int) -> None:
        await may_end.wait()

    async def all_are_full() -> bool:
        locked = "select count(*) from messages.message where state = 'locked'"
        return bool(await connection.fetchval(locked) == 4)

    events = Events()
    try:
        async with (
            working(app, events, concurrency=2),
            working(app, events, concurrency=2),
        ):
            await publish(connection, 20)
            await until(all_are_full, "all slots are taken")
            await value(connection, "notifyq.wake_all", queues=["default"], always=True)
            received = [
                notification for _ in range(300) for notification in await notifications.received()
            ]
            may_end.set()
        # Each may wake the others once or twice: when it has started, or become full.
        assert len(received) < 20
    finally:
        await app.close()
