"""Redrive: dead messages are published again, each once."""

from __future__ import annotations

import asyncio

import pytest

from notifyq.errors import InvalidArgumentError, QueueNotFoundError
from support.database import Connect, Connection, Notices, one_row, until_blocked

RETRY = "select array_agg(r) from messages.dead_retry(variadic $1::bigint[]) as r"


async def test_a_message_that_a_stream_has_refused_cannot_be_retried(
    connection: Connection,
) -> None:
    await connection.execute("select messages.create_stream('news')")
    id_ = await connection.fetchval(
        "select notifyq.receive_dead('s', '1', 'news', '1', null, '{}', null, 'too large')"
    )
    with pytest.raises(InvalidArgumentError, match=f"stream 'news' has refused message {id_}:"):
        await connection.fetchval(RETRY, [id_])


async def kill(connection: Connection, count: int = 1, queue: str = "default") -> list[int]:
    """Publish messages and let them fail; return their ids."""
    published = await connection.fetch(
        "select messages.publish($1, to_jsonb(n), 7, type => 't', headers => '{\"h\": 1}', "
        "dedup_key => 'k' || n) as id from generate_series(1, $2::integer) as n",
        queue,
        count,
    )
    ids = [row["id"] for row in published]
    await connection.execute(
        "select messages.finish(c.id, c.lock_token, 'failed') from messages.claim($1, $2) as c",
        [queue],
        count,
    )
    return ids


async def test_a_dead_message_is_published_again_as_a_new_one(connection: Connection) -> None:
    dead = await kill(connection, 2)
    kept = await connection.fetch("select * from messages.message_archive order by id")
    # A live message with the key is no hindrance.
    await connection.execute("select messages.publish('default', '0', dedup_key => 'k1')")
    new = await connection.fetchval(RETRY, [*reversed(dead), dead[0], 4711])
    again = await connection.fetch("select * from messages.message where id = any ($1)", new)
    for row, number in zip(sorted(again, key=lambda row: int(row["id"])), (1, 2), strict=True):
        assert (row["queue"], row["message"], row["priority"], row["type"]) == (
            "default",
            number,
            7,
            "t",
        )
        assert (row["headers"], row["attempts"], row["dedup_key"]) == ({"h": 1}, 0, None)
        assert row["state"] == "waiting"
        assert row["id"] not in dead
    assert await connection.fetch("select * from messages.message_archive order by id") == kept
    assert await connection.fetchval("select messages.dead_count()") == 0
    assert await connection.fetch("select * from messages.dead_list()") == []
    assert await connection.fetchval("select count(*) from messages.dead_message") == 2
    # Once, and only what is dead.
    taken = await connection.fetch("select id from messages.take('default', 9)")
    assert await connection.fetchval(RETRY, [*dead, taken[0]["id"]]) is None


async def test_without_recorded_steps_the_new_message_changes_as_any_other(
    connection: Connection,
) -> None:
    await connection.execute("select messages.create_queue('other')")
    await connection.execute(
        "select messages.create_queue('full', capacity => 1, overflow => 'drop_oldest')"
    )
    (new,) = await connection.fetchval(RETRY, await kill(connection))
    assert await connection.fetchval(
        "select messages.amend($1, '2', available_at => now() + interval '1 hour')", new
    )
    moved = await one_row(
        connection,
        "select done, refusals from messages.move_matching($1, 'other')",
        {"queue": "default", "until": "2100-01-01T00:00:00Z"},
    )
    assert (moved["done"], moved["refusals"]) == (1, [])
    (new,) = await connection.fetchval(RETRY, await kill(connection, queue="full"))
    newer = await connection.fetchval("select messages.publish('full', '1')")
    left = await connection.fetch("select id from messages.message where queue = 'full'")
    assert [row["id"] for row in left] == [newer]
    dropped = "select details from messages.message_archive where id = $1"
    assert "the queue was full" in await connection.fetchval(dropped, new)


async def test_a_message_that_fails_again_is_published_again(connection: Connection) -> None:
    dead = await kill(connection)
    (new,) = await connection.fetchval(RETRY, dead)
    await connection.execute(
        "select messages.finish(c.id, c.lock_token, 'failed') from messages.claim() as c"
    )
    listed = await connection.fetch("select id from messages.dead_list()")
    assert [row["id"] for row in listed] == [new]
    assert await connection.fetchval("select messages.redrive()") == 1


