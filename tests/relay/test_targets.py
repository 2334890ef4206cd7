"""A target that is down, full or restored, and a source that is restored or restarted."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from notifyq.config import RelaySettings
from notifyq.database.pool import Database
from notifyq.errors import LostReceiptsError
from notifyq.relay import (
    Relay,
    RelayMoved,
    RelayResumed,
    RelayStalled,
    RelayStarted,
    StreamRelay,
)
from notifyq.server import Server
from relay.relaying import drained, fill, payloads, relaying
from support.database import Connection, open_session, session, until, until_equal
from support.running import Events, statuses


async def test_a_full_target_receives_as_many_as_it_can(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await there.execute("select messages.alter_queue('default', capacity => 5)")
    await fill(connection, 1, 8)
    async with relaying(database, far):
        await until_equal(
            lambda: payloads(there), [1, 2, 3, 4, 5], "as many are moved as there is room for"
        )
        await there.execute("select messages.take('default', 5)")
        await until_equal(lambda: payloads(there), [6, 7, 8], "the rest is moved", 30)
    assert await statuses(connection) == {"success": 8}


async def test_a_target_that_was_restored_is_refused_until_it_is_accepted(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await fill(connection, 1, 3)
    await drained(database, far)
    # What a backup of before does.
    await there.execute("truncate messages.message, notifyq.relay_receipt")
    await fill(connection, 4, 2)
    with pytest.raises(LostReceiptsError, match="restored to an earlier state"):
        await drained(database, far)
    assert await payloads(there) == []
    assert await payloads(connection) == [4, 5]
    await drained(database, far, accept_restored=True)
    assert await payloads(there) == [4, 5]


async def test_a_restored_source_sends_only_new_messages(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await fill(connection, 1, 3)
    await connection.execute("create table backup as select * from messages.message")
    await drained(database, far)
    await connection.execute(
        "truncate messages.message_archive; "
        "insert into messages.message overriding system value select * from backup; "
        "delete from messages.message where message = '3'; "
        "alter sequence messages.message_id_seq restart with 3; drop table backup"
    )
    await fill(connection, 33, 1)  # which has the id that 3 had
    done = await drained(database, far)
    assert done.counts["known"] == 2
    assert await payloads(there) == [1, 2, 3, 33]


@pytest.mark.timeout(120)
async def test_both_servers_are_restarted(
    database: str,
    connection: Connection,
    mortal_server: Server,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    events = Events()
    async with relaying(database, mortal_server.dsn, events=events, hold=0.2, batch=5):
        await fill(connection, 1, 20)
        await events.wait(RelayMoved)
        await asyncio.to_thread(mortal_server.stop)
        await fill(connection, 21, 20)
        await events.wait(RelayStalled)
        # Those of the source end as well, while the target is away.
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name like 'notifyq%'"
        )
        await asyncio.to_thread(mortal_server.start)
        await events.wait(RelayResumed)
        await until_equal(lambda: statuses(connection), {"success": 40}, "all are moved", 30)
    lines = [it.getMessage() for it in caplog.records if it.getMessage().startswith("the target: ")]
    assert lines[0].endswith("; all messages wait for it")
    assert lines[1:] == ["the target: it works again"]
    there = await open_session(mortal_server.dsn)
    assert sorted(await payloads(there)) == list(range(1, 41))
    await there.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("of_stream", [False, True])
async def test_a_stop_does_not_wait_for_a_source_that_is_away(
    database: str,
    mortal_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    *,
    of_stream: bool,
) -> None:
    async with session(mortal_server.dsn) as here:
        await here.execute("select messages.create_stream('s'), messages.subscribe('s', 'a')")
    source, target, events = Database(mortal_server.dsn), Database(database), Events()
    given: dict[str, Any] = {"settings": RelaySettings.load(poll=0.1), "telemetry": events}
    made: Relay | StreamRelay
    if of_stream:
        made = StreamRelay(source, target, "s", "a", "default", **given)
    else:
        made = Relay(source, target, {"default": "default"}, **given)
    tries: list[str] = []
    persist = Database.persist

    async def noted(database: Database, statement: str, *args: Any, **options: Any) -> Any:
        if database is not source:
            return await persist(database, statement, *args, **options)
        tries.append(statement)
        try:
            return await persist(database, statement, *args, **options)
        finally:
            tries.remove(statement)

    monkeypatch.setattr(Database, "persist", noted)
    task = asyncio.create_task(made.run())
    await events.wait(RelayStarted)
    await asyncio.to_thread(mortal_server.stop, force=True)
    await until(lambda: tries, "it tries to reach the source", 30)
    made.stop()
    async with asyncio.timeout(20):
        await task


@pytest.mark.timeout(120)
async def test_a_relay_of_a_stream_stops_while_its_target_is_away(
    database: str,
    connection: Connection,
    mortal_server: Server,
) -> None:
    await connection.execute("select messages.create_stream('s'), messages.subscribe('s', 'a')")
    events = Events()
    made = StreamRelay(
        Database(database), Database(mortal_server.dsn), "s", "a", "default",
        settings=RelaySettings.load(poll=60, hold=0), telemetry=events,
    )  # fmt: skip
    task = asyncio.create_task(made.run())
    await events.wait(RelayStarted)
    await asyncio.to_thread(mortal_server.stop, force=True)
    await connection.execute("select messages.publish('s', '1')")
    await events.wait(RelayStalled)
    made.stop()
    async with asyncio.timeout(20):
        await task
