"""A worker under load attends its queue: publishers stay silent, and still nothing is missed.

Polling comes after a minute here, so whatever is handled was found by the protocol of the bell.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from notifyq import App
from notifyq.notify.session import Session
from notifyq.telemetry import (
    ListenerConnected,
    ListenerDeaf,
    MessageFinished,
    QueueAttended,
    QueueUnattended,
    WorkerStarted,
)
from support.database import Bells, Connect, Connection, publish, rows, until, value
from support.running import Events, until_calm, working

TRY_TO_SHARE = "select pg_try_advisory_xact_lock_shared(notifyq.suppression_key($1))"


async def is_attended(connection: Connection, queue: str = "q") -> bool:
    return not await connection.fetchval(TRY_TO_SHARE, queue)


PROMISES = """
select count(*)
from pg_locks as l
join pg_database as d on d.oid = l.database and d.datname = current_database()
where l.locktype = 'advisory'
  and l.granted
"""
RINGS = """
select exists (
  select from pg_locks as l, notifyq.suppression_key($1) as k
  where l.locktype = 'advisory'
    and l.pid = pg_backend_pid()
    and (l.classid::bigint << 32 | l.objid::bigint) = k
)
"""


async def load(connection: Connection, connect: Connect, events: Events) -> int:
    """Publish until a worker attends the queue; return how many messages that took."""
    holders = [await connect() for _ in range(2)]
    published = 0
    events.seen.clear()
    while not events.of(QueueAttended):
        # Publishers that are not over show the worker that bells would wait for each other.
        async with holders[0].transaction(), holders[1].transaction():
            for session in [*holders, *[connection] * 12]:
                await publish(session, 1, "q")
            published += 14
            await asyncio.sleep(0.02)
    return published


@asynccontextmanager
async def publishing_silently(
    slow: Connection, connect: Connect, events: Events
) -> AsyncIterator[int]:
    """Give the id of a message that a publisher which will not ring has not committed yet."""
    while True:
        await load(slow, connect, events)
        transaction = slow.transaction()
        await transaction.start()
        (silent,) = await publish(slow, 1, "q")
        if not await slow.fetchval(RINGS, "q"):
            break
        await transaction.commit()  # it was not quick enough
    yield silent
    await transaction.commit()


async def test_publishers_are_silent_while_a_worker_attends_and_ring_after_it(
    app: App, events: Events, connection: Connection, connect: Connect, bells: Bells
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        published = await load(connection, connect, events)
        await bells.heard()
        while not await is_attended(connection):
            published += await load(connection, connect, events)
        for _ in range(20):
            await publish(connection, 1, "q")
        assert [bell.payload for bell in await bells.heard() if bell.ids] == []
        await events.wait(MessageFinished, published + 20)

        await events.wait(QueueUnattended)
        assert not await is_attended(connection)
        await publish(connection, 1, "q")
        await events.wait(MessageFinished, published + 21)
        assert len(await bells.heard()) >= 1


async def test_what_was_published_silently_and_committed_late_is_found(
    app: App, events: Events, connection: Connection, connect: Connect, bells: Bells
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        async with publishing_silently(await connect(), connect, events) as silent:
            await events.wait(QueueUnattended)
            await bells.heard()
        await events.wait(MessageFinished, message_id=silent)
    assert [bell for bell in await bells.heard() if bell.ids] == []


async def test_a_worker_whose_session_ends_while_it_attends_misses_nothing(
    app: App, events: Events, connection: Connection, connect: Connect
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        (session,) = events.of(ListenerConnected)
        async with publishing_silently(await connect(), connect, events) as silent:
            await connection.execute("select pg_terminate_backend($1)", session.backend_pid)
            await events.wait(ListenerConnected, again=True)
        await events.wait(MessageFinished, message_id=silent)


async def test_a_worker_that_stops_while_it_attends_hands_over_what_is_still_to_come(
    app: App, events: Events, connect: Connect
) -> None:
    others: Events = Events()
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with AsyncExitStack() as first:
        await first.enter_async_context(working(app, events))
        async with AsyncExitStack() as second:
            async with publishing_silently(await connect(), connect, events) as silent:
                await second.enter_async_context(working(app, others))
                await first.aclose()
            await others.wait(MessageFinished, message_id=silent)


async def test_a_worker_without_a_free_slot_calls_the_others(
    app: App, events: Events, connection: Connection, connect: Connect
) -> None:
    let_go = asyncio.Event()
    idle: Events = Events()
    slow = App(app.dsn)

    @slow.handler("q")
    async def wait(payload: Any) -> None:
        if payload == "wait":
            await let_go.wait()

    app.handler("q")(lambda: None)
    await app.create_queues()
    try:
        async with working(slow, events, concurrency=2):
            await load(connection, connect, events)
            for _ in range(2):
                await value(connection, "publish", queue="q", message="wait")
            async with working(app, idle):
                await idle.wait(WorkerStarted)
                last = (await publish(connection, 1, "q"))[0]
                await idle.wait(MessageFinished, message_id=last)
                let_go.set()
    finally:
        let_go.set()
        await slow.close()


@pytest.mark.parametrize(("ids", "least", "most"), [(1, 1, 4), (2, 8, 16)])
async def test_few_of_many_idle_workers_get_up_for_one_message(
    app: App, connection: Connection, claims: list[int], ids: int, least: int, most: int
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with AsyncExitStack() as stack:
        crowd = [Events() for _ in range(8)]
        workers = [await stack.enter_async_context(working(app, events)) for events in crowd]
        await until_calm(claims, *workers)
        assert await connection.fetchval(PROMISES) >= 4
        before = len(claims)
        published = await publish(connection, ids, "q")

        async def is_handled() -> bool:
            found = await rows(connection, "archive_list", queue="q")
            return {row["id"] for row in found} >= set(published)

        await until(is_handled, "the message is handled")
        await until_calm(claims, *workers)
        assert least <= len(claims) - before <= most


async def test_a_session_that_hears_nothing_is_told_of_and_promises_nothing(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that gives each transaction another connection."""

    async def forget(_session: Session, _channel: str, _on_bell: object) -> None:
        return

    monkeypatch.setattr(Session, "listen", forget)
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events, poll=0.1):
        await events.wait(ListenerDeaf)
        await publish(connection, 1, "q")
        await events.wait(MessageFinished)
        assert await connection.fetchval(PROMISES) == 0
