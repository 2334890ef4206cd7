"""Each message is moved once: killed relays, restarted servers, late commits."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from notifyq.relay import RelayMoved
from relay.relaying import command, drained, fill, payloads, relaying, until_there
from support.database import Connect, Connection, until
from support.dying import dying
from support.running import Events, statuses


@pytest.mark.timeout(120)
async def test_a_relay_is_killed_at_every_step(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    """Each relay is killed one step later than the last one, and the next one continues."""
    steps, sent = await dying(Path(__file__).with_name("killed.py"), database, far)
    assert steps > 12
    assert sorted(await payloads(there)) == list(range(sent))
    assert await statuses(connection) == {"success": sent}


async def until_waiting(observer: Connection, dsn: str, what: str, count: int = 1) -> None:
    """Wait until so many sessions of that database wait for a lock."""
    name = dsn.rpartition("/")[2]
    await until(
        lambda: observer.fetchval(
            "select count(*) = $3 from pg_stat_activity where datname = $1 "
            "and wait_event_type = 'Lock' and query like $2",
            name,
            f"%.{what}(%",
            count,
        ),
        f"a session waits in {what}",
    )


async def test_messages_committed_after_their_relay_was_killed_are_known(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    """The target is still at it when another relay sends the same: that one waits, and knows."""
    await fill(connection, 1, 50)
    lock = there.transaction()
    await lock.start()
    await there.execute("lock table messages.message in share mode")
    async with command(database, far, "--queue", "default") as program:
        await until_waiting(connection, far, "receive_many")
        program.send_signal(signal.SIGKILL)
        await program.wait()
    await connection.execute("update messages.message set lock_expires_at = now()")
    await connection.execute("select messages.reap()")
    await connection.execute("update messages.message set available_at = now(), state = 'waiting'")
    events = Events()
    async with relaying(database, far, events=events):
        await until_waiting(connection, far, "receive_many", 2)
        await lock.rollback()
        await events.wait(RelayMoved)
    assert await payloads(there) == list(range(1, 51))
    assert await statuses(connection) == {"success": 50}


async def test_messages_received_before_their_relay_was_killed_are_only_finished(
    database: str, far: str, connection: Connection, connect: Connect, there: Connection
) -> None:
    await fill(connection, 1, 50)
    holder = await connect()
    lock = holder.transaction()
    await lock.start()
    await holder.execute("lock table messages.message_archive in share mode")
    async with command(database, far, "--queue", "default") as program:
        await until_waiting(connection, database, "relay_finish")
        program.send_signal(signal.SIGKILL)
        await program.wait()
    assert await payloads(there) == list(range(1, 51))
    ids = await there.fetch("select id from messages.message order by id")
    await connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and application_name like 'notifyq%'"
    )
    await lock.rollback()
    await connection.execute("update messages.message set lock_expires_at = now()")
    await connection.execute("select messages.reap()")
    await connection.execute("update messages.message set available_at = now(), state = 'waiting'")
    done = await drained(database, far)
    assert done.counts["known"] == 50
    assert await payloads(there) == list(range(1, 51))
    assert await there.fetch("select id from messages.message order by id") == ids
    results = await connection.fetch("select result from messages.message_archive order by id")
    assert [row[0]["id"] for row in results] == [row[0] for row in ids]


async def test_several_relays_of_one_queue(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    events = Events()
    async with (
        relaying(database, far, events=events, batch=20) as one,
        relaying(database, far, events=events, batch=20) as two,
    ):
        for first in range(0, 2000, 100):
            await fill(connection, first, 100)
        await until(lambda: one.counts["moved"] + two.counts["moved"] == 2000, "all are moved", 20)
    assert sorted(await payloads(there)) == list(range(2000))
    assert await statuses(connection) == {"success": 2000}
    assert min(one.counts["moved"], two.counts["moved"]) > 0


async def test_the_command_stops_at_a_signal(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await fill(connection, 1, 10)
    async with command(database, far, "--queue", "default", "--json") as program:
        await until_there(there, 10)
        program.send_signal(signal.SIGTERM)
        out, _ = await program.communicate()
    assert program.returncode == 0
    assert b'"moved":10' in out
