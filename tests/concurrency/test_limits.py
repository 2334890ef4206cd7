"""Fifty sessions at once, some of them terminated: no limit is exceeded, and none leaks a lock."""

import asyncio
import random
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import QueueBusyError, QueueFullError
from support.database import (
    Connect,
    Connection,
    finish_all,
    lock_of,
    one_row,
    rows,
    until_blocked,
    value,
)

SESSIONS = 50
ZERO = timedelta(0)
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

COUNT = """
select coalesce(sum(n), 0)::integer as every, coalesce(max(n), 0)::integer as most
from (
  select count(*) as n from messages.message where queue = 'q' and state = 'locked' group by key
) as k
"""


async def put(connection: Connection, keys: list[str]) -> list[int]:
    published = await rows(
        connection, "publish_many", queue="q", messages=list(range(len(keys))), keys=keys
    )
    return [row[0] for row in published]


async def settle(connection: Connection, message: asyncpg.Record, luck: random.Random) -> None:
    lock = lock_of(message)
    way = luck.random()
    if way < 0.1:
        await rows(connection, "retry", **lock)
    elif way < 0.2:
        await rows(connection, "release", **lock)
    elif way < 0.97:
        await rows(connection, "finish", **lock)
    # Else the worker was terminated with it.


ENOUGH = 100
SOME = 5


async def storm(connection: Connection, connect: Connect) -> Counter[str]:
    """Claim and settle from many sessions, of which some are terminated; return what was seen."""
    luck = random.Random(1)
    seen: Counter[str] = Counter()
    observer = await connect()
    end = asyncio.get_running_loop().time() + 2.5
    spared = connection.get_server_pid()

    def goes_on() -> bool:
        # On a slow machine for as long as it takes; the test has a timeout of its own.
        return (
            asyncio.get_running_loop().time() < end
            or seen["claimed"] <= ENOUGH
            or seen["terminated"] <= SOME
        )

    async def work() -> None:
        connection = await connect()
        while goes_on():
            try:
                held = await rows(connection, "claim", queues=["q"], quantity=4, worker="w")
                seen["claimed"] += len(held)
                counted = await one_row(connection, COUNT)
                seen["every"] = max(seen["every"], counted["every"])
                seen["most"] = max(seen["most"], counted["most"])
                for message in held:
                    await settle(connection, message, luck)
            except LOST:
                connection = await connect()

    async def terminate() -> None:
        while goes_on():
            seen["terminated"] += await observer.fetchval(
                "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
                "where datname = current_database() and pid <> pg_backend_pid() "
                "and backend_type = 'client backend' and pid <> $1 order by random() limit 1) as v",
                spared,
            )
            # A terminated session holds its locks until they are reaped.
            await observer.execute(
                "update messages.message set lock_expires_at = clock_timestamp() "
                "where state = 'locked' and locked_at < clock_timestamp() - interval '1 second'"
            )
            seen["reaped"] += await value(observer, "reap")
            await asyncio.sleep(0.1)

    await asyncio.gather(terminate(), *(work() for _ in range(SESSIONS)))
    return seen


@pytest.mark.parametrize(
    ("policy", "every", "most"),
    [
        ({"concurrency": 7}, 7, 7),
        ({"concurrency": 9, "key_concurrency": 2}, 9, 2),
        ({"ordered": True, "concurrency": 5}, 5, 1),
        # Claims of four: some are far enough from the limit to be made before their turn.
        ({"concurrency": 40}, 40, 40),
        # Before the turn at first, and undone where a key has too many.
        ({"key_concurrency": 3}, 33, 3),
        # Several claims go by what the last count of the keys has left.
        ({"key_concurrency": 9}, 99, 9),
        ({"ordered": True}, 11, 1),
        ({"ordered": True, "fair": True}, 11, 1),
    ],
)
async def test_fifty_claimers_never_have_more_than_the_limit(
    connection: Connection, connect: Connect, policy: dict[str, Any], every: int, most: int
) -> None:
    await value(connection, "create_queue", name="q", max_attempts=1000, backoff=ZERO, **policy)
    await put(connection, [f"k{n % 11}" for n in range(20_000)])
    seen = await storm(connection, connect)
    assert seen["claimed"] > ENOUGH
    assert seen["terminated"] > SOME
    # Of the larger limits the storm may not come to the last.
    assert min(every, 5) <= seen["every"] <= every
    assert seen["most"] <= most
    # Nothing has leaked: with all locks over, as many as ever are handed out.
    await connection.execute(
        "update messages.message set lock_expires_at = now() where state = 'locked'"
    )
    await value(connection, "reap")
    assert len(await rows(connection, "claim", queues=["q"], quantity=100)) == every


