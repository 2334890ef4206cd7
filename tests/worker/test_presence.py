"""Presence: operators see each worker, what it does, and that it has left."""

from __future__ import annotations

import asyncio
import os

import pytest

from notifyq import App, __version__
from notifyq.operations import monitor
from support.database import Connection, until
from support.running import Events, working


async def test_a_worker_is_seen_while_it_works(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.worker.presence._EVERY", 0.05)
    entered, leave = asyncio.Event(), asyncio.Event()

    @app.handler("q")
    async def handle() -> None:
        entered.set()
        await leave.wait()

    async def is_seen(state: str, running: int) -> bool:
        found = await monitor.workers(connection)
        return [(it.state, it.running) for it in found] == [(state, running)]

    async with working(app, Events(), concurrency=3) as worker:
        await until(lambda: is_seen("idle", 0), "the worker is seen")
        message = await handle.publish()
        await entered.wait()
        await until(lambda: is_seen("working", 1), "the worker is seen at work")
        [seen] = await monitor.workers(connection)
        assert (seen.name, seen.pid, seen.version) == (worker.name, os.getpid(), __version__)
        assert (seen.queues, seen.streams, seen.concurrency) == (("q",), (), 3)
        assert seen.is_connected
        assert [it.id for it in seen.messages] == [int(message)]
        leave.set()
    assert await monitor.workers(connection) == []


async def test_a_worker_that_must_not_report_itself_works_all_the_same(
    app: App, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    handled = asyncio.Event()

    @app.handler("q")
    async def handle() -> None:
        handled.set()

    await connection.execute("alter table notifyq.worker add constraint never_ck check (false)")
    async with working(app):
        await handle.publish()
        await handled.wait()
    assert "is not shown to operators" in caplog.text
