"""Following dead messages: each once, whatever commits late and whatever breaks."""

import asyncio
import logging
from contextlib import aclosing
from typing import Any

import asyncpg
import pytest

from notifyq import App, ArchivedMessage
from notifyq.archive.dead_letters import DeadLetters
from notifyq.archive.reader import Archive
from notifyq.config import DatabaseSettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.errors import AccessDeniedError, DatabaseError, SchemaMissingError
from notifyq.server import Server
from notifyq.telemetry import ListenerConnected, ListenerLost
from support.database import Connect, Connection, let_fail, session, until, value
from support.refusing import LIMITED, OF_ALL, refusing
from support.running import Events

CALLS = ["messages.dead_since"]
"""What it calls again and again."""


class Follower:
    """Reads dead letters until there are as many as expected."""

    def __init__(self, database: Database, events: Events, **options: Any) -> None:
        self.seen: str | None = None
        self.ids: list[int] = []
        self._news = asyncio.Event()
        letters = DeadLetters(database, telemetry=events, **{"poll": 60} | options)
        self._task = asyncio.create_task(self._follow(letters))

    async def _follow(self, letters: DeadLetters) -> None:
        async with aclosing(letters.batches()) as batches:
            async for dead, seen in batches:
                self.take(dead)
                self.seen = seen
                self._news.set()

    def take(self, dead: list[ArchivedMessage]) -> None:
        self.ids.extend(message.id for message in dead)

    async def __aenter__(self) -> "Follower":
        await self.until(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def until(self, quantity: int, seconds: float = 20) -> None:
        """Wait until it has the first look and so many messages."""
        async with asyncio.timeout(seconds):
            while self.seen is None or len(self.ids) < quantity:
                self._news.clear()
                await self._news.wait()


async def test_a_full_notification_queue_does_not_end_it(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delivery check cannot NOTIFY while the queue is full."""
    value, refused = app.database.value, asyncio.Event()

    async def refuse_one(statement: str, *args: Any) -> Any:
        if statement == sql.NOTIFY and not refused.is_set():
            refused.set()
            raise asyncpg.ProgramLimitExceededError("too many notifications in the NOTIFY queue")
        return await value(statement, *args)

    monkeypatch.setattr(app.database, "value", refuse_one)
    async with Follower(app.database, events) as follower:
        await refused.wait()
        dead = await let_fail(connection, 2)
        await follower.until(2)
    assert follower.ids == dead


async def test_a_notification_delivers_dead_messages(
    app: App, events: Events, connection: Connection
) -> None:
    await let_fail(connection, 3)  # before it begins
    async with Follower(app.database, events) as follower:
        dead = await let_fail(connection, 3)
        await follower.until(3)
        dead += await let_fail(connection, 2)
        await follower.until(5)
    assert follower.ids == dead


async def test_it_continues_from_its_position(
    app: App, events: Events, connection: Connection
) -> None:
    async with Follower(app.database, events) as follower:
        dead = await let_fail(connection, 2)
        await follower.until(2)
    assert follower.seen is not None
    missed = await let_fail(connection, 3)
    async with Follower(app.database, events, seen=follower.seen) as again:
        await again.until(3)
    assert (follower.ids, again.ids) == (dead, missed)


async def test_a_message_that_is_committed_late_is_not_missed(
    app: App, events: Events, connection: Connection, connect: Connect
) -> None:
    other = await connect()
    async with Follower(app.database, events) as follower:
        await other.execute("begin")
        first = await let_fail(other, 1)
        second = await let_fail(connection, 1)
        await follower.until(1)
        assert follower.ids == second
        await other.execute("commit")
        await follower.until(2)
    assert follower.ids == second + first
    assert first < second


async def test_one_queue_may_be_followed(app: App, events: Events, connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    async with Follower(app.database, events, queue="other") as follower:
        await let_fail(connection, 2)
        dead = await let_fail(connection, 2, "other")
        await follower.until(2)
    assert follower.ids == dead


async def test_messages_that_failed_during_a_lost_session_are_delivered_after_it(
    app: App, events: Events, connection: Connection
) -> None:
    async with Follower(app.database, events) as follower:
        async with connection.transaction():
            dead = await let_fail(connection, 2)
            await connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity "
                "where application_name = 'notifyq dead watch' and datname = current_database()"
            )
        await follower.until(2)
        await events.wait(ListenerConnected, again=True)
        dead += await let_fail(connection, 1)
        await follower.until(3)
    assert follower.ids == dead


@pytest.mark.timeout(120)
async def test_a_restart_of_the_server_misses_nothing_and_repeats_nothing(
    mortal_server: Server, events: Events
) -> None:
    database = Database(mortal_server.dsn, settings=DatabaseSettings.load(retry_for=60))
    async with database, Follower(database, events) as follower:
        async with session(mortal_server.dsn) as connection:
            dead = await let_fail(connection, 3)
        await follower.until(3)
        await asyncio.to_thread(mortal_server.stop, force=True)
        await events.wait(ListenerLost)
        await asyncio.to_thread(mortal_server.start)
        async with session(mortal_server.dsn) as connection:
            dead += await let_fail(connection, 3)
        await follower.until(6, 40)
        async with session(mortal_server.dsn) as connection:
            dead += await let_fail(connection, 1)
        await follower.until(7)
        assert follower.ids == dead
        assert len(await Archive(database).dead()) == 7


@pytest.mark.parametrize("state", LIMITED)
async def test_a_refused_read_is_repeated(
    database: str, connection: Connection, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Database(database) as ours, Follower(ours, Events(), poll=0.1) as follower:
        async with refusing(connection, CALLS[0], state):
            await until(lambda: "refused for a test" in caplog.text, "the refusal is logged", 30)
            dead = await let_fail(connection, 2)
        await follower.until(2)
    assert sorted(follower.ids) == sorted(dead)
    errors = [it for it in caplog.records if it.levelno >= logging.ERROR]
    assert len(errors) == (state in {"55000", "XX000"})
    if errors:
        assert "dead messages: it works again" in caplog.text


@pytest.mark.parametrize("state", OF_ALL)
async def test_without_a_right_or_the_schema_it_ends(
    database: str, connection: Connection, state: str
) -> None:
    expected = AccessDeniedError if state == "42501" else SchemaMissingError
    async with (
        Database(database) as ours,
        Follower(ours, Events(), poll=0.1) as follower,
        refusing(connection, CALLS[0], state),
        asyncio.timeout(30),
    ):
        with pytest.raises(expected, match="refused for a test"):
            await follower._task


async def test_a_wrong_position_is_an_error(database: str) -> None:
    async with Database(database) as ours, asyncio.timeout(30):
        letters = DeadLetters(ours, seen="nonsense", telemetry=Events())
        with pytest.raises((DatabaseError, asyncpg.DataError)):
            await anext(letters.batches())