@pytest.mark.parametrize("gold", [1, 3])
async def test_many_claimers_share_between_the_keys(
    connection: Connection, connect: Connect, gold: int
) -> None:
    await value(connection, "create_queue", name="q", fair=True)
    if gold != 1:
        await value(connection, "set_share", queue="q", key="gold", weight=float(gold))
    await put(connection, ["big"] * 5000)
    await put(connection, [f"k{n % 6}" for n in range(3000)])
    await put(connection, ["gold"] * 3000)
    had: Counter[str] = Counter()

    async def work() -> None:
        worker = await connect()
        # Rounds of eight or ten, one or three of which are gold's.
        while had.total() < 2000:
            held = await rows(worker, "claim", queues=["q"], quantity=7, worker="w")
            had.update(it["key"] for it in held)
            await finish_all(worker, held)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work() for _ in range(16)))
    share = had.total() / (7 + gold)
    assert abs(had["gold"] - gold * share) < 0.2 * gold * share
    others = [had[key] for key in had if key != "gold"]
    assert len(others) == 7
    assert max(others) < 1.3 * share
    assert min(others) > 0.7 * share


@pytest.mark.parametrize("gold", [1, 2])
async def test_concurrent_fair_claims_share_the_messages(
    connection: Connection, connect: Connect, gold: int
) -> None:
    await value(connection, "create_queue", name="q", fair=True)
    if gold != 1:
        await value(connection, "set_share", queue="q", key="gold", weight=float(gold))
    keys = [f"k{n:03}" for n in range(200)]
    first = await put(connection, keys)
    second = await put(connection, keys)
    holder = await connect()
    await holder.execute("begin")
    held = await rows(holder, "claim", queues=["q"], quantity=200)
    assert sorted(it["id"] for it in held) == first
    had: list[asyncpg.Record] = []
    seen = []
    for quantity in (10, 90, 300):
        had += await rows(connection, "claim", queues=["q"], quantity=quantity)
        assert len({it["key"] for it in had}) == len(had)
        seen.append(len(had))
    assert seen == [10, 100, 200]
    assert sorted(it["id"] for it in had) == second
    await holder.execute("rollback")
    freed = await rows(connection, "claim", queues=["q"], quantity=300)
    assert sorted(it["id"] for it in freed) == first


@pytest.mark.parametrize("before", [{}, {"rate": 1000}])
async def test_a_claim_that_began_before_there_was_a_limit_is_counted(
    connection: Connection, connect: Connect, before: dict[str, Any]
) -> None:
    await value(connection, "create_queue", name="q", **before)
    await put(connection, ["k"] * 10)
    early, admin = await connect(), await connect()
    claim = early.transaction()
    await claim.start()
    assert len(await rows(early, "claim", queues=["q"], quantity=3)) == 3
    altered = asyncio.ensure_future(value(admin, "alter_queue", name="q", concurrency=4, rate=0))
    await until_blocked(connection, admin)
    await claim.commit()
    await altered
    assert len(await rows(connection, "claim", queues=["q"], quantity=10)) == 1


async def test_many_workers_claim_a_key_in_order(connection: Connection, connect: Connect) -> None:
    await value(connection, "create_queue", name="q", ordered=True, max_attempts=1000, backoff=ZERO)
    published = await put(connection, [f"k{n % 40}" for n in range(1000)])
    order: dict[str, list[int]] = {}

    async def work(seed: int) -> None:
        luck = random.Random(seed)
        worker = await connect()
        while len(order) < 40 or sum(map(len, order.values())) < len(published):
            held = await rows(worker, "claim", queues=["q"], quantity=3, worker="w")
            for message in held:
                lock = lock_of(message)
                if luck.random() < 0.1:
                    await rows(worker, "retry", **lock)
                else:
                    order.setdefault(message["key"], []).append(message["id"])
                    assert await value(worker, "finish", **lock)

    async with asyncio.timeout(60):
        await asyncio.gather(*(work(n) for n in range(16)))
    assert sorted(id_ for ids in order.values() for id_ in ids) == published
    assert all(ids == sorted(ids) for ids in order.values())


