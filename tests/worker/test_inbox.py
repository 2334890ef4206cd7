"""Waiting for messages without handlers, on the notification."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from notifyq import App
from notifyq.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    InvalidArgumentError,
    QueueNotFoundError,
)
from notifyq.models.message import Message
from notifyq.server import Server
from support.database import (
    Connection,
    archived,
    claim_one,
    live,
    publish,
    rows,
    session,
    until,
    value,
)


async def until_listening(connection: Connection) -> None:
    # When it is ready, it tests whether notifications arrive. A session that is lost earlier
    # would fail the wait: the first connection is not retried.
    await until(
        lambda: connection.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'notifyq inbox' "
            "and datname = current_database() and query ~* '^listen \"?notifyq_'"
        ),
        "the inbox listens",
    )


async def test_the_first_queue_that_has_a_message_goes_first(
    app: App, connection: Connection
) -> None:
    for queue in ("high", "low"):
        await value(connection, "create_queue", name=queue)
    [low] = await publish(connection, 1, "low")
    [high] = await publish(connection, 1, "high")
    async with app.inbox("me") as inbox:
        for id_, queue in ((high, "high"), (low, "low")):
            message = await inbox.wait(["high", "low"], timeout=10)
            assert message is not None
            assert (message.id, message.queue, message.payload()) == (id_, queue, 0)
            assert str(message.locked_by).startswith("me:")
            assert await inbox.finish(message, {"n": 1})
            assert await inbox.finish(message) is False
            [row] = await archived(connection, id_)
            assert (row["status"], row["result"]) == ("success", {"n": 1})
        assert await inbox.wait(["high", "low"], timeout=0.05) is None


async def test_a_notification_wakes_a_wait_at_once(app: App, connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    async with app.inbox() as inbox:
        for queue in ("default", "other", "default", "other", "default"):
            waiting = asyncio.create_task(inbox.wait(["default", "other"]))
            await until_listening(connection)
            [id_] = await publish(connection, 1, queue)
            message = await waiting
            assert message is not None
            assert (message.id, message.queue) == (id_, queue)
            await inbox.finish(message)


async def test_many_wait_on_one_listening_session_and_each_gets_one(
    app: App, connection: Connection
) -> None:
    inboxes = [app.inbox() for _ in range(5)]
    waiting = [asyncio.create_task(inbox.wait(["default"], timeout=10)) for inbox in inboxes]
    await until_listening(connection)
    ids = await publish(connection, 5)
    found = await asyncio.gather(*waiting)
    assert sorted(message.id for message in found if message) == ids
    listening = await connection.fetchval(
        "select count(*) from pg_stat_activity where application_name = 'notifyq inbox' "
        "and datname = current_database()"
    )
    assert listening == 1
    for inbox in inboxes:
        await inbox.close()
    # What was not ended is given back.
    assert len(await rows(connection, "message_list", state="waiting")) == 5


async def test_filters_go_by_position_and_leave_the_rest(app: App, connection: Connection) -> None:
    ids = await publish(connection, 4)
    async with app.inbox() as inbox:
        order = []
        for _ in range(4):
            message = await inbox.wait(["default", "default"], filters=["$ >= 2", None], timeout=0)
            assert message is not None
            order.append(message.id)
            await inbox.finish(message)
        assert order == [ids[2], ids[3], ids[0], ids[1]]
        waiting = asyncio.create_task(inbox.wait(["default"], filters=["$ == 7"], timeout=10))
        await until_listening(connection)
        await publish(connection, 3)
        await value(connection, "publish", queue="default", message=7)
        message = await waiting
        assert message is not None
        assert message.payload() == 7


async def test_a_message_is_ended_in_every_way(app: App, connection: Connection) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=2)
    rejected, retried, released = await publish(connection, 3)
    async with app.inbox() as inbox:
        first, second, third = [await inbox.wait(["default"], timeout=0) for _ in range(3)]
        assert first
        assert second
        assert third
        assert await inbox.reject(first, "no")
        assert await inbox.retry(second, "not now", after=60)
        assert await inbox.extend(third)
        assert await inbox.release(third)
        assert await inbox.extend(third) is False
    [row] = await archived(connection, rejected)
    assert (row["status"], row["details"]) == ("rejected", "no")
    for id_, state, attempts in ((retried, "scheduled", 1), (released, "waiting", 0)):
        left = await live(connection, id_)
        assert left is not None
        assert (left["state"], left["attempts"]) == (state, attempts)


async def test_a_wait_that_is_cancelled_takes_nothing_with_it(
    app: App, connection: Connection
) -> None:
    async with app.inbox() as inbox:
        for pause in (0, 0.001, 0.002, 0.003, 0.005, 0.008):
            waiting = asyncio.create_task(inbox.wait(["default"]))
            await asyncio.sleep(pause)
            await publish(connection, 1)
            await asyncio.sleep(pause)
            waiting.cancel()
            message = None
            with contextlib.suppress(asyncio.CancelledError):
                message = await waiting
            locked = await rows(connection, "message_list", state="locked")
            assert [row["id"] for row in locked] == ([message.id] if message else [])
            await rows(connection, "take", queue="default", quantity=9)
            if message:
                await inbox.finish(message)


async def test_a_lost_listening_session_is_replaced(app: App, connection: Connection) -> None:
    async with app.inbox() as inbox:
        waiting = asyncio.create_task(inbox.wait(["default"], timeout=10))
        await until_listening(connection)
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'notifyq inbox' and datname = current_database()"
        )
        [id_] = await publish(connection, 1)
        message = await waiting
        assert message is not None
        assert message.id == id_


async def test_bad_arguments_are_refused_at_once(app: App) -> None:
    for queues, filters, error in (
        ("default", None, ConfigurationError),
        ([], None, ConfigurationError),
        (["default"], [], ConfigurationError),
        (["default"], "$ > 1", ConfigurationError),
        (["nowhere"], None, QueueNotFoundError),
        (["default"], ["$x == 1"], InvalidArgumentError),
        (["default"], ["$ ? (@ > 1)"], InvalidArgumentError),
    ):
        async with app.inbox() as inbox:
            with pytest.raises(error):
                await inbox.wait(queues, timeout=5, filters=filters)


@pytest.mark.timeout(120)
async def test_a_wait_ends_in_time_while_the_server_is_away(mortal_server: Server) -> None:
    app = App(mortal_server.dsn, retry_for=100)
    await app.admin.check_schema()
    async with app.inbox() as inbox:
        assert await inbox.wait(["default"], timeout=0.1) is None
        await asyncio.to_thread(mortal_server.stop, force=True)
        async with asyncio.timeout(20):
            assert await inbox.wait(["default"], timeout=0.5) is None
        await asyncio.to_thread(mortal_server.start)
        async with session(mortal_server.dsn) as connection:
            # As a claim leaves it whose answer was lost.
            await publish(connection, 1)
            await claim_one(connection, inbox.worker)
        found = await inbox.wait(["default"], timeout=20)
        assert found is not None
        assert found.attempts == 1
    await app.close()


async def test_a_claim_that_fails_after_its_wait_was_cancelled_is_in_doubt(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id_] = await publish(connection, 1)
    async with app.inbox() as inbox:
        claim = inbox._claims.claim
        is_claimed, fails = asyncio.Event(), asyncio.Event()

        async def lose_the_answer(*args: Any, **options: Any) -> list[Message]:
            await claim(*args, **options)
            is_claimed.set()
            await fails.wait()
            raise DatabaseUnavailableError("the answer is lost")

        with monkeypatch.context() as patched:
            patched.setattr(inbox._claims, "claim", lose_the_answer)
            waiting = asyncio.create_task(inbox.wait(["default"]))
            await is_claimed.wait()
            waiting.cancel()
            fails.set()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        message = await inbox.wait(["default"], timeout=10)
        assert message is not None
        assert message.id == id_


async def test_a_search_for_orphans_releases_nothing_that_another_wait_claims(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id_] = await publish(connection, 1)
    async with app.inbox() as inbox:
        found: list[Message | None] = []
        search = inbox._claims.release_orphans

        async def search_late(known: Any) -> int:
            monkeypatch.undo()
            found.append(await inbox.wait(["default"], timeout=1))
            return await search(known)

        monkeypatch.setattr(inbox._claims, "release_orphans", search_late)
        inbox._in_doubt = True
        found.append(await inbox.wait(["default"], timeout=20))
        assert [message and message.id for message in found] == [None, id_]


async def test_the_session_is_closed_although_the_releases_fail(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(connection, 1)
    inbox = app.inbox()
    assert await inbox.wait(["default"], timeout=10) is not None
    closed = asyncio.Event()

    async def fail(_messages: object) -> None:
        raise DatabaseUnavailableError("away")

    async def close() -> None:
        closed.set()

    with monkeypatch.context() as patched:
        patched.setattr(inbox, "_release", fail)
        patched.setattr(inbox._claims, "close", close)
        with pytest.raises(DatabaseUnavailableError):
            await inbox.close()
    assert closed.is_set()
    await inbox.close()


async def test_a_retry_needs_a_duration(app: App, connection: Connection) -> None:
    await publish(connection, 1)
    async with app.inbox() as inbox:
        message = await inbox.wait(["default"], timeout=10)
        assert message is not None
        for after in (float("nan"), -1, "5"):
            with pytest.raises(ConfigurationError, match=r"^after must be a duration"):
                await inbox.retry(message, "later", after)  # type: ignore[arg-type]
        assert await inbox.finish(message)
