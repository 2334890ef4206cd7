"""Workers without a free slot: they call the others, and do not go on calling each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from notifyq import App
from support.database import publish, until, value
from support.running import Events, working

if TYPE_CHECKING:
    from support.database import Bells, Connection


async def test_full_workers_do_not_answer_a_summons_with_summons(
    database: str, connection: Connection, bells: Bells
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
            heard = [bell for _ in range(300) for bell in await bells.heard()]
            may_end.set()
        # Each has its own reasons to call once or twice: it has just started, or become full.
        assert len(heard) < 20
    finally:
        await app.close()