async def test_a_capacity_holds_against_many_publishers(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="q", capacity=500)

    async def publish() -> int:
        publisher = await connect()
        accepted = 0
        for n in range(40):
            with suppress(QueueFullError):
                accepted += len(await put(publisher, ["k"] * (1 + n % 7)))
        return accepted

    accepted = sum(await asyncio.gather(*(publish() for _ in range(20))))
    assert accepted == await connection.fetchval("select count(*) from messages.message")
    assert 494 <= accepted <= 500


async def test_a_rate_holds_for_many_claimers(connection: Connection, connect: Connect) -> None:
    await value(connection, "create_queue", name="q", rate=200, rate_burst=20)
    await put(connection, ["k"] * 2000)
    began = await connection.fetchval("select clock_timestamp()")

    async def work() -> None:
        worker = await connect()
        for _ in range(40):
            await rows(worker, "claim", queues=["q"], quantity=10, worker="w")

    await asyncio.gather(*(work() for _ in range(20)))
    # In any stretch of time no more than the burst and what the rate brings meanwhile.
    times = [
        (row[0] - began).total_seconds()
        for row in await connection.fetch(
            "select locked_at from messages.message where state = 'locked' order by locked_at"
        )
    ]
    assert len(times) >= 20
    for first in range(0, len(times), 5):
        for last in range(first, len(times), 5):
            assert last - first + 1 <= 20 + 200 * (times[last] - times[first] + 0.05) + 1


@pytest.mark.parametrize("most", [1, 7])
@pytest.mark.parametrize("is_fair", [False, True])
async def test_every_key_has_its_tokens_and_no_more_with_many_claimers(
    connection: Connection, connect: Connect, *, is_fair: bool, most: int
) -> None:
    keys, burst = 11, 90
    await value(
        connection,
        "create_queue",
        name="q",
        key_rate=1,
        key_rate_period=timedelta(days=1),
        key_rate_burst=burst,
        fair=is_fair,
    )
    await connection.execute(
        "insert into messages.message (queue, message, key, headers) select 'q', '1', "
        f"'k' || n % {keys}, jsonb_build_object('cost', 1 + n / {keys} % {most}) "
        "from generate_series(0, 3999) as n"
    )
    observer = await connect()
    had = (
        "select key, sum((headers -> 'cost')::integer)::integer from messages.message "
        "where state = 'locked' group by key"
    )
    terminated = charged = 0

    async def work(seed: int) -> None:
        worker = await connect()
        luck = random.Random(seed)
        empty = 0
        while empty < 3:
            try:
                held = await rows(worker, "claim", queues=["q"], quantity=luck.randint(1, 12))
                empty = 0 if held else empty + 1
            except LOST:
                worker = await connect()

    async def terminate() -> None:
        nonlocal terminated, charged
        while len(workers) > sum(it.done() for it in workers):
            terminated += await observer.fetchval(
                "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
                "where datname = current_database() and state = 'active' "
                "and pid not in (pg_backend_pid(), $1) order by random() limit 1) as v",
                connection.get_server_pid(),
            )
            charged += await observer.fetchval("select count(*) from notifyq.limit_charge")
            assert all(row[1] < burst + most for row in await observer.fetch(had))
            await asyncio.sleep(0.05)

    workers = [asyncio.ensure_future(work(n)) for n in range(SESSIONS)]
    async with asyncio.timeout(100):
        await asyncio.gather(terminate(), *workers)
    assert terminated > SOME
    assert charged > 0, "no claim was far from the rate"
    # A terminated session had no message, or its messages stayed locked.
    while await rows(connection, "claim", queues=["q"], quantity=100):
        pass
    counted = {row[0]: row[1] for row in await connection.fetch(had)}
    assert counted.keys() == {f"k{n}" for n in range(keys)}
    assert all(burst <= cost < burst + most for cost in counted.values()), counted


async def test_claims_over_several_limited_queues_do_not_block_each_other(
    connection: Connection, connect: Connect
) -> None:
    names = [f"q{n}" for n in range(4)]
    for name in names:
        await value(connection, "create_queue", name=name, concurrency=50)
        await rows(connection, "publish_many", queue=name, messages=list(range(300)))

    async def work(seed: int) -> int:
        worker = await connect()
        luck = random.Random(seed)
        done = 0
        for _ in range(60):
            queues = luck.sample(names, 3)
            held = await rows(worker, "claim", queues=queues, quantity=5, worker="w")
            for message in held:
                done += await value(worker, "finish", **lock_of(message))
        return done

    async with asyncio.timeout(60):
        done = sum(await asyncio.gather(*(work(n) for n in range(12))))
    assert done == 1200


