"""Notifications for nothing: any session may send them all the time, which must cost little."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from notifyq import App
from notifyq.config import RelaySettings
from notifyq.contrib.taskiq import NotifyqBroker
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.relay import StreamRelay
from notifyq.streams.tail import Tail
from notifyq.telemetry import log_events
from notifyq.worker.wake import OpenPublishers, Suppression
from support.database import Connection, until
from support.running import Events, working

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    Part = Callable[[App], AsyncIterator[None]]


class Polls:
    """Counts calls of one statement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statement = ""
        self.made = 0
        call = Database._call

        async def counted(database: Database, method: str, statement: str, *args: Any) -> Any:
            self.made += statement == self.statement
            return await call(database, method, statement, *args)

        monkeypatch.setattr(Database, "_call", counted)


@asynccontextmanager
async def going(work: AsyncGenerator[Any, None]) -> AsyncIterator[None]:
    """Let a reader read on."""

    async def read() -> None:
        async for _ in work:
            pass

    task = asyncio.create_task(read())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def relaying(app: App) -> AsyncIterator[None]:
    here = app.database.dsn
    settings = RelaySettings.load(poll=60)
    relay = StreamRelay(
        Database(here), Database(here), "s", "a", "q", settings=settings, telemetry=log_events
    )
    task = asyncio.create_task(relay.run())
    try:
        yield
    finally:
        relay.stop()
        await task


@asynccontextmanager
async def subscribing(app: App) -> AsyncIterator[None]:
    app.subscriber("s", "a")(lambda: None)
    async with working(app, Events()):
        yield


@asynccontextmanager
async def of_taskiq(app: App) -> AsyncIterator[None]:
    broker = NotifyqBroker(app.database.dsn, queue="q")
    try:
        async with going(broker.listen()):
            yield
    finally:
        await broker.shutdown()


@pytest.mark.parametrize(
    ("part", "statement", "channel", "payload"),
    [
        (subscribing, sql.NEXT_EVENTS, sql.NEW_EVENT, "s"),
        (subscribing, sql.NEXT_EVENTS, sql.NEW_EVENT, ""),
        (
            lambda app: going(app.subscription("s", "a", poll=60).batches()),
            sql.NEXT_EVENTS, sql.NEW_EVENT, "s",
        ),
        (
            lambda app: going(Tail(app.database, "s", telemetry=log_events).events(poll=60)),
            sql.EVENTS_SINCE, sql.NEW_EVENT, "s",
        ),
        (relaying, sql.NEXT_EVENTS, sql.NEW_EVENT, "s"),
        (
            lambda app: going(app.dead_letters("q").batches()),
            sql.DEAD_SINCE, sql.DEAD_MESSAGE, "q:1",
        ),
        (of_taskiq, sql.CLAIM, sql.NEW_MESSAGE, "q:1"),
    ],
    ids=["subscriber", "lost notifications", "batches", "tail", "relay", "dead letters", "taskiq"],
)  # fmt: skip
async def test_a_listener_polls_a_hundred_times_a_second_at_most(
    app: App,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    part: Any,
    statement: str,
    channel: str,
    payload: str,
) -> None:
    await app.admin.create_queue("q")
    await app.streams.create("s")
    await app.streams.subscribe("s", "a")
    polls = Polls(monkeypatch)
    polls.statement = statement

    async def has_polled() -> bool:
        await connection.execute("select pg_notify($1, $2)", channel, payload)
        return polls.made > 3

    async with part(app):
        await until(has_polled, "it polls after a notification", 20)
        before, began = polls.made, time.monotonic()
        while time.monotonic() < began + 1:
            await connection.execute("select pg_notify($1, $2)", channel, payload)
        assert polls.made - before <= 20 + 100 * (time.monotonic() - began)


async def test_taskiq_ignores_notifications_of_other_queues(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.admin.create_queue("q")
    polls = Polls(monkeypatch)
    polls.statement = sql.CLAIM

    async def has_polled() -> bool:
        await connection.execute("select pg_notify('new_message', 'q:1')")
        return polls.made > 3

    async with of_taskiq(app):
        await until(has_polled, "it polls after a notification", 20)
        before, began = polls.made, time.monotonic()
        for _ in range(100):
            await connection.execute("select pg_notify('new_message', 'other:1')")
        assert polls.made - before <= 10 + 2 * (time.monotonic() - began)


async def test_notifications_do_not_cause_more_checks_of_open_publishers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a worker without a free slot would query the server after each of them."""
    checks, is_over = 0, False

    async def query(_suppression: Suppression, _statement: str, *_args: Any) -> bool:
        nonlocal checks
        checks += 1
        return is_over

    monkeypatch.setattr(Suppression, "query", query)
    suppression = Suppression(Database("postgresql://nowhere"), log_events, lambda: None)
    publishers = OpenPublishers(["q"], "1")
    for _ in range(1000):
        assert not await publishers.have_ended(suppression)
    assert 1 <= checks < 20
    is_over = True
    await asyncio.sleep(publishers.next_check)
    assert await publishers.have_ended(suppression)
