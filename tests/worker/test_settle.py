"""Messages that fail are settled many at a time, and one that cannot be spoils no other."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from notifyq import App, Policy
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.models.outcome import Failed, Outcome, Rejected, Released
from notifyq.telemetry import MessageFinished
from notifyq.worker.fetch import Claims
from support.running import Events, working


class Statements:
    """Counts what is sent by `persist`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[str] = []
        persist = Database.persist

        async def count(database: Database, statement: str, *args: Any, **more: Any) -> Any:
            self.sent.append(statement)
            return await persist(database, statement, *args, **more)

        monkeypatch.setattr(Database, "persist", count)


async def test_messages_that_fail_together_are_settled_together(
    app: App, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_in = asyncio.Event()
    begun = 0

    @app.handler("q", max_attempts=2, backoff=0)
    async def handle(_n: int) -> None:
        nonlocal begun
        begun += 1
        if begun == 50:
            all_in.set()
        await all_in.wait()
        raise ValueError("no")

    await app.create_queues()
    await app.publish_many("q", range(50))
    statements = Statements(monkeypatch)
    async with working(app, events, concurrency=50, poll=0.05):
        await events.wait(MessageFinished, 100)
    assert 2 <= statements.sent.count(sql.RETRY_MANY) <= 20
    histories = [await app.archive.attempts(m.id) for m in await app.archive.dead("q", 50)]
    assert len(histories) == 50
    assert all(len(history) == 2 for history in histories)
    assert all("ValueError: no" in (it.traceback or "") for h in histories for it in h)


async def test_one_that_cannot_be_stored_spoils_no_other(app: App) -> None:
    await app.admin.create_queue("q", Policy(max_attempts=2))
    ids = await app.publish_many("q", range(5))
    async with app:
        inbox = Claims(app.database, "w")
        messages = await inbox.claim(["q"], 5)
        # A delay that no instant can be after, and details that PostgreSQL has no character for.
        outcomes: list[Outcome] = [
            Failed("a", timedelta(seconds=1), gives_up=True),
            Failed("b", timedelta.max),
            Failed("c", gives_up=True),
            Rejected("d\0"),
            Released(),
        ]
        settling = [inbox.settler.add(*pair) for pair in zip(messages, outcomes, strict=True)]
        held = await asyncio.gather(*settling)
        await inbox.close()
    assert all(held)
    async with app:
        found = [await app.archive.find(id_) for id_ in ids]
    assert [it and it.details for it in (found[0], found[2], found[4])] == ["a", "c", None]
    assert [it and it.attempts for it in found] == [1, 1, 1, 1, 0]
    delayed, rejected = found[1], found[3]
    assert delayed is not None
    assert rejected is not None
    assert str(delayed.details).splitlines()[0] == "b"
    assert "by the queue's backoff" in str(delayed.details)
    assert "cannot be stored" in str(rejected.details)
