"""Many sessions that wait, own, release and die at once: each message ends once."""

from __future__ import annotations

import asyncio
import random

import pytest

from support.database import Connection, one_row, publish, rows, session, value

WAIT = "call messages.wait(array['default'], '0.3 s')"


async def work(own: Connection, dice: random.Random, finished: list[int], most: int) -> bool:
    """Wait, and end what comes in one way or another; true once all is done, false to die."""
    while True:
        found = await one_row(own, WAIT)
        fate = dice.random()
        if found["id"] is None:
            if len(finished) == most:
                return True
        elif fate < 0.1:
            own.terminate()
            return False
        elif fate < 0.2:
            assert await own.fetchval("select messages.release_owned()")
        else:
            assert await own.fetchval("select messages.finish_owned()")
            finished.append(found["id"])


@pytest.mark.parametrize("durable", [True, False])
async def test_messages_of_ended_sessions_are_finished_once(
    database: str, connection: Connection, durable: bool
) -> None:
    if not durable:
        await value(connection, "drop_queue", name="default")
        await value(connection, "create_queue", name="default", durable=False)
    ids = await publish(connection, 120)
    finished: list[int] = []

    async def live(seed: int) -> None:
        dice, is_done = random.Random(seed), False
        while not is_done:
            async with session(database) as own:
                is_done = await work(own, dice, finished, len(ids))

    async with asyncio.timeout(60):
        await asyncio.gather(*(live(seed) for seed in range(12)))
    assert sorted(finished) == ids
    assert await rows(connection, "message_list") == []
