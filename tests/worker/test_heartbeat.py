"""Locks of running messages: held as long as they should be, and known when they are lost."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from notifyq import App, Message
from notifyq.telemetry import (
    HandlerStuck,
    LockLost,
    LocksExtended,
    MessageFinished,
    MessagesClaimed,
)
from notifyq.worker.heartbeat import Heartbeat, Lock
from notifyq.worker.settle import Key
from support.database import Connection, expire, session, until, value
from support.rows import message
from support.running import Events, reaping, statuses, working


async def until_outlived(connection: Connection, messages: int) -> None:
    """Wait until handlers have run for two seconds longer than the locks that they began with."""

    async def have_outlived() -> bool:
        outlived = await connection.fetchval(
            "select count(*) from messages.message "
            "where state = 'locked' and lock_expires_at > locked_at + interval '3 seconds'"
        )
        return bool(outlived == messages)

    await until(have_outlived, "locks are extended", 30)


async def test_locks_are_held_through_handlers_that_outlive_them(
    app: App, events: Events, database: str, connection: Connection
) -> None:
    over, let_go = asyncio.Event(), threading.Event()

    @app.handler("sync", lock_duration=1)
    def sync() -> None:
        let_go.wait(30)

    @app.handler("async", lock_duration=1)
    async def later() -> None:
        await over.wait()

    with reaping(database):
        async with working(app, events):
            await app.publish("sync", None)
            await app.publish("async", None)
            await until_outlived(connection, messages=2)
            over.set()
            let_go.set()
            await events.wait(MessageFinished, 2, status="success")
    assert events.of(LockLost) == []


async def test_a_lock_is_held_through_a_handler_that_blocks_the_loop(
    app: App, events: Events, database: str
) -> None:
    def watch() -> None:
        async def wait() -> None:
            async with session(database) as connection:
                await until_outlived(connection, messages=1)

        asyncio.run(wait())

    @app.handler("q", lock_duration=1)
    async def handle() -> None:
        thread = threading.Thread(target=watch)
        thread.start()
        thread.join()  # this is what must be survived

    await app.create_queues()
    await app.publish("q", None)
    with reaping(database):
        async with working(app, events):
            await events.wait(MessageFinished, status="success")


async def test_without_heartbeat_a_handler_that_outlives_its_lock_is_stopped(
    app: App, events: Events, connection: Connection
) -> None:
    cancelled, let_go = asyncio.Event(), threading.Event()

    @app.handler("async", lock_duration=0.5, heartbeat=False)
    async def later() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    @app.handler("sync", lock_duration=0.5, heartbeat=False)
    def sync() -> None:
        let_go.wait(20)

    async with working(app, events):
        await app.publish("async", None)
        stuck = await app.publish("sync", None)
        await events.wait(MessageFinished, 2, status="lock_expired")
        assert cancelled.is_set()
        assert events.of(HandlerStuck) == [HandlerStuck(queue="sync", message_id=stuck)]
        let_go.set()
    # By the worker that knew it, in time: no reaper runs here.
    assert await statuses(connection) == {"lock_expired": 2}
    details = await connection.fetch("select details from messages.message_archive")
    assert {row[0] for row in details} == {"the handler outlived its lock"}


async def test_a_handler_whose_message_is_cancelled_is_stopped_at_once(
    app: App, events: Events, connection: Connection
) -> None:
    running, ended = asyncio.Event(), asyncio.Event()

    # Its lock is not extended for 200 s by itself.
    @app.handler("q", lock_duration=600)
    async def handle() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with working(app, events):
        id_ = await app.publish("q", None)
        await running.wait()
        assert not await app.archive.cancel(id_)
        assert await app.archive.cancel(id_, running=True)
        async with asyncio.timeout(20):
            await ended.wait()
        await events.wait(LockLost)
    assert await statuses(connection) == {"rejected": 1}


async def test_a_forged_cancellation_only_extends_a_lock(
    app: App, events: Events, connection: Connection
) -> None:
    running, goes_on = asyncio.Event(), asyncio.Event()

    @app.handler("q", lock_duration=60)
    async def handle() -> None:
        running.set()
        await goes_on.wait()

    async with working(app, events):
        id_ = await app.publish("q", None)
        await running.wait()
        for payload in (str(id_), "", "x" * 7000, "-1"):
            await connection.execute("select pg_notify('cancelled_message', $1)", payload)
        await events.wait(LocksExtended)
        goes_on.set()
        await events.wait(MessageFinished, status="success")
    assert events.of(LockLost) == []


async def test_a_handler_whose_lock_is_taken_is_stopped_and_its_outcome_dropped(
    app: App, events: Events, connection: Connection
) -> None:
    running = asyncio.Event()

    @app.handler("q", lock_duration=600)
    async def handle() -> None:
        running.set()
        await asyncio.Event().wait()

    async with working(app, events) as worker:
        message_id = await app.publish("q", None)
        await running.wait()
        await expire(connection, message_id)
        await value(connection, "reap")
        # Known by the next heartbeat, which would come after 200 s, not by the end of the lock.
        worker._runner.heartbeat.hurry(str(message_id))
        (lost,) = await events.wait(LockLost)
        assert (lost.message_id, lost.lock_token) == (message_id, 1)
    assert dict(worker.counts) == {"lost": 1}
    assert await statuses(connection) == {"lock_expired": 1}


async def test_a_message_that_comes_back_while_its_lost_lock_is_cleaned_up_is_held(
    app: App, events: Events, connection: Connection
) -> None:
    cleaning, may_end = asyncio.Event(), asyncio.Event()
    again, is_held = asyncio.Event(), asyncio.Event()

    @app.handler("q", lock_duration=1, max_attempts=2, backoff=0)
    async def handle(message: Message) -> int:
        if message.attempts == 2:
            again.set()
            await is_held.wait()
            return 2
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await may_end.wait()
        return 1

    async with working(app, events):
        message_id = await app.publish("q", None)
        await events.wait(MessagesClaimed)
        await expire(connection, message_id)
        await value(connection, "reap")
        await again.wait()
        await cleaning.wait()
        # The old handler ends now; the lock of the new one is still extended afterwards.
        may_end.set()
        await events.wait(LockLost, lock_token=1)
        first = await connection.fetchval("select lock_expires_at from messages.message")

        async def has_outlived_that_by_a_lock() -> bool:
            await value(connection, "reap")
            expires_at = await connection.fetchval("select lock_expires_at from messages.message")
            return bool(expires_at > first + timedelta(seconds=1))

        await until(has_outlived_that_by_a_lock, "the lock is extended")
        is_held.set()
        await events.wait(MessageFinished, status="success")
    row = await connection.fetchrow("select * from messages.message_archive")
    assert row is not None
    assert (row["status"], row["result"], row["attempts"]) == ("success", 2, 2)
    assert len(events.of(MessageFinished, status="success")) == 1


class SlowSession:
    """A session whose answers take two seconds of a clock that the test owns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.calls: list[list[int]] = []
        monkeypatch.setattr("notifyq.worker.heartbeat.time.monotonic", lambda: self.now)

    async def fetch(self, _statement: str, ids: list[int], *_: object) -> list[tuple[int]]:
        self.calls.append(ids)
        self.now += 2
        return [(id_,) for id_ in ids if id_ != 3]


async def test_a_renewed_lock_counts_from_the_request_and_not_from_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    locked_at = datetime(2030, 1, 1, tzinfo=UTC)
    lost: list[Key] = []
    extended: list[int] = []
    session = SlowSession(monkeypatch)
    locks = [
        Lock(
            message(
                id=id_, lock_token=1, locked_at=locked_at,
                lock_expires_at=locked_at + timedelta(seconds=30),
            ),
            session.now,
        )
        for id_ in (1, 2, 3)
    ]  # fmt: skip
    heartbeat = Heartbeat({it.key: it for it in locks}, lost.append, extended.append)
    session.now += 10
    await heartbeat.beat(cast("Any", session))
    assert session.calls == [[1, 2, 3]]
    assert session.now == 1012
    # 30 seconds from the request at 1010, less a twentieth.
    assert [lock.deadline for lock in locks[:2]] == [1038.5, 1038.5]
    assert extended == [2]
    assert lost == [(3, 1)]
