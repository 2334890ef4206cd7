"""A worker under load suppresses notifications: publishers skip NOTIFY, and nothing is missed.

The poll comes after a minute here: the protocol of notifications finds all that is handled.
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
    MessageFinished,
    NotificationReceived,
    NotificationsLost,
    QueueSuppressed,
    QueueUnsuppressed,
    WorkerStarted,
)
from notifyq.worker.wake import OpenPublishers, Suppression
from support.database import Connect, Connection, Notifications, publish, rows, until, value
from support.running import Events, until_asleep, working

TRY_TO_SHARE = "select pg_try_advisory_xact_lock_shared(notifyq.suppression_key($1))"


async def is_suppressed(connection: Connection, queue: str = "q") -> bool:
    return not await connection.fetchval(TRY_TO_SHARE, queue)


LEASES = """
select count(*)
from pg_locks as l
join pg_database as d on d.oid = l.database and d.datname = current_database()
where l.locktype = 'advisory'
  and l.granted
"""
SHARES = """
select exists (
  select from pg_locks as l, notifyq.suppression_key($1) as k
  where l.locktype = 'advisory'
    and l.pid = pg_backend_pid()
    and (l.classid::bigint << 32 | l.objid::bigint) = k
)
"""

IS_BLOCKED = "select cardinality(pg_blocking_pids($1)) > 0"


async def load(connection: Connection, connect: Connect, events: Events) -> int:
    """Publish until a worker suppresses the queue; return how many messages that took."""
    holders = [await connect() for _ in range(2)]
    published = 0
    events.seen.clear()
    while not events.of(QueueSuppressed):
        # Open publishers show the worker that notifications contend.
        async with holders[0].transaction(), holders[1].transaction():
            for session in [*holders, *[connection] * 12]:
                await publish(session, 1, "q")
            published += 14
            await asyncio.sleep(0.02)
    return published


@asynccontextmanager
async def publishing_without_notify(
    slow: Connection, connect: Connect, events: Events
) -> AsyncIterator[int]:
    """Give the id of a message of an open publisher that has skipped NOTIFY."""
    while True:
        await load(slow, connect, events)
        transaction = slow.transaction()
        await transaction.start()
        (late,) = await publish(slow, 1, "q")
        if not await slow.fetchval(SHARES, "q"):
            break
        await transaction.commit()  # it notifies: it was too late
    yield late
    await transaction.commit()


async def test_publishers_skip_notify_only_while_a_worker_suppresses(
    app: App, events: Events, connection: Connection, connect: Connect, notifications: Notifications
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        published = await load(connection, connect, events)
        await notifications.received()
        while not await is_suppressed(connection):
            published += await load(connection, connect, events)
        for _ in range(20):
            await publish(connection, 1, "q")
        assert [
            notification.payload
            for notification in await notifications.received()
            if notification.ids
        ] == []
        await events.wait(MessageFinished, published + 20)

        await events.wait(QueueUnsuppressed)
        assert not await is_suppressed(connection)
        await publish(connection, 1, "q")
        await events.wait(MessageFinished, published + 21)
        assert len(await notifications.received()) >= 1


async def test_a_worker_suppresses_the_notifications_of_one_fast_publisher(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    published = 0
    async with working(app, events):
        while not events.of(QueueSuppressed):
            await publish(connection, 1, "q")
            published += 1
            # As many as if each of a hundred messages had its own.
            await connection.execute(
                "select pg_notify('new_message', 'q:' || n) from generate_series(1, 100) as n"
            )
        await events.wait(MessageFinished, published)


async def test_a_message_published_without_notify_and_committed_late_is_found(
    app: App, events: Events, connection: Connection, connect: Connect, notifications: Notifications
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        async with publishing_without_notify(await connect(), connect, events) as late:
            await events.wait(QueueUnsuppressed)
            await notifications.received()
        await events.wait(MessageFinished, message_id=late)
    assert [
        notification for notification in await notifications.received() if notification.ids
    ] == []


async def test_a_message_published_without_notify_just_before_the_release_is_found(
    app: App,
    events: Events,
    connection: Connection,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker's transaction id is later than that of every publisher that skipped NOTIFY."""
    answers: list[bool] = []
    have_ended = OpenPublishers.have_ended

    async def ask(self: OpenPublishers, suppression: Suppression) -> bool:
        answers.append(await have_ended(self, suppression))
        return answers[-1]

    monkeypatch.setattr(OpenPublishers, "have_ended", ask)
    app.handler("q")(lambda: None)
    await app.create_queues()
    gate, slow = await connect(), await connect()
    await gate.execute("""
        select pg_advisory_lock(36);
        alter function notifyq.unsuppress rename to unsuppress_behind_gate;
        create function notifyq.unsuppress(queues text[]) returns xid8 language plpgsql as $$
        begin
          perform pg_advisory_xact_lock_shared(36);
          return notifyq.unsuppress_behind_gate(queues);
        end $$;
    """)
    async with working(app, events):
        (session,) = events.of(ListenerConnected)
        await load(connection, connect, events)
        await until(
            lambda: gate.fetchval(IS_BLOCKED, session.backend_pid),
            "the worker is about to end the suppression",
        )
        async with slow.transaction():
            (late,) = await publish(slow, 1, "q")
            assert not await slow.fetchval(SHARES, "q")
            answers.clear()
            await gate.execute("select pg_advisory_unlock(36)")
            await until(lambda: answers, "the worker has checked on open publishers")
            assert not answers[0], "it does not wait for the publisher"
        await events.wait(MessageFinished, message_id=late)


