"""Locks: any role can take any advisory lock, so correctness must not depend on them."""

from __future__ import annotations

import asyncio

import pytest

from notifyq.errors import QueueBusyError
from security.conftest import Enter
from support.database import Connect, Connection, Notifications, one_row, until_blocked, value

KEYS = {
    "publishing": "hashtextextended('default', 7305427001)",
    "suppressed": "hashtextextended('default', 7305427004)",
    "slot 1": "hashtextextended('default', 7305427101)",
    "slot 2": "hashtextextended('default', 7305427102)",
    "slot 3": "hashtextextended('default', 7305427103)",
    "slot 4": "hashtextextended('default', 7305427104)",
    "maintenance once": "7305427002",
}


@pytest.mark.parametrize("lock", ["pg_advisory_lock", "pg_advisory_lock_shared"])
async def test_a_role_that_holds_all_keys_stops_nothing(
    enter: Enter, connect: Connect, connection: Connection, lock: str
) -> None:
    mallory = await enter("mallory")
    for key in KEYS.values():
        await mallory.execute(f"select {lock}({key})")
    publisher, worker = await enter("publisher"), await enter("worker")
    async with asyncio.timeout(10):
        id_ = await value(publisher, "publish", queue="default", message=1)
        await publisher.execute("insert into messages.message (message) values ('2'), ('3')")
        claimed = await worker.fetch("select * from messages.claim(quantity => 10)")
        assert [row["message"] for row in claimed] == [1, 2, 3]
        assert await worker.fetchval("select messages.finish($1, 1)", id_)
        report = await one_row(worker, "select (messages.maintain()).*")
        assert report["partitions_made"] is not None
        assert await worker.fetchval("select notifyq.take_wake_slots('{default}')") == [None]
        assert not await worker.fetchval("select notifyq.suppress('default')")


async def test_a_foreign_lease_suppresses_notifications_until_maintenance(
    enter: Enter, notifications: Notifications, connection: Connection
) -> None:
    mallory = await enter("mallory")
    await mallory.execute(f"select pg_advisory_lock({KEYS['suppressed']})")
    await value(connection, "publish", queue="default", message=1)
    assert await notifications.received() == []
    await connection.execute("select messages.maintain()")
    assert [notification.queue for notification in await notifications.received()] == ["default"]


async def test_a_drop_waits_for_a_publisher_that_found_the_key_taken(
    enter: Enter, connect: Connect, connection: Connection
) -> None:
    mallory, publisher = await enter("mallory"), await enter("publisher")
    await mallory.execute(f"select pg_advisory_lock({KEYS['publishing']})")
    await publisher.execute("begin")
    await value(publisher, "publish", queue="default", message=1)
    await mallory.execute("select pg_advisory_unlock_all()")
    drop = asyncio.create_task(value(connection, "drop_queue", name="default", force=True))
    await until_blocked(await connect(), connection)
    await publisher.execute("commit")
    assert await drop == 1
    assert await connection.fetchval("select count(*) from messages.message") == 0


async def test_a_drop_that_is_blocked_names_the_reason(
    enter: Enter, connection: Connection
) -> None:
    mallory = await enter("mallory")
    await mallory.execute(f"select pg_advisory_lock({KEYS['publishing']})")
    with pytest.raises(QueueBusyError, match="transactions that use queue 'default' stay open"):
        await value(connection, "drop_queue", name="default")
    assert await connection.fetchval("select count(*) from messages.queue") == 1