async def test_a_claim_does_not_hold_the_turn_of_a_queue_that_it_may_not_consume_from(
    connection: Connection, connect: Connect
) -> None:
    for queue in ("mine", "theirs"):
        await value(connection, "create_queue", name=queue, concurrency=1)
        await value(connection, "publish", queue=queue, message=1)
    await value(connection, "grant_queue", queue="theirs", role="notifyq_admin")
    worker = await connect()
    async with worker.transaction():
        await worker.execute("set local role notifyq_worker")
        assert [row["queue"] for row in await rows(worker, "claim", quantity=9)] == ["mine"]
        (found,) = await rows(connection, "claim", queues=["theirs"])
        assert found["queue"] == "theirs"


async def test_a_claim_before_its_turn_gets_no_more_than_the_rate_has_left(
    connection: Connection, connect: Connect
) -> None:
    hour = timedelta(hours=1)
    await value(connection, "create_queue", name="q", rate=1, rate_period=hour, rate_burst=20)
    await put(connection, ["k"] * 30)
    second, observer = await connect(), await connect()
    async with connection.transaction():
        assert len(await rows(connection, "claim", queues=["q"], quantity=18)) == 18
        # It sees twenty tokens, and locks its messages before it waits for the turn.
        claiming = asyncio.create_task(rows(second, "claim", queues=["q"], quantity=4))
        await until_blocked(observer, second)
    # None if it has waited for half a second.
    assert len(await claiming) in {0, 2}
    assert await observer.fetchval(COUNT) <= 20


@pytest.mark.parametrize(
    "options", [{"capacity": 1}, {"durable": False}, {"payload_type": "integer"}], ids=str
)
@pytest.mark.parametrize("second", ["create", "drop"])
async def test_the_triggers_of_queues_that_are_created_at_once_serve_all(
    connect: Connect, connection: Connection, options: dict[str, Any], second: str
) -> None:
    other = await connect()
    await value(connection, "create_queue", name="a", **options)
    async with connection.transaction():
        await value(connection, "create_queue", name="b", **options)
        changing = asyncio.ensure_future(
            value(other, "create_queue", name="c", **options)
            if second == "create"
            else value(other, "drop_queue", name="a")
        )
        await until_blocked(connection, other)
    await changing
    left = "{a,b,c}" if second == "create" else "{b}"
    triggers = await connection.fetch(
        "select pg_get_triggerdef(oid) as text from pg_trigger "
        "where tgrelid = 'messages.message'::regclass "
        "and tgname in ('capacity', 'a_divert', 'payload')"
    )
    assert [left in trigger["text"] for trigger in triggers] == [True]


async def test_changes_of_a_queue_wait_five_seconds_for_another(
    connect: Connect, connection: Connection
) -> None:
    await value(connection, "create_queue", name="a")

    async def change(call: str) -> None:
        with pytest.raises(QueueBusyError, match="create, alter or drop a queue stay open"):
            await (await connect()).execute(f"select messages.{call}")

    async with connection.transaction():
        await value(connection, "create_queue", name="c")
        calls = ("create_queue('b')", "alter_queue('a')", "drop_queue('a')")
        await asyncio.gather(*map(change, calls))


@pytest.mark.parametrize(
    ("before", "change", "lock"),
    [
        ({}, {"overflow": "drop_oldest", "payload_type": "integer"}, "row exclusive"),
        ({"payload_type": "integer"}, {"capacity": 0, "payload_type": "-"}, "access share"),
    ],
)
async def test_a_change_of_an_unlogged_queue_and_a_claim_do_not_deadlock(
    connect: Connect,
    connection: Connection,
    before: dict[str, Any],
    change: dict[str, Any],
    lock: str,
) -> None:
    other = await connect()
    await value(connection, "create_queue", name="b", capacity=5)
    await value(connection, "create_queue", name="u", durable=False, capacity=5, **before)
    async with other.transaction():
        # As a claim that has begun: it locks the table before its child, and more of it later.
        await other.execute(f"lock table only messages.message in {lock} mode")
        changing = asyncio.ensure_future(value(connection, "alter_queue", name="u", **change))
        await until_blocked(other, connection)
        await other.execute("select from messages.claim('{u}')")
    await changing
