"""Unlogged queues: the same calls, no archive, and ring queues that never block publishers."""

import asyncio

import pytest

from notifyq.database import advisory_locks
from notifyq.errors import InvalidArgumentError, QueueFullError, QueueNotEmptyError
from support.database import Connect, Connection, one_row, value

NUMBERS = "select array_agg(m.message::integer order by m.id) from messages.message as m"


@pytest.fixture
async def ring(connection: Connection) -> Connection:
    await value(
        connection, "create_queue", name="ring", durable=False, capacity=5, overflow="drop_oldest"
    )
    return connection


async def test_every_call_finds_messages_of_an_unlogged_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="v", durable=False, max_attempts=2)
    first = await value(connection, "publish", queue="v", message=1)
    many = [
        row[0]
        for row in await connection.fetch(
            "select messages.publish_many('v', array['2', '3']::jsonb[])"
        )
    ]
    assert many == [first + 1, first + 2]
    kept = await value(connection, "publish", queue="v", message=4, dedup_key="k")
    assert await value(connection, "publish", queue="v", message=5, dedup_key="k") == kept
    await connection.execute("insert into messages.message (queue, message) values ('v', '6')")
    logged = "select count(*) from only messages.message"
    assert await connection.fetchval(logged) == 0

    claimed = await connection.fetch("select * from messages.claim('{v}', 4)")
    assert [row["message"] for row in claimed] == [1, 2, 3, 4]
    one, two, three, four = [(row["id"], row["lock_token"]) for row in claimed]
    assert await connection.fetchval("select messages.finish($1, $2)", *one)
    assert not await connection.fetchval("select messages.finish($1, $2)", *one)
    assert await connection.fetchval("select messages.extend($1, $2)", *two)
    assert await connection.fetchval("select messages.release($1, $2)", *two)
    assert await connection.fetchval("select messages.retry($1, $2)", *three)
    assert await connection.fetchval("select messages.finish($1, $2, 'failed')", *four)
    assert [row["id"] for row in await connection.fetch("select * from messages.take('v', 1)")] == [
        two[0]
    ]
    # Only dead messages are archived.
    archive = await connection.fetch("select id, status from messages.message_archive")
    assert [tuple(row) for row in archive] == [(four[0], "failed")]
    info = await one_row(connection, "select * from messages.queue_info('v')")
    assert (info["durable"], info["finished"], info["dropped"]) == (False, 2, 0)
    assert (info["waiting"], info["scheduled"], info["locked"]) == (1, 1, 0)
    assert await connection.fetchval("select messages.drop_queue('v', true)") == 2
    # A standby can read again.
    assert not await connection.fetchval("select exists (select from pg_inherits as i where "
        "i.inhparent = 'messages.message'::regclass)")  # fmt: skip


async def test_a_claim_reads_durable_and_unlogged_queues(connection: Connection) -> None:
    await value(connection, "create_queue", name="v", durable=False)
    for queue in ("v", "default"):
        await value(connection, "publish", queue=queue, message=1)
    claimed = await connection.fetch("select * from messages.claim('{v,default}', 10)")
    ids, tokens = [row["id"] for row in claimed], [row["lock_token"] for row in claimed]
    finished = await connection.fetch(
        "select messages.finish_many($1, $2, array['success', 'success']"
        "::messages.message_status[])", ids, tokens
    )  # fmt: skip
    assert sorted(row[0] for row in finished) == sorted(ids)


async def test_another_session_with_the_lock_of_a_ring_queue_leaves_it_over_full(
    ring: Connection, connect: Connect
) -> None:
    """A queue may be called what locks.LEAD calls the process that reads the metrics."""
    assert await (await connect()).fetchval(advisory_locks.LEAD, ["ring"]) == [True]
    for number in range(10, 17):
        await value(ring, "publish", queue="ring", message=number)
    assert await ring.fetchval(NUMBERS) == [12, 13, 14, 15, 16]
    assert await ring.fetchval("select dropped from messages.queue_info('ring')") == 2
    assert await ring.fetchval("select count(*) from messages.message_archive") == 0


async def test_many_publishers_leave_no_more_than_the_capacity(
    ring: Connection, connect: Connect
) -> None:
    sessions = [await connect() for _ in range(8)]

    async def publish_some(session: Connection) -> None:
        for number in range(20):
            await value(session, "publish", queue="ring", message=number)

    async with asyncio.TaskGroup() as group:
        for session in sessions:
            group.create_task(publish_some(session))
    assert await ring.fetchval("select count(*) from messages.message") <= 5


async def test_an_unlogged_queue_can_reject_messages_over_capacity(connection: Connection) -> None:
    await value(connection, "create_queue", name="v", durable=False, capacity=1)
    await value(connection, "publish", queue="v", message=1)
    with pytest.raises(QueueFullError):
        await value(connection, "publish", queue="v", message=2)


async def test_a_queue_with_messages_cannot_change_durable(connection: Connection) -> None:
    await value(connection, "create_queue", name="v", durable=False)
    change = "select from messages.alter_queue($1, durable => $2)"
    for name, durable in (("v", True), ("default", False)):
        await value(connection, "publish", queue=name, message=1)
        with pytest.raises(QueueNotEmptyError, match="still has messages"):
            await connection.execute(change.replace("$1", f"'{name}'").replace("$2", str(durable)))
        await connection.execute(f"select messages.take('{name}')")
        await connection.execute(change.replace("$1", f"'{name}'").replace("$2", str(durable)))
    await value(connection, "publish", queue="default", message=1)
    assert await connection.fetchval("select count(*) from notifyq.message_unlogged") == 1


async def test_no_message_waits_for_an_unlogged_one(connection: Connection) -> None:
    await value(connection, "create_queue", name="v", durable=False)
    id_ = await value(connection, "publish", queue="v", message=1)
    for queue in ("v", "default"):
        with pytest.raises(InvalidArgumentError, match="unlogged queue"):
            await value(connection, "publish", queue=queue, message=1, after=[id_])
