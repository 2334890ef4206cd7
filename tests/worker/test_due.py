"""A worker that sleeps wakes up when a message is due: the poll comes after a minute here."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from notifyq import App, Retry
from notifyq.database import statements as sql
from notifyq.telemetry import MessageFinished
from notifyq.worker.wake import Suppression
from support.database import Connection
from support.running import Events, working

SOON = timedelta(milliseconds=300)


async def test_a_message_is_handled_when_it_is_due(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    before = await app.publish("q", 1, delay=SOON)
    async with working(app, events):
        await events.wait(MessageFinished, message_id=before)
        meanwhile = await app.publish("q", 1, delay=SOON)
        await events.wait(MessageFinished, message_id=meanwhile)


async def test_the_nearest_of_several_wakes_it(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        await app.publish("q", 1, delay=timedelta(hours=1))
        later = await app.publish("q", 1, delay=2 * SOON)
        sooner = await app.publish("q", 1, delay=SOON)
        await events.wait(MessageFinished, 2)
    assert [event.message_id for event in events.of(MessageFinished)] == [sooner, later]


async def test_a_message_is_tried_again_when_it_is_due(app: App, events: Events) -> None:
    @app.handler("q", max_attempts=3)
    async def fail(number: int) -> None:
        raise Retry(after=SOON)

    await app.create_queues()
    async with working(app, events):
        await app.publish("q", 1)
        finished = await events.wait(MessageFinished, 3)
    assert [event.status for event in finished] == ["failed"] * 3


async def test_a_message_that_becomes_due_just_after_a_poll_does_not_wait(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinces: list[timedelta] = []
    next_due = Suppression.next_due

    async def query_late(
        self: Suppression, queues: Iterable[str], since: timedelta
    ) -> timedelta | None:
        sinces.append(since)
        if len(sinces) == 1:
            # The last poll was too early for it, and now it is due.
            await connection.execute("update messages.message set available_at = clock_timestamp()")
        return await next_due(self, queues, since)

    monkeypatch.setattr(Suppression, "next_due", query_late)
    app.handler("q")(lambda: None)
    await app.create_queues()
    await app.publish("q", 1, delay=3600)
    async with working(app, events):
        await events.wait(MessageFinished)
    assert max(sinces) < timedelta(seconds=5)  # which is the most


async def test_an_inbox_gets_it_too(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.admin.create_queue("q")
    await app.publish("q", 1, delay=3600)
    value = app.database.value

    async def query_late(statement: str, *args: Any) -> Any:
        if statement == sql.NEXT_DUE:
            await connection.execute("update messages.message set available_at = clock_timestamp()")
        return await value(statement, *args)

    monkeypatch.setattr(app.database, "value", query_late)
    monkeypatch.setattr("notifyq.worker.inbox._POLL", 60)
    async with app.inbox() as inbox:
        assert await inbox.wait(["q"], 5) is not None
