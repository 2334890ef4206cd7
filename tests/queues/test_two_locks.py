"""A settlement belongs to one lock, also where one worker had two of a message."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from notifyq import App, Message
from notifyq.models.outcome import Success
from notifyq.telemetry import MessageFinished
from notifyq.worker.fetch import Claims
from support.database import Connection
from support.running import Events, working


async def test_of_two_locks_of_one_worker_only_the_newer_one_finishes_the_message(
    database: str, connection: Connection
) -> None:
    await connection.execute("select messages.publish('default', '1')")
    await connection.execute("select messages.alter_queue('default', max_attempts => 2)")
    async with App(database) as app:
        client = Claims(app.database, "me")
        [old] = await client.claim(["default"], 1, lock_duration=timedelta(milliseconds=1))
        # Over at once, whatever the queue's backoff.
        await connection.execute("""
            update messages.message set lock_expires_at = now() - interval '1 minute';
            select messages.reap(quantity => 10);
            update messages.message set available_at = now() - interval '1 minute';
            select messages.stage_due();
        """)
        [new] = await client.claim(["default"], 1)
        assert (new.id, new.lock_token > old.lock_token) == (old.id, True)

        # Gathered, the two go over in one call, whose answer names the id.
        late, done = await asyncio.gather(
            client.settler.add(old, Success('"late"')), client.settler.add(new, Success('"done"'))
        )
    assert (late, done) == (False, True)
    assert await connection.fetchval("select result from messages.message_archive") == "done"


async def test_message_finished_has_the_token_of_its_lock(
    database: str, connection: Connection
) -> None:
    app = App(database)
    tokens: list[int] = []

    @app.handler("default")
    async def note(_payload: int, message: Message) -> None:
        tokens.append(message.lock_token)

    await connection.execute("select messages.publish('default', '1')")
    events = Events()
    async with working(app, events):
        [finished] = await events.wait(MessageFinished)
    assert [finished.lock_token] == tokens
