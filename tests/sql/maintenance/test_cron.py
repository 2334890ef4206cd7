"""pg_cron: the one thing that must work with no worker and no call of ours is its firing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from support.database import (
    Connection,
    Notification,
    archived,
    expire,
    install,
    open_session,
    publish,
    rows,
    session,
    value,
)

pytestmark = [pytest.mark.cron, pytest.mark.timeout(120)]

JOBS = "select jobname, schedule from cron.job where jobname like 'notifyq %' order by jobname"
COMMANDS = "select jobname, command from cron.job where jobname like 'notifyq %'"


@pytest.fixture
async def cron_connection(server: str) -> AsyncIterator[Connection]:
    """Give a session in the one database that pg_cron serves, with the schema installed."""
    connection = await open_session(server)
    await install(connection)
    yield connection
    await connection.execute("""
        select cron.unschedule(j.jobid) from cron.job as j where j.jobname like 'notifyq %';
        set client_min_messages = error;
        drop schema messages, notifyq cascade;
        drop extension pg_cron;
    """)
    await connection.close()


async def test_pg_cron_reaps_fires_and_notifies_without_workers(
    cron_connection: Connection,
) -> None:
    received: asyncio.Queue[Notification] = asyncio.Queue()

    def receive(_: object, __: int, channel: str, payload: object) -> None:
        queue, _separator, spans = str(payload).partition(":")
        received.put_nowait(Notification(channel, queue, spans))

    await install(cron_connection)
    jobs = await cron_connection.fetch(JOBS)
    assert [job["jobname"] for job in jobs] == ["notifyq maintain", "notifyq purge", "notifyq reap"]

    await value(cron_connection, "create_queue", name="cron")
    left, waiting = await publish(cron_connection, 2, "cron")
    await rows(cron_connection, "claim_id", id=left, worker="dead worker")
    await expire(cron_connection, left)
    await value(cron_connection, "create_queue", name="clock")
    await value(cron_connection, "schedule", name="s", cron="@hourly", queue="clock")
    await cron_connection.execute(
        "update messages.schedule set next_at = date_trunc('hour', clock_timestamp())"
    )
    for channel in ("new_message", "dead_message"):
        await cron_connection.add_listener(channel, receive)

    # 1.4 knows minutes only; every later version runs it every 10 seconds.
    patience = 65 if jobs[0]["schedule"] == "* * * * *" else 15
    missing = {
        ("dead_message", f"cron:{left}"),
        ("new_message", f"cron:{waiting}"),
        ("new_message", f"clock:{waiting + 1}"),
    }
    async with asyncio.timeout(patience):
        while missing:
            notification = await received.get()
            missing.discard((notification.channel, notification.payload))
    (row,) = await archived(cron_connection, left)
    assert (row["status"], row["handled_by"]) == ("lock_expired", "dead worker")


async def test_what_is_urgent_does_not_wait_for_the_rest(
    cron_connection: Connection, server: str
) -> None:
    """A retention may run for minutes; here it is a transaction that stays open."""
    jobs = {job["jobname"]: job["command"] for job in await cron_connection.fetch(COMMANDS)}
    await value(cron_connection, "create_queue", name="cron")
    await value(cron_connection, "schedule", name="s", cron="@hourly", queue="cron")
    [left] = await publish(cron_connection, 1, "cron")
    await rows(cron_connection, "claim_id", id=left, worker="dead worker")
    async with session(server) as other, other.transaction():
        await other.execute(jobs["notifyq maintain"])
        await expire(cron_connection, left)
        await cron_connection.execute(
            "update messages.schedule set next_at = date_trunc('hour', clock_timestamp())"
        )
        await cron_connection.execute(jobs["notifyq reap"])
        assert len(await archived(cron_connection, left)) == 1
        assert await cron_connection.fetchval("select count(*) from messages.message") == 1
