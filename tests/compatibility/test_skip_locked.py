"""Guarantees D1 to D13: a queue by SKIP LOCKED in the caller's transaction (Devious SQL)."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

import asyncpg
import pytest

from compatibility.conftest import Mortal
from notifyq.server import Server
from support.database import (
    Connect,
    Connection,
    install,
    publish,
    rows,
    session,
    terminate,
    until,
    value,
)
from support.servers import kept_server

ARTICLE = """
    delete from messages.message
    using (
      select id from messages.message
      where queue = 'default' and state = 'waiting'
      order by priority desc, id
      limit $1
      for update skip locked
    ) as picked
    where message.id = picked.id
    returning message.id
"""


async def take(connection: Connection, quantity: int, queue: str = "default") -> list[int]:
    return [row["id"] for row in await rows(connection, "take", queue=queue, quantity=quantity)]


async def test_d1_an_insert_sends_and_outlives_a_crash(mortal: Mortal) -> None:
    connection = await mortal.connect()
    ids = await connection.fetch(
        "insert into messages.message (message) values ('1'), ('2') returning id"
    )
    await mortal.crash()
    assert await take(await mortal.connect(), 9) == [row["id"] for row in ids]


async def test_d2_two_that_take_at_once_get_other_ones_and_do_not_wait(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    ids = await publish(connection, 20)
    async with connection.transaction(), other.transaction():
        assert await take(connection, 10) == ids[:10]
        await other.execute("set lock_timeout = '90ms'")
        assert await take(other, 10) == ids[10:]


async def test_d3_a_second_take_does_not_wait(connection: Connection, connect: Connect) -> None:
    other = await connect()
    await publish(connection, 1)
    async with connection.transaction():
        [id_] = await take(connection, 1)
        await other.execute("set lock_timeout = '1ms'")
        began = time.monotonic()
        assert await take(other, 1) == []
        assert time.monotonic() - began < 0.1 or await is_quick(other)
        # What the article begins with would wait.
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.execute("select from messages.message where id = $1 for update", id_)


async def is_quick(other: Connection) -> bool:
    """Whether a take that finds nothing is quick once the session knows the function."""
    took = []
    for _ in range(5):
        began = time.monotonic()
        assert await take(other, 1) == []
        took.append(time.monotonic() - began)
    return min(took) < 0.1


async def test_d4_as_many_as_there_are(connection: Connection) -> None:
    ids = await publish(connection, 3)
    stored = await connection.fetch("select * from messages.message order by id")
    taken = await connection.fetch("select * from messages.take('default', 10)")
    assert [row["id"] for row in taken] == ids
    # Full rows, as they were in the table.
    assert taken == stored
    assert await take(connection, 10) == []


async def test_d5_a_rollback_or_a_lost_connection_puts_all_back(
    connection: Connection, connect: Connect
) -> None:
    ids = await publish(connection, 10)
    doomed = await connect()
    for end in ("rollback", "lost"):
        await doomed.execute("begin")
        assert await take(doomed, 10) == ids
        if end == "rollback":
            await doomed.execute("rollback")
        else:
            await terminate(connection, doomed)
    assert await take(connection, 10) == ids
    assert await rows(connection, "message_list") == []


async def test_d6_nothing_is_lost_or_doubled_by_rollbacks(
    connection: Connection, connect: Connect
) -> None:
    ids = await publish(connection, 200)
    committed: list[int] = []

    async def work(session: Connection, seed: int) -> None:
        dice = random.Random(seed)
        while True:
            await session.execute("begin")
            taken = await take(session, dice.randint(1, 9))
            await asyncio.sleep(0)
            if dice.random() < 0.3:
                await session.execute("rollback")
                continue
            await session.execute("commit")
            committed.extend(taken)
            if not taken and len(committed) >= len(ids):
                return

    sessions = [await connect() for _ in range(4)]
    async with asyncio.timeout(30):
        await asyncio.gather(*(work(session, n) for n, session in enumerate(sessions)))
    assert sorted(committed) == ids


@pytest.mark.parametrize("by", ["take", "the article"])
async def test_d7_it_goes_beside_claims_and_owners(
    connection: Connection, connect: Connect, by: str
) -> None:
    ids = await publish(connection, 6)
    owner, worker = await connect(), await connect()
    await owner.fetch("call messages.wait(array['default'], '0')")
    assert [row["id"] for row in await rows(worker, "claim", quantity=2)] == ids[1:3]
    async with connection.transaction():
        if by == "take":
            assert await take(connection, 2) == ids[3:5]
        else:
            assert [row["id"] for row in await connection.fetch(ARTICLE, 2)] == ids[3:5]
        await rows(worker, "maintain")
        assert [row["id"] for row in await rows(worker, "claim", quantity=9)] == ids[5:]
    assert await owner.fetchval("select messages.finish_owned()")
    for token, id_ in ((1, ids[1]), (1, ids[2]), (1, ids[5])):
        assert await value(worker, "finish", id=id_, lock_token=token)
    archived = {row["id"] for row in await rows(connection, "archive_list")}
    assert archived == set(ids) - (set() if by == "take" else set(ids[3:5]))


async def test_d8_the_number_is_free(connection: Connection) -> None:
    ids = await publish(connection, 1200)
    assert await take(connection, 1) == ids[:1]
    assert await take(connection, 10) == ids[1:11]
    assert await take(connection, 1000) == ids[11:1011]


@pytest.mark.parametrize("forbidden", ["hashjoin,mergejoin,material", "nestloop", "indexscan"])
async def test_d9_exactly_that_many_under_any_plan(connection: Connection, forbidden: str) -> None:
    await publish(connection, 300)
    for method in forbidden.split(","):
        await connection.execute(f"set enable_{method} = off")
    for _ in range(10):
        assert len(await take(connection, 10)) == 10
    assert await connection.fetchval("select count(*) from messages.message") == 200


async def test_d10_in_the_order_of_ids_wherever_the_rows_lie(connection: Connection) -> None:
    ids = await publish(connection, 1000)
    await connection.execute("delete from messages.message where id % 2 = 0")
    await connection.execute("vacuum messages.message")
    ids = [id_ for id_ in ids if id_ % 2] + await publish(connection, 500)
    assert await take(connection, 1000) == ids


async def test_d11_by_queue_and_by_priority(connection: Connection) -> None:
    await value(connection, "create_queue", name="topic")
    await publish(connection, 2)
    ids = [
        await value(connection, "publish", queue="topic", message=1, priority=priority)
        for priority in (1, 9, 1, 9)
    ]
    assert await take(connection, 3, "topic") == [ids[1], ids[3], ids[0]]
    assert await take(connection, 9, "topic") == [ids[2]]


@pytest.fixture
def vacuumed_server() -> Iterator[Server]:
    """Give a server whose minute of autovacuum lasts a second."""
    with kept_server(autovacuum="on", autovacuum_naptime="1s") as server:
        server.start()
        yield server


async def test_d12_autovacuum_keeps_up(vacuumed_server: Server) -> None:
    """Ten minutes at a fixed rate: in each some thousand messages, and one turn of autovacuum."""
    minutes, quantity = 10, 3000
    sizes = []
    async with session(vacuumed_server.dsn) as connection:
        await install(connection)
        options = await connection.fetchval(
            "select reloptions from pg_class where oid = 'messages.message'::regclass"
        )
        assert "autovacuum_vacuum_scale_factor=0.01" in options
        for _ in range(minutes):
            for _ in range(3):
                await publish(connection, quantity // 3)
                assert len(await take(connection, quantity)) == quantity // 3
            # Nothing else vacuums: what makes room is autovacuum, by the settings of the table.
            await connection.execute("select pg_stat_force_next_flush()")
            await until_vacuumed(connection)
            sizes.append(
                await connection.fetchval("select pg_total_relation_size('messages.message')")
            )
        assert (
            await connection.fetchval(
                "select vacuum_count from pg_stat_user_tables "
                "where relid = 'messages.message'::regclass"
            )
            == 0
        )
    # It has room for what comes between two turns, here two minutes, and does not grow any more.
    assert max(sizes[2:]) <= 2 * sizes[0], sizes
    assert sizes[-1] <= sizes[2] * 1.1, sizes


async def vacuums(connection: Connection) -> int:
    await connection.execute("select pg_stat_clear_snapshot()")
    count: int = await connection.fetchval(
        "select autovacuum_count from pg_stat_user_tables "
        "where relid = 'messages.message'::regclass"
    )
    return count


async def until_vacuumed(connection: Connection) -> None:
    """Wait until autovacuum has been there once more."""
    before = await vacuums(connection)

    async def was_there() -> bool:
        return await vacuums(connection) > before

    await until(was_there, "autovacuum was there", 30)


async def take_ten(session: Connection) -> None:
    assert len(await take(session, 10)) == 10


async def claim_ten(session: Connection) -> None:
    claimed = await rows(session, "claim", quantity=10)
    assert len(claimed) == 10
    keys = [[row[name] for row in claimed] for name in ("id", "lock_token")]
    ended = await session.fetch(
        "select messages.finish_many($1, $2, $3::text[]::messages.message_status[])",
        *keys,
        ["success"] * 10,
    )
    assert len(ended) == 10


@pytest.mark.parametrize("by", [take_ten, claim_ten], ids=["take", "claim"])
async def test_d13_an_open_take_stops_no_other_session(
    connection: Connection,
    connect: Connect,
    second_database: str,
    by: Callable[[Connection], Awaitable[None]],
) -> None:
    """Beside an open take, others are as fast as without it, by a fifth.

    Without it means: beside a transaction as old that has taken nothing. That holds back vacuum in
    the same way, which the guarantee leaves aside. Both are measured in turns, so that a load
    of the machine slows both. The age of the take counts in what the others do meanwhile: 2000
    messages.
    """
    beside = await connect()

    async def work(other: Connection) -> float:
        began = time.monotonic()
        await publish(other, 10)
        await by(other)
        return time.monotonic() - began

    async with session(second_database) as alone, session(second_database) as old:
        took: dict[Connection, list[float]] = {alone: [], beside: []}
        for other in took:
            # A wait for a lock of the open transaction ends here.
            await other.execute("set lock_timeout = '500ms'")
            for _ in range(10):
                await work(other)
        await publish(connection, 10)
        async with connection.transaction(), old.transaction():
            await take_ten(connection)
            await old.execute("select pg_current_xact_id()")
            for turn in range(200):
                for other in (alone, beside) if turn % 2 else (beside, alone):
                    took[other].append(await work(other))
        # The fastest tenth: what the machine does beside this test slows single turns, of either.
        fastest = {other: statistics.quantiles(times, n=10)[0] for other, times in took.items()}
        assert fastest[beside] <= 1.2 * fastest[alone]