async def test_a_worker_whose_session_ends_while_it_suppresses_misses_nothing(
    app: App, events: Events, connection: Connection, connect: Connect
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events):
        (session,) = events.of(ListenerConnected)
        async with publishing_without_notify(await connect(), connect, events) as late:
            await connection.execute("select pg_terminate_backend($1)", session.backend_pid)
            await events.wait(ListenerConnected, again=True)
        await events.wait(MessageFinished, message_id=late)


async def test_a_worker_that_stops_leaves_messages_of_open_publishers_to_others(
    app: App, events: Events, connect: Connect
) -> None:
    others: Events = Events()
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with AsyncExitStack() as first:
        await first.enter_async_context(working(app, events))
        async with AsyncExitStack() as second:
            async with publishing_without_notify(await connect(), connect, events) as late:
                await second.enter_async_context(working(app, others))
                await first.aclose()
            await others.wait(MessageFinished, message_id=late)


async def test_a_worker_without_a_free_slot_wakes_the_others(
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
async def test_few_of_many_idle_workers_wake_up_for_one_message(
    app: App, connection: Connection, claims: list[list[str]], ids: int, least: int, most: int
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with AsyncExitStack() as stack:
        crowd = [Events() for _ in range(8)]
        workers = [await stack.enter_async_context(working(app, events)) for events in crowd]
        await until_asleep(*workers)
        assert await connection.fetchval(LEASES) >= 4
        before = len(claims)
        notified = [len(it.of(NotificationReceived)) for it in crowd]
        published = await publish(connection, ids, "q")

        async def is_handled() -> bool:
            found = await rows(connection, "archive_list", queue="q")
            return {row["id"] for row in found} >= set(published)

        await until(is_handled, "the message is handled")
        for it, number in zip(crowd, notified, strict=True):
            await it.wait(NotificationReceived, number + 1)
        await until_asleep(*workers)
        assert least <= len(claims) - before <= most


async def test_a_session_without_notifications_is_reported_and_takes_no_leases(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a pooler that gives each transaction another connection."""

    async def forget(_session: Session, _channel: str, _on_notification: object) -> None:
        return

    monkeypatch.setattr(Session, "listen", forget)
    monkeypatch.setattr("notifyq.notify.session._ARRIVES_WITHIN", 0.3)
    app.handler("q")(lambda: None)
    await app.create_queues()
    async with working(app, events, poll=0.1):
        await events.wait(NotificationsLost)
        await publish(connection, 1, "q")
        await events.wait(MessageFinished)
        assert await connection.fetchval(LEASES) == 0
