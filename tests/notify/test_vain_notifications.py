"""Bells that are about nothing: anybody may ring, all the time, and so does what is published."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from notifyq import App
from notifyq.config import RelaySettings
from notifyq.contrib.taskiq import NotifyqBroker
from notifyq.database import sql
from notifyq.database.pool import Database
from notifyq.notify.suppression import Silence, Suppression
from notifyq.relay import StreamRelay
from notifyq.streams.tail import Tail
from notifyq.telemetry import log_sink
from support.database import Connection, until
from support.running import Events, working

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    Part = Callable[[App], AsyncIterator[None]]


class Looks:
    """Counts calls of one statement."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statement = ""
        self.made = 0
        ask = Database._ask

        async def counted(database: Database, method: str, statement: str, *args: Any) -> Any:
            self.made += statement == self.statement
            return await ask(database, method, statement, *args)

        monkeypatch.setattr(Database, "_ask", counted)


@asynccontextmanager
async def going(work: AsyncGenerator[Any, None]) -> AsyncIterator[None]:
    """Let a reader read for ever."""

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
        Database(here), Database(here), "s", "a", "q", settings=settings, sink=log_sink
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
            lambda app: going(Tail(app.database, "s", sink=log_sink).events(poll=60)),
            sql.EVENTS_SINCE, sql.NEW_EVENT, "s",
        ),
        (relaying, sql.NEXT_EVENTS, sql.NEW_EVENT, "s"),
        (
            lambda app: going(app.dead_letters("q").batches()),
            sql.DEAD_SINCE, sql.DEAD_MESSAGE, "q:1",
        ),
        (of_taskiq, sql.CLAIM, sql.NEW_MESSAGE, "q:1"),
    ],
    ids=["subscriber", "lost bells", "batches", "tail", "relay", "dead letters", "taskiq"],
)  # fmt: skip
async def test_whoever_listens_looks_a_hundred_times_a_second_at_most(
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
    looks = Looks(monkeypatch)
    looks.statement = statement

    async def has_looked() -> bool:
        await connection.execute("select pg_notify($1, $2)", channel, payload)
        return looks.made > 3

    async with part(app):
        await until(has_looked, "it looks when it rings", 20)
        before, began = looks.made, time.monotonic()
        while time.monotonic() < began + 1:
            await connection.execute("select pg_notify($1, $2)", channel, payload)
        assert looks.made - before <= 20 + 100 * (time.monotonic() - began)


async def test_taskiq_does_not_hear_bells_of_other_queues(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await app.admin.create_queue("q")
    looks = Looks(monkeypatch)
    looks.statement = sql.CLAIM

    async def has_looked() -> bool:
        await connection.execute("select pg_notify('new_message', 'q:1')")
        return looks.made > 3

    async with of_taskiq(app):
        await until(has_looked, "it looks when it rings", 20)
        before, began = looks.made, time.monotonic()
        for _ in range(100):
            await connection.execute("select pg_notify('new_message', 'other:1')")
        assert looks.made - before <= 10 + 2 * (time.monotonic() - began)


async def test_bells_have_nobody_ask_more_often_for_publishers_that_were_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a worker without a free slot asks the server at each of them."""
    asked, is_over = 0, False

    async def ask(_promises: Suppression, _statement: str, *_args: Any) -> bool:
        nonlocal asked
        asked += 1
        return is_over

    monkeypatch.setattr(Suppression, "ask", ask)
    promises = Suppression(Database("postgresql://nowhere"), log_sink, lambda: None)
    silence = Silence(["q"], "1")
    for _ in range(1000):
        assert not await silence.is_over(promises)
    assert 1 <= asked < 20
    is_over = True
    await asyncio.sleep(silence.next_check)
    assert await silence.is_over(promises)
