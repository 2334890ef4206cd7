"""A hot standby serves what reads; what it cannot serve is refused."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import asyncpg
import pytest

from cli.programs import Notifyq
from database.pairs import Pair
from extremes.reading import read_metrics, read_pages, run_commands
from notifyq import App, DatabaseUnavailableError
from notifyq.database.pool import Database
from notifyq.notify.listener import Listener
from notifyq.streams.tail import Tail
from notifyq.telemetry import ListenerConnected
from support.database import Connection, session, until, until_equal
from support.running import Events

FILLED = """
select messages.create_queue('mail', max_attempts => 2), messages.create_stream('news');
select messages.subscribe('news', 'hub'), messages.publish('news', '1');
select messages.schedule('nightly', '0 3 * * *', 'mail', '1');
select messages.publish('mail', to_jsonb(n)) from generate_series(1, 5) as n;
select messages.finish(c.id, c.lock_token, 'failed', 'no') from messages.claim('{mail}', 2) as c;
select messages.finish(c.id, c.lock_token) from messages.claim('{mail}', 1) as c;
"""


async def until_replayed(connection: Connection, there: Connection) -> None:
    """Wait until the standby has all that the primary has."""
    wanted = await connection.fetchval("select pg_current_wal_lsn()::text")
    replayed = "select pg_last_wal_replay_lsn() >= $1::text::pg_lsn"
    await until_equal(lambda: there.fetchval(replayed, wanted), True, "the standby has replayed")


@pytest.mark.timeout(180)
async def test_a_standby_serves_what_reads(pair: Pair, tmp_path: Path) -> None:
    dsn = pair.standby.dsn
    async with session(pair.primary.dsn) as connection, session(dsn) as there:
        await connection.execute(FILLED)
        await until_replayed(connection, there)
        with Notifyq(dsn) as command:
            broken = run_commands(command, tmp_path, [1, 5])
            assert "a standby" in command("doctor", "--only", "primary").out
        broken += read_metrics(dsn)
        broken += await read_pages(dsn, there, [1, 5])
        assert not broken, "\n".join(broken)


@pytest.mark.timeout(60)
async def test_readers_with_a_position_of_their_own_follow_a_standby(pair: Pair) -> None:
    async with session(pair.primary.dsn) as connection, session(pair.standby.dsn) as there:
        await connection.execute(FILLED)
        position = await connection.fetchval("select messages.current_position()")
        await connection.execute(
            "select messages.publish('news', '2'), messages.publish('mail', '6')"
        )
        await connection.execute(
            "select messages.finish(c.id, c.lock_token, 'rejected', 'no') "
            "from messages.claim('{mail}', 1) as c"
        )
        dead = await connection.fetchval("select max(id) from messages.dead_message")
        await until_replayed(connection, there)
        database, app = Database(pair.standby.dsn), App(pair.standby.dsn)
        tail = Tail(database, "news", seen=position, telemetry=Events())
        async with database, aclosing(tail.events(poll=0.1)) as events, asyncio.timeout(20):
            assert [it.message for it in await anext(events)] == ["2"]
            await connection.execute("select messages.publish('news', '3')")
            assert [it.message for it in await anext(events)] == ["3"]
        letters = app.dead_letters(seen=position, telemetry=Events())
        async with app, aclosing(letters.batches()) as batches, asyncio.timeout(20):
            found, _ = await anext(batches)
            assert [it.id for it in found] == [dead]


async def test_a_standby_refuses_what_writes_and_unlogged_queues(pair: Pair) -> None:
    async with session(pair.primary.dsn) as connection, session(pair.standby.dsn) as there:
        await connection.execute(FILLED)
        await until_replayed(connection, there)
        for call in (
            "claim('{mail}', 1)", "next_batch('news', 'hub')", "publish('mail', '1')", "maintain()",
        ):  # fmt: skip
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await there.execute(f"select messages.{call}")
        with pytest.raises(DatabaseUnavailableError):
            await App(pair.standby.dsn).publish("mail", 1)
        await connection.execute("select messages.create_queue('brief', durable => false)")
        await until_replayed(connection, there)
        with Notifyq(pair.standby.dsn) as command:
            assert "unlogged" in command.refused("queues", "ls")
            command.good("ls", "--finished")
            command.good("stream", "ls")


async def test_a_reader_listens_once_its_standby_is_promoted(pair: Pair) -> None:
    received: list[str] = []
    events = Events()
    database = Database(pair.standby.dsn)
    listener = Listener(
        database,
        ["new_event"],
        lambda channel, payload: received.append(f"{channel} {payload}"),
        name="notifyq reader",
        telemetry=events,
        ping=0.1,
        reads_only=True,
    )
    async with database, listener:
        assert not listener.delivers
        await pair.standby.promote()
        await events.wait(ListenerConnected, 1, again=True)
        async with session(pair.standby.dsn) as connection:
            await connection.execute("select pg_notify('new_event', 'news:1')")
            await until(lambda: "new_event news:1" in received, "it is notified")
