"""A lock is held until the outcome is written down, however long that takes."""

import asyncio
import threading
import time

from database import Connection, publish, session
from notifyq import App
from notifyq.events import LockLost, MessageFinished
from worker.running import Events, statuses, working


def reap(dsn: str, enough: threading.Event) -> None:
    """Reap all the time, in a thread: the loop of the test is the one that is blocked."""

    async def run() -> None:
        async with session(dsn) as reaper:
            while not enough.is_set():
                await reaper.execute("select messages.reap()")

    asyncio.run(run())


async def test_what_a_blocked_loop_has_finished_keeps_its_lock(
    app: App, database: str, connection: Connection
) -> None:
    events = Events()
    enough = threading.Event()
    reaper = threading.Thread(target=reap, args=(database, enough))

    @app.handler("default", lock_timeout=0.6)
    async def block(number: int) -> None:
        # The next handler begins before the finish of this one is sent.
        time.sleep(0.5)  # noqa: ASYNC251

    await publish(connection, 5)
    reaper.start()
    try:
        async with working(app, events, concurrency=5):
            await events.wait(MessageFinished, 5)
    finally:
        enough.set()
        await asyncio.to_thread(reaper.join)
    assert not events.of(LockLost)
    assert await statuses(connection) == {"success": 5}
