"""A primary crashes during a run, and its standby is promoted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from database.pairs import Pair, kill
from notifyq import App, DatabaseUnavailableError, Reject
from notifyq.chaos.server import Server
from notifyq.operations import monitor
from notifyq.telemetry import ListenerConnected, ListenerLost, MessageFinished
from support.database import Connection, session, until
from support.running import Events, doubles, persisting, working


@asynccontextmanager
async def publishing(
    app: App, acknowledged: dict[int, int], doomed: set[int]
) -> AsyncIterator[None]:
    async def publish() -> None:
        number = 0
        while True:
            acknowledged[number] = await persisting(app, "q", number)
            with suppress(DatabaseUnavailableError):
                await app.publish("orders", number)
            if number % 5 == 0:
                await persisting(app, "doomed", number)
                doomed.add(number)
            number += 1
            await asyncio.sleep(0.01)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def watching(app: App, dead: set[int]) -> AsyncIterator[None]:
    """Follow dead messages, and see that it still goes on in the end."""

    async def watch() -> None:
        async for messages, _ in app.dead_letters().batches():
            dead.update(message.payload() for message in messages)

    task = asyncio.create_task(watch())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def archived(connection: Connection) -> set[int]:
    rows = await connection.fetch(
        "select id from messages.message_archive where queue = 'q' and status = 'success'"
    )
    return {row["id"] for row in rows}


class Run:
    """An App with all that a worker serves, and what its handlers have had."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, retry_for=60)
        self.handled: list[int] = []
        self.seen: list[int] = []
        self.gate = asyncio.Event()
        self.app.handler("q")(self.handle)
        self.app.handler("awaited")(self.answer)
        self.app.handler("doomed")(self.refuse)
        self.app.subscriber("orders", "warehouse")(self.keep)

    async def handle(self, number: int) -> None:
        self.handled.append(number)

    async def refuse(self, number: int) -> None:
        raise Reject(str(number))

    async def answer(self, number: int) -> int:
        await self.gate.wait()
        return number

    async def keep(self, number: int) -> None:
        self.seen.append(number)

    async def until_flowing(self) -> None:
        """Wait until handler and subscriber have had more, and later ones, than up to now."""
        handled, seen = len(self.handled), len(self.seen)
        await until(
            lambda: len(self.handled) > handled + 20 and len(self.seen) > seen + 10,
            "messages are handled",
            seconds=40,
        )


@pytest.mark.timeout(90)
async def test_all_processes_reconnect_to_the_promoted_standby(pair: Pair) -> None:
    run = Run(pair.dsn)
    app, events = run.app, Events()
    acknowledged: dict[int, int] = {}
    doomed: set[int] = set()
    dead: set[int] = set()
    settings: dict[str, Any] = {"poll": 1, "maintenance": 1, "ping": 0.2, "seconds": 40}
    async with (
        working(app, events, **settings),
        working(app, events, **settings),
        watching(app, dead),
    ):
        awaited = await app.publish("awaited", 7)
        result = asyncio.create_task(awaited.result(timeout=60))
        async with publishing(app, acknowledged, doomed):
            await run.until_flowing()
            await kill(pair.primary)
            await pair.standby.promote()
            await run.until_flowing()
        run.gate.set()
        assert await result == 7
        async with session(pair.standby.dsn) as connection:

            async def all_done() -> bool:
                return set(acknowledged.values()) <= await archived(connection)

            await until(all_done, "all acknowledged messages are handled", seconds=20)
            await until(lambda: dead >= doomed, "all dead messages are reported", seconds=20)
            assert await doubles(connection) == 0
        assert events.of(ListenerLost)
        # The old primary comes back as a read-only server; no process connects to it.
        pair.primary.demote()
        await pair.primary.start()
        last = await persisting(app, "q", 1_000_000)
        await events.wait(MessageFinished, message_id=last)
        await stop_writing(pair.standby, events)
        last = await persisting(app, "q", 1_000_001)
        await events.wait(MessageFinished, message_id=last)
    # At least once: what was in flight may have been handled twice, and nothing else.
    assert len(run.handled) - len(set(run.handled)) <= 20
    assert set(run.handled) >= set(acknowledged)
    await app.close()


async def stop_writing(server: Server, events: Events) -> None:
    """Have a server take no writes for a while, as managed ones do, without ending sessions."""
    lost, again = (len(events.of(kind)) for kind in (ListenerLost, ListenerConnected))
    async with session(server.dsn) as connection:
        await connection.execute("set default_transaction_read_only = off")
        await connection.execute("alter system set default_transaction_read_only = on")
        await connection.execute("select pg_reload_conf()")
        await events.wait(ListenerLost, lost + 1)
        await connection.execute("alter system reset default_transaction_read_only")
        await connection.execute("select pg_reload_conf()")
        await events.wait(ListenerConnected, again + 1)


async def test_the_advice_ends_a_standby_reader_that_blocks_vacuum(
    pair: Pair,
) -> None:
    async with session(pair.standby.dsn) as there, session(pair.primary.dsn) as here:
        await there.execute("alter system set hot_standby_feedback = on")
        await there.execute("alter system set wal_receiver_status_interval = 1")
        await there.execute("select pg_reload_conf()")
        async with session(pair.standby.dsn) as reader:
            await reader.execute("begin isolation level repeatable read; select 1")
            found: list[monitor.Session] = []

            async def is_held() -> bool:
                found[:] = [it for it in await monitor.holders(here) if it.cause == "standby"]
                return bool(found)

            await until(is_held, "the standby holds a snapshot", 20)
            await there.execute(found[0].advice)

            async def is_free() -> bool:
                pid = reader.get_server_pid()
                left = "select count(*) from pg_stat_activity where pid = $1"
                return not await there.fetchval(left, pid)

            await until(is_free, "the standby lets it go", 20)
