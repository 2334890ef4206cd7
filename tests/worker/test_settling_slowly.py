"""A lock is held until the outcome is written down, however long that takes."""

import time

from notifyq import App
from notifyq.telemetry import LockLost, MessageFinished
from support.database import Connection, publish
from support.running import Events, reaping, statuses, working


async def test_what_a_blocked_loop_has_finished_keeps_its_lock(
    app: App, database: str, connection: Connection
) -> None:
    events = Events()

    @app.handler("default", lock_duration=0.6)
    async def block(number: int) -> None:
        # The next handler begins before the finish of this one is sent.
        time.sleep(0.5)  # noqa: ASYNC251

    await publish(connection, 5)
    with reaping(database, pause=0):
        async with working(app, events, concurrency=5):
            await events.wait(MessageFinished, 5)
    assert not events.of(LockLost)
    assert await statuses(connection) == {"success": 5}