@pytest.mark.parametrize(("end", "left"), [("commit", 10), ("rollback", 20)])
async def test_of_two_sessions_the_second_publishes_what_the_first_has_not(
    connect: Connect, end: str, left: int
) -> None:
    one, two, observer = await connect(), await connect(), await connect()
    dead = await kill(one, 20)
    await one.execute("begin")
    assert len(await one.fetchval(RETRY, dead[:10])) == 10
    waiting = asyncio.create_task(two.fetchval(RETRY, list(reversed(dead))))
    await until_blocked(observer, two)
    await one.execute(end)
    assert len(await waiting) == left
    assert await one.fetchval("select count(*) from messages.message") == 20
    assert await one.fetchval("select messages.dead_count()") == 0


async def test_a_refused_message_stays_dead_and_stops_no_other(
    connection: Connection, notices: Notices
) -> None:
    """Whether the condition chooses by time or by content: the next ones are published."""
    await kill(connection, 6)
    await connection.execute(
        "select messages.alter_queue('default', payload_schema => "
        """'{"type": "integer", "minimum": 3}')"""
    )
    assert await connection.fetchval("select messages.redrive(quantity => 3)") == 3
    waiting = "select array_agg(message::integer order by id) from messages.message"
    assert await connection.fetchval(waiting) == [3, 4, 5]
    refused = [one for one in await notices.received("WARNING") if "published again" in one]
    assert len(refused) == 2
    assert "1 is not published again: 'default' does not take this message" in refused[0]
    row = await one_row(
        connection,
        "select found, done from messages.dead_retry_matching($1)",
        {"until": "2100-01-01T00:00:00Z"},
    )
    assert row["done"] == 1
    assert await connection.fetchval(waiting) == [3, 4, 5, 6]
    assert await connection.fetchval("select messages.dead_count()") == 2
    assert await connection.fetchval("select messages.redrive()") == 0


async def test_two_redrives_share_the_work(connect: Connect) -> None:
    one, two, observer = await connect(), await connect(), await connect()
    await kill(one, 5)
    await one.execute("begin")
    assert await one.fetchval("select messages.redrive(quantity => 3)") == 3
    waiting = asyncio.create_task(two.fetchval("select messages.redrive(quantity => 3)"))
    await until_blocked(observer, two)
    await one.execute("commit")
    assert await waiting == 2


async def test_a_redrive_takes_the_oldest(connection: Connection) -> None:
    """Its conditions are tested in test_gates.py."""
    dead = await kill(connection, 3)
    redriven = "select array_agg(archive_id order by archive_id) from notifyq.redrive"
    assert await connection.fetchval("select messages.redrive(quantity => 2)") == 2
    assert await connection.fetchval(redriven) == dead[:2]


async def test_messages_of_a_dropped_queue_stop_no_others(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('gone')")
    gone = await kill(connection, 1, "gone")
    await kill(connection, 1)
    await connection.execute("select messages.drop_queue('gone')")
    assert await connection.fetchval("select messages.redrive()") == 1
    with pytest.raises(QueueNotFoundError):
        await connection.fetchval(RETRY, gone)
    with pytest.raises(QueueNotFoundError):
        await connection.fetchval("select messages.redrive('gone')")
    assert await connection.fetchval("select messages.dead_count()") == 1


async def test_a_redrive_of_successes_is_refused(connection: Connection) -> None:
    with pytest.raises(InvalidArgumentError, match="status must not be success"):
        await connection.fetchval("select messages.redrive(status => 'success')")
    with pytest.raises(InvalidArgumentError, match="quantity must be between"):
        await connection.fetchval("select messages.redrive(quantity => 0)")


async def test_a_record_goes_with_its_dead_message(connection: Connection) -> None:
    dead = await kill(connection, 3)
    await connection.fetchval(RETRY, dead[:2])
    deleted = await connection.fetchval("select messages.dead_delete(variadic $1)", dead[1:])
    assert deleted == 2
    kept = await connection.fetch("select archive_id from notifyq.redrive")
    assert [row["archive_id"] for row in kept] == dead[:1]


async def test_a_record_goes_with_the_day_of_its_dead_message(connection: Connection) -> None:
    dead = await kill(connection, 2)
    await connection.execute(
        "with moved as (delete from messages.message_archive where id = $1 returning *) "
        "insert into messages.message_archive (id, created_at, available_at, locked_at, "
        "archived_at, lock_token, xid, priority, attempts, status, queue, message, headers) "
        "select id, created_at, available_at, locked_at, archived_at - interval '40 days', "
        "lock_token, xid, priority, attempts, status, queue, message, headers from moved",
        dead[0],
    )
    await connection.fetchval(RETRY, dead)
    await connection.execute("select messages.maintain()")
    kept = await connection.fetch("select archive_id from notifyq.redrive")
    assert [row["archive_id"] for row in kept] == dead[1:]
