"""Queues with aging: their order, whatever changes it, and claims among dead rows."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import QueueBusyError
from support.database import Connect, Connection, publish, rows, value

MINUTE = timedelta(minutes=1)
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
PUT = """
    insert into messages.message (queue, message, priority, available_at)
    select $1, to_jsonb(u.number), u.priority, u.available_at
    from unnest($2::integer[], $3::timestamptz[]) with ordinality
      as u (priority, available_at, number)
    order by u.number
"""
BACK = "update messages.message set available_at = available_at - $1::interval"
EDGES = [2**31 - 1, 2**31 - 1, 1, 0, -(2**31)]


@pytest.fixture
async def aging(connection: Connection) -> Connection:
    await value(connection, "create_queue", name="q", aging=MINUTE, max_attempts=9)
    return connection


async def claimed(connection: Connection, quantity: int = 1, **arguments: Any) -> list[Any]:
    """Return the payloads of the next messages."""
    found = await rows(connection, "claim", queues=["q"], quantity=quantity, **arguments)
    return [row["message"] for row in found]


async def put(connection: Connection, *messages: tuple[int, timedelta], queue: str = "q") -> None:
    """Publish messages of these priorities that wait for so long; payloads count from 1."""
    await connection.execute(
        PUT, queue, [it[0] for it in messages], [SINCE - it[1] for it in messages]
    )


async def locks(connection: Connection) -> dict[Any, dict[str, Any]]:
    found = await connection.fetch("select * from messages.message where state = 'locked'")
    return {row["message"]: {"id": row["id"], "lock_token": row["lock_token"]} for row in found}


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("seed", range(3))
async def test_the_longest_wait_and_the_largest_priority_come_first(
    connection: Connection, connect: Connect, durable: bool, seed: int
) -> None:
    luck = random.Random(seed)
    aging = timedelta(seconds=luck.choice([0.001, 1, 90, 86400]))
    await value(connection, "create_queue", name="q", aging=aging, durable=durable)
    await value(connection, "create_queue", name="other", aging=MINUTE)
    messages = [
        (luck.randint(-3, 3), timedelta(milliseconds=luck.randint(0, 4) * luck.randint(0, 90_000)))
        for _ in range(200)
    ]
    await put(connection, *messages, queue="other")
    await put(connection, *messages)
    wanted = sorted(
        range(1, 201), key=lambda it: (-messages[it - 1][1] - messages[it - 1][0] * aging, it)
    )
    sessions = [connection, await connect(), await connect()]
    found: list[int] = []
    while len(found) < 200:
        session, quantity = luck.choice(sessions), luck.randint(1, 20)
        if luck.random() < 0.3:
            taken = await rows(session, "take", queue="q", quantity=quantity)
            found += [row["message"] for row in taken]
        else:
            found += await claimed(session, quantity)
    assert found == wanted


async def test_a_low_priority_does_not_starve(aging: Connection) -> None:
    await value(aging, "publish", queue="q", message="low", priority=0)
    found = []
    while "low" not in found:
        for _ in range(3):
            await value(aging, "publish", queue="q", message="high", priority=5)
        found += await claimed(aging, 3)
        await aging.execute(BACK, MINUTE)
    assert found.index("low") == 15


async def test_it_follows_the_priority_and_the_due_time_of_a_message(aging: Connection) -> None:
    await put(aging, *[(0, MINUTE * it) for it in range(5)])
    await aging.execute("update messages.message set message = to_jsonb('m' || message::text)")
    ids = [row["id"] for row in await aging.fetch("select id from messages.message order by id")]
    await value(aging, "amend", id=ids[0], priority=9)
    await value(aging, "amend", id=ids[4], available_at=SINCE - MINUTE * 1.5)
    assert await claimed(aging, 2) == ["m1", "m4"]
    # What is released keeps its place, and what is tried again after a delay begins anew.
    held = await locks(aging)
    await value(aging, "release", **held["m4"])
    await value(aging, "retry", **held["m1"], delay=timedelta(0))
    assert await claimed(aging, 2) == ["m1", "m4"]
    held = await locks(aging)
    await value(aging, "release", **held["m4"], delay=MINUTE)
    await value(aging, "retry", **held["m1"], delay=MINUTE * 60)
    assert await claimed(aging, 9) == ["m3", "m5", "m2"]
    await aging.execute(
        "update messages.message set available_at = now() where state = 'scheduled'"
    )
    assert await claimed(aging, 9) == ["m1", "m4"]


async def test_it_follows_replaced_and_debounced_messages(aging: Connection) -> None:
    for message in ("a", "b"):
        await value(aging, "publish", queue="q", message=message, dedup_key=message)
    replace = {"queue": "q", "message": "c", "dedup_key": "b", "on_duplicate": "replace"}
    await value(aging, "publish", **replace, priority=1)
    assert await claimed(aging, 2) == ["c", "a"]


@pytest.mark.parametrize("durable", [True, False])
async def test_aging_is_set_changed_and_removed_with_messages_waiting(
    connection: Connection, durable: bool
) -> None:
    await value(connection, "create_queue", name="q", durable=durable)
    await put(connection, (0, MINUTE * 10), (3, MINUTE * 5), (1, MINUTE * 9))

    async def order() -> list[int]:
        found = await claimed(connection, 9)
        for lock in (await locks(connection)).values():
            assert await value(connection, "release", **lock)
        return found

    assert await order() == [2, 3, 1]
    for aging, wanted in (
        (MINUTE, [1, 3, 2]),
        (MINUTE * 1.5, [3, 1, 2]),
        (MINUTE * 9, [2, 3, 1]),
        (MINUTE, [1, 3, 2]),
        (timedelta(0), [2, 3, 1]),
    ):
        await value(connection, "alter_queue", name="q", aging=aging)
        assert await order() == wanted


@pytest.mark.parametrize(
    "aging", ["1 microsecond", "1 month", "1000 years", "-1 month 31 days", "13 hours -1 second"]
)
async def test_no_priority_and_no_time_is_too_large(connection: Connection, aging: str) -> None:
    await connection.execute(f"select messages.create_queue('q', aging => '{aging}')")
    await connection.execute(
        PUT, "q", EDGES, [SINCE, SINCE - MINUTE, SINCE, datetime(1, 1, 2, tzinfo=UTC), SINCE]
    )
    found = await claimed(connection, 9)
    assert sorted(found) == [1, 2, 3, 4, 5]
    if aging == "1000 years":
        assert found[2:] == [4, 3, 5] or found[2:] == [3, 4, 5]
    for lock in (await locks(connection)).values():
        await value(connection, "release", **lock)
    assert [row["message"] for row in await rows(connection, "take", queue="q", quantity=9)] == (
        found
    )


@pytest.mark.parametrize("name", ["it's", 'a "b" \\ c', "ü{}", "%L"])
async def test_any_name_can_age(connection: Connection, name: str) -> None:
    await value(connection, "create_queue", name=name, aging=MINUTE)
    await put(connection, (0, MINUTE * 2), (1, timedelta(0)), queue=name)
    index = "select 'messages.message_aging_idx'::regclass::oid"
    before = await connection.fetchval(index)
    await value(connection, "alter_queue", name=name, max_attempts=2)
    assert await connection.fetchval(index) == before
    found = await rows(connection, "claim", queues=[name], quantity=2)
    assert [row["message"] for row in found] == [1, 2]


@pytest.mark.parametrize("is_indexed", [False, True])
async def test_filters_are_in_order(aging: Connection, is_indexed: bool) -> None:
    if is_indexed:
        await aging.execute("create index on messages.message using gin (message jsonb_path_ops)")
    await put(aging, *[(it % 3, MINUTE * (it % 7)) for it in range(600)])
    await aging.execute(
        "update messages.message set message = jsonb_build_object('n', message, 'odd', "
        "message::integer % 2, 'rare', message::integer % 100)"
    )

    def wanted(divisor: int, rest: int) -> list[int]:
        matching = [it for it in range(1, 601) if it % divisor == rest]
        return sorted(matching, key=lambda it: (-((it - 1) % 3) - ((it - 1) % 7), it))

    async def found(quantity: int, filter: str) -> list[int]:
        return [it["n"] for it in await claimed(aging, quantity, filter=filter)]

    assert await found(9, "$.rare == 7") == wanted(100, 7)
    odd = [it for it in wanted(2, 1) if it % 100 != 7]
    assert await found(5, "$.odd == 1") == odd[:5]
    assert await found(5, "$.odd == 1 && $priority < 3") == odd[5:10]


async def test_queues_without_aging_have_no_part_in_it(connection: Connection) -> None:
    index = "select to_regclass('messages.message_aging_idx')"
    assert await connection.fetchval(index) is None
    await value(connection, "create_queue", name="q", aging=MINUTE)
    await publish(connection, 1000)
    assert await connection.fetchval(f"select pg_relation_size(({index}))") == 8192
    await value(connection, "create_queue", name="p", aging=MINUTE)
    await value(connection, "drop_queue", name="q")
    assert await connection.fetchval(index) is not None
    await value(connection, "alter_queue", name="p", aging=timedelta(0))
    assert await connection.fetchval(index) is None


async def test_aging_changes_only_without_open_publishers(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="q")
    other = await connect()
    async with other.transaction():
        await publish(other, 1)
        with pytest.raises(QueueBusyError):
            await value(connection, "alter_queue", name="q", aging=MINUTE)
    assert (await value(connection, "alter_queue", name="q", aging=MINUTE))["aging"] == MINUTE


async def test_aging_changes_while_sessions_publish_and_claim(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="q")
    found: list[int] = []
    is_over = False

    async def publish_on(session: Connection, first: int) -> None:
        for number in range(first, first + 100):
            await value(session, "publish", queue="q", message=number, priority=number % 3)

    async def work(session: Connection) -> None:
        while not is_over or len(found) < 200:
            for row in await rows(session, "claim", queues=["q"], quantity=3):
                assert await value(session, "finish", id=row["id"], lock_token=row["lock_token"])
                found.append(row["message"])

    async def alter() -> None:
        nonlocal is_over
        for number in range(12):
            await value(connection, "alter_queue", name="q", aging=MINUTE * (number % 3))
        is_over = True

    await asyncio.gather(
        alter(),
        *[publish_on(await connect(), first) for first in (0, 100)],
        *[work(await connect()) for _ in range(3)],
    )
    assert sorted(found) == list(range(200))


async def test_a_claim_that_read_the_queue_before_it_lost_its_aging_finds_messages(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="q", aging=MINUTE)
    await put(connection, (0, MINUTE), (1, MINUTE))
    queue = "(select q from messages.queue as q where q.name = 'q')"
    stale = await connection.fetchval(f"select {queue}::text")
    await value(connection, "alter_queue", name="q", aging=timedelta(0))
    found = await connection.fetch(
        "select * from notifyq.claim_aging($1::text::messages.queue, 9, null, 'w', null, false, 1)",
        stale,
    )
    assert [row["message"] for row in found] == [2, 1]


# Dead rows.

POSITION = """
    select nullif(current_setting(
      'notifyq.rank_' || to_hex(hashtextextended('q', 0)), true), '')::text[]
