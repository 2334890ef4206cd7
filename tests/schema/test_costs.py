"""Costs: how many pages a call reads, which must not grow with what it has no business with.

After a table was truncated or analysed a first call is not counted: it makes its plans anew and
reads the catalog for that.
"""

from __future__ import annotations

import json

import pytest

from support.database import Connect, Connection, publish

CLAIM = "select * from messages.claim(quantity => 10)"
FULL_SCAN = "select * from messages.claim(quantity => 10, full_scan => true)"


async def pages(connection: Connection, statement: str) -> int:
    """Return how many pages the statement has read, each as often as it was."""
    plan = await connection.fetchval(f"explain (analyze, buffers, format json) {statement}")
    node = json.loads(plan)[0]["Plan"]
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


async def usual(connection: Connection) -> int:
    """Return what a claim of ten reads where there is nothing else; warms the session up."""
    await publish(connection, 100)
    return [await pages(connection, CLAIM) for _ in range(7)][-1]


async def hold(connect: Connect) -> Connection:
    """Open a snapshot that keeps every row that is deleted from now on."""
    holder = await connect()
    await holder.execute("begin isolation level repeatable read; select from messages.queue")
    return holder


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_a_claim_reads_dead_rows_once(
    connection: Connection, connect: Connect, *, is_analysed: bool
) -> None:
    clean = await usual(connection)
    await hold(connect)
    await publish(connection, 40_000)
    await connection.execute("delete from messages.message where state = 'waiting'")
    await publish(connection, 1000)
    if is_analysed:
        await connection.execute("analyze messages.message")
    assert await pages(connection, CLAIM) > 10 * clean
    # The first call plans its queries again, for which it reads some pages of the catalog.
    for catalog in (8, *[0] * 6):
        assert await pages(connection, CLAIM) < 2 * clean + catalog
    assert await pages(connection, FULL_SCAN) > 10 * clean


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_a_claim_reads_none_of_the_backlog_of_other_priorities(
    connection: Connection, *, is_analysed: bool
) -> None:
    clean = await usual(connection)
    await connection.execute("truncate messages.message")
    await connection.execute(
        "insert into messages.message (message, priority) "
        "select '1', case when n % 100 = 0 then n % 7 else -1 end "
        "from generate_series(1, 20000) as n"
    )
    if is_analysed:
        await connection.execute("analyze messages.message")
    await pages(connection, CLAIM)
    for _ in range(30):
        assert await pages(connection, CLAIM) < 2 * clean


@pytest.mark.parametrize("is_analysed", [False, True])
async def test_a_claim_reads_nothing_of_what_is_scheduled(
    connection: Connection, *, is_analysed: bool
) -> None:
    clean = await usual(connection)
    await connection.execute(
        "select messages.publish_many('default', "
        "array(select to_jsonb(n) from generate_series(1, 10000) as n), delay => '1 day') "
        "from generate_series(1, 5)"
    )
    if is_analysed:
        await connection.execute("analyze messages.message")
    await pages(connection, CLAIM)
    # The indexes are deeper, but that is all.
    assert await pages(connection, CLAIM) < 2 * clean
    await connection.execute("delete from messages.message where state = 'waiting'")
    await pages(connection, CLAIM)
    assert await pages(connection, CLAIM) < 2 * clean


async def test_a_claim_does_not_read_each_of_many_queues(connection: Connection) -> None:
    clean = await usual(connection)
    await connection.execute("truncate messages.message")
    await connection.execute(
        "select messages.create_queue('q' || n) from generate_series(1, 1000) as n"
    )
    await publish(connection, 200, "q700")
    await pages(connection, CLAIM)
    for _ in range(7):
        assert await pages(connection, CLAIM) < 2 * clean
    named = (
        "select * from messages.claim((select array_agg('q' || n) from generate_series(1, 1000) "
        "as n), 10)"
    )
    await pages(connection, named)
    for _ in range(7):
        # Two or three for each name, to see that there is such a queue.
        assert await pages(connection, named) < 2 * clean + 3000


async def test_a_finish_does_not_read_what_others_have_locked(connection: Connection) -> None:
    await publish(connection, 3000)
    statement = (
        "select messages.finish_many(array_agg(c.id), array_agg(c.lock_token), "
        "array_agg('success'::messages.message_status)) from messages.claim(quantity => 10) as c"
    )
    before = [await pages(connection, statement) for _ in range(7)][-1]
    await connection.execute("select messages.claim(quantity => 2500)")
    for _ in range(7):
        assert await pages(connection, statement) < 2 * before


@pytest.mark.parametrize("call", ["messages.backlog()", "notifyq.fire_schedules()"])
async def test_what_is_locked_is_read_once_for_all_queues_without_a_worker(
    connection: Connection, call: str
) -> None:
    await connection.execute(
        "select messages.create_queue(q), messages.publish(q, '1'), "
        "  messages.schedule(q, '* * * * *', q, when_unserved => 'skip') "
        "from (select 'q' || n from generate_series(1, 20) as n) as u (q)"
    )
    await connection.execute("update messages.message set available_at = now() - interval '2 min'")

    async def read() -> int:
        await connection.execute("update messages.schedule set next_at = now() - interval '1 s'")
        return await pages(connection, f"select * from {call}")

    nothing = [await read() for _ in range(3)][-1]
    await publish(connection, 2000)
    await connection.execute("select from messages.claim('{default}', 2000)")
    once = await pages(connection, "select queue from messages.message where state = 'locked'")
    assert [await read() for _ in range(3)][-1] < nothing + 5 * once


async def test_a_statement_into_many_queues_reads_its_messages_once(connection: Connection) -> None:
    await connection.execute(
        "select messages.create_queue('q' || n) from generate_series(1, 50) as n"
    )
    async with connection.transaction():
        await connection.execute(
            "insert into messages.message (queue, message) "
            "select 'q' || 1 + n % 50, '1' from generate_series(1, 1000) as n"
        )
        fetched = await connection.fetchval(
            "select idx_tup_fetch from pg_stat_xact_all_tables "
            "where relid = 'messages.message'::regclass"
        )
    assert 1000 <= fetched < 2000