"""
MOVE = "select set_config('notifyq.rank_' || to_hex(hashtextextended('q', 0)), $1::text, false)"


async def position(connection: Connection) -> list[str] | None:
    """Return what is remembered: since when, for how many milliseconds, rank, id."""
    found: list[str] | None = await connection.fetchval(POSITION)
    return found


@pytest.fixture(params=[True, False], ids=["durable", "unlogged"])
async def holder(request: pytest.FixtureRequest, connect: Connect) -> Connection:
    """Give a session with an open snapshot, under which 40,000 messages were worked."""
    other = await connect()
    await value(other, "create_queue", name="q", aging=MINUTE, durable=request.param)
    holder = await connect()
    await holder.execute("begin isolation level repeatable read; select from messages.queue")
    await other.execute(
        "insert into messages.message (queue, message) "
        "select 'q', '1' from generate_series(1, 40000)"
    )
    await other.execute("delete from messages.message")
    return holder


async def hold(connection: Connection) -> None:
    """Make the position of the session last."""
    found = await position(connection)
    assert found
    await connection.execute(MOVE, f"{{{found[0]},600000,{found[2]},{found[3]}}}")


async def test_dead_rows_are_read_once(connection: Connection, holder: Connection) -> None:
    await publish(connection, 10, "q")
    assert await claimed(connection, 2) == [0, 1]
    first = await position(connection)
    assert first
    await hold(connection)
    reads = "select notifyq.aging_reads(q.durable) from messages.queue as q where q.name = 'q'"
    async with connection.transaction():
        before = await connection.fetchval(reads)
        assert await claimed(connection, 3) == [2, 3, 4]
        assert await connection.fetchval(reads) - before < 1000
    second = await position(connection)
    assert second
    assert second[2] == first[2]
    assert int(second[3]) == int(first[3]) + 3

    await holder.execute("rollback")
    await connection.execute("vacuum messages.message, notifyq.message_unlogged")
    assert await claimed(connection, 3, full_scan=True) == [5, 6, 7]
    assert await position(connection) is None


async def test_what_comes_in_before_the_position_is_found_by_the_next_full_scan(
    connection: Connection, connect: Connect, holder: Connection
) -> None:
    assert holder
    late = await connect()
    await late.execute("begin; select messages.publish('q', '\"late\"')")
    await publish(connection, 10, "q")
    assert await claimed(connection, 3) == [0, 1, 2]
    await hold(connection)
    await late.execute("commit")
    await value(late, "publish", queue="q", message="urgent", priority=5)
    held = await locks(connection)
    await value(late, "release", **held[1])
    assert await claimed(connection) == [3]
    found = await position(connection)
    assert found
    await connection.execute(MOVE, f"{{{int(found[0]) - 700000},600000,{found[2]},{found[3]}}}")
    assert await claimed(connection, 3) == ["urgent", "late", 1]
    assert await claimed(connection, 9, full_scan=True) == list(range(4, 10))


async def test_in_a_drained_queue_new_messages_are_found_at_once(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    assert await claimed(connection) == []
    await hold(connection)
    assert await claimed(connection) == []
    await publish(connection, 2, "q")
    assert await claimed(connection, 9) == [0, 1]


async def test_a_position_is_rolled_back_with_the_claim(
    connection: Connection, holder: Connection
) -> None:
    assert holder
    await publish(connection, 5, "q")
    assert await claimed(connection) == [0]
    await hold(connection)
    before = await position(connection)
    await connection.execute("begin")
    assert await claimed(connection, 2) == [1, 2]
    await connection.execute("rollback")
    assert await position(connection) == before
    assert await claimed(connection, 9) == [1, 2, 3, 4]


@pytest.mark.parametrize("remembered", ["{99999999999999,1000,0,1}", "{null,null,0,1}", "{}"])
async def test_a_position_with_an_unknown_or_later_time_is_not_used(
    aging: Connection, remembered: str
) -> None:
    await publish(aging, 2, "q")
    await aging.execute(MOVE, remembered)
    assert await claimed(aging, 9) == [0, 1]


async def test_roles_that_insert_need_no_further_right(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_queue", name="q", aging=MINUTE)
    await connection.execute("set role notifyq_publisher")
    await connection.execute("insert into messages.message (queue, message) values ('q', '1')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("select from notifyq.aging_message")
    await connection.execute("reset role")
    assert await claimed(connection) == [1]
