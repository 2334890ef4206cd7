"""A poll that reads rows of open transactions: its position does not pass what those publish."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from support.database import INIT_FILES, Connect, Connection, publish, rows, until_blocked, value

BULK = """
    insert into messages.message (queue, message, priority, key)
    select 'bulk', to_jsonb(n), case when $1 then n % 3 else 0 end,
      case when $2 > 0 then 'k' || n % $2 end
    from generate_series(1, 40000) as n
"""
"""So many that a poll, which reads them all, is much work."""

KINDS: dict[str, tuple[dict[str, Any], bool, int]] = {
    "plain": ({}, False, 0),
    "priority": ({}, True, 0),
    "ordered": ({"ordered": True}, False, 40_000),
    "limit of each key": ({"key_concurrency": 1}, False, 40_000),
    "limit": ({"concurrency": 1000}, False, 0),
    "rate": ({"rate": 100_000}, False, 0),
    "rate of each key": ({"key_rate": 100}, False, 40_000),
    "not durable": ({"durable": False}, False, 0),
    "fair": ({"fair": True}, False, 500),
    "fair without keys": ({"fair": True}, False, 0),
}
"""Options of the queue, whether priorities differ, and how many keys there are."""

EXPECTED = """
    select id from messages.message where queue = 'bulk' and state = 'waiting'
    order by priority desc, id limit $1
"""


async def claimed(connection: Connection, quantity: int = 10, **arguments: Any) -> list[int]:
    found = await rows(connection, "claim", queues=["bulk"], quantity=quantity, **arguments)
    return [row["id"] for row in found]


async def first(connection: Connection, quantity: int) -> list[int]:
    return [row["id"] for row in await connection.fetch(EXPECTED, quantity)]


async def position(connection: Connection) -> str | None:
    remembered: str | None = await connection.fetchval(
        "select current_setting('notifyq.position_' || to_hex(hashtextextended('bulk', 0)), true)"
    )
    return remembered or None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_bulk_that_commits_after_a_poll_is_claimed_at_once_in_order(
    connection: Connection, connect: Connect, kind: str, *, is_drained: bool
) -> None:
    options, has_priorities, keys = KINDS[kind]
    await value(connection, "create_queue", name="bulk", **options)
    publisher = await connect()
    await publisher.execute("begin")
    if options.get("durable", True):
        await publisher.execute(BULK.replace("$1", str(has_priorities)).replace("$2", str(keys)))
    else:  # what is inserted is moved one by one into the other table
        await publish(publisher, 40_000, "bulk")
    later = await publish(connection, 0 if is_drained else 3, "bulk")
    for _ in range(2):
        assert await claimed(connection) == later
        later = []
    await publisher.execute("commit")
    for _ in range(3):
        expected = await first(connection, 10)
        found = await claimed(connection)
        assert len(found) == 10
        if not options.get("fair"):
            assert found == expected


async def test_the_polls_of_a_bulk_remember_a_position(
    connection: Connection, connect: Connect
) -> None:
    """Else the others would show nothing."""
    await value(connection, "create_queue", name="bulk")
    publisher = await connect()
    await publisher.execute("begin")
    await publisher.execute(BULK.replace("$1", "false").replace("$2", "0"))
    assert await claimed(connection) == []
    assert await position(connection)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_of_several_open_bulks_each_is_found_when_it_ends(
    connection: Connection, connect: Connect, ends: str
) -> None:
    """In whatever order they end, and with subtransactions."""
    await value(connection, "create_queue", name="bulk")
    publishers = [await connect() for _ in range(3)]
    for publisher in publishers:
        await publisher.execute("begin; savepoint a")
        await publisher.execute(BULK.replace("$1", "false").replace("$2", "0"))
        await publisher.execute("release a; savepoint b")
        await publish(publisher, 2, "bulk")
        await publisher.execute("rollback to b")
        assert await claimed(connection) == []
    for publisher in (publishers[2], publishers[0], publishers[1]):
        await publish(connection, 1, "bulk")
        await publisher.execute(ends)
        for _ in range(2):
            expected = await first(connection, 10)
            assert await claimed(connection) == expected


async def test_a_publisher_that_waits_for_room_has_its_number_before_its_id(
    connection: Connection, connect: Connect
) -> None:
    """Else what it publishes is taken for older than what a position has passed."""
    await value(connection, "create_queue", name="full", capacity=100)
    await value(connection, "create_queue", name="bulk")
    one, two = await connect(), await connect()
    await one.execute("begin")
    await publish(one, 1, "full")
    waiting = asyncio.create_task(publish(two, 1, "full"))
    await until_blocked(connection, two)
    has_number = await connection.fetchval(
        "select backend_xid is not null from pg_stat_activity where pid = $1", two.get_server_pid()
    )
    await one.execute("commit")
    await waiting
    assert has_number


class Schedule:
    """Publishers with open transactions and claimers, one step at a time, over many dead rows."""

    def __init__(self, publishers: list[Connection], claimers: list[Connection], seed: int) -> None:
        self.publishers = publishers
        self.claimers = claimers
        self.open: set[int] = set()
        self.dice = random.Random(seed)

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.dice.random() < 0.6:
                await self.publish(self.dice.randrange(len(self.publishers)))
            else:
                await self.claim(self.dice.choice(self.claimers))

    async def publish(self, number: int) -> None:
        publisher = self.publishers[number]
        if number not in self.open:
            await publisher.execute("begin")
            self.open.add(number)
        elif self.dice.random() < 0.5:
            await publish(publisher, self.dice.randint(1, 3), "bulk")
        else:
            await publisher.execute(self.dice.choice(["commit", "commit", "rollback"]))
            self.open.remove(number)

    async def claim(self, claimer: Connection) -> None:
        """Claim, also in a transaction that has a number, and compare with what is there."""
        quantity = self.dice.randint(1, 4)
        transaction = claimer.transaction()
        await transaction.start()
        if self.dice.random() < 0.3:
            await claimer.execute("select pg_current_xact_id()")
            for _ in range(self.dice.randrange(4)):
                await self.publish(self.dice.randrange(len(self.publishers)))
        expected = await first(claimer, quantity)
        assert await claimed(claimer, quantity) == expected
        await transaction.commit()


async def make_schedule(connection: Connection, connect: Connect, seed: int) -> Schedule:
    await value(connection, "create_queue", name="bulk")
    holder = await connect()
    await holder.execute("begin isolation level repeatable read; select from messages.queue")
    await connection.execute(BULK.replace("$1", "false").replace("$2", "0"))
    await connection.execute("delete from messages.message")
    return Schedule([await connect() for _ in range(4)], [await connect() for _ in range(2)], seed)


@pytest.mark.parametrize("seed", range(3))
async def test_a_claim_returns_the_first_committed_message(
    connection: Connection, connect: Connect, seed: int
) -> None:
    schedule = await make_schedule(connection, connect, seed)
    await schedule.run(500)
    assert await position(schedule.claimers[0])


MUTANTS = {
    "goes back for nothing": (
        "  return case when v_first is not null\n",
        "  return case when false\n",
    ),
    "goes back to the newest bound": (
        "coalesce(v_ids[nullif(width_bucket(v_first::text::bigint, v_numbers), 0)], 0)",
        "coalesce(v_ids[cardinality(v_ids)], 0)",
    ),
    "reads the newest id after it has a number": (
        "if pg_current_xact_id_if_assigned() is null then",
        "if true then",
    ),
    "takes the end of the snapshot for a number": (
        "pg_current_xact_id()::text::bigint;",
        "pg_snapshot_xmax(snapshot)::text::bigint;",
    ),
}


def mutated(right: str, wrong: str) -> str:
    (path,) = (path for path in INIT_FILES if path.match("queue/find.sql"))
    text = path.read_text(encoding="utf-8")
    assert text.count(right) == 1
    return text.replace(right, wrong)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_claim_without_a_condition_is_found(
    connection: Connection, connect: Connect, mutant: str
) -> None:
    await connection.execute(mutated(*MUTANTS[mutant]))
    schedule = await make_schedule(connection, connect, seed=1)
    with pytest.raises(AssertionError):
        await schedule.run(40_000)


ENDED = {
    "nothing has ended": ("100:100:", "100:100:", None),
    "one that ran": ("90:100:90,95", "95:100:95", 5),
    "the second that ran": ("90:100:90,95", "90:100:90", 5),
    "one that was not there yet": ("90:100:90", "90:120:90", 7),
    "one of those that have begun behind the end": ("100:100:", "101:101:", 7),
    "one older than all bounds": ("70:100:70", "100:100:", 0),
}
"""Snapshots of two scans, and the id after which the second one must read."""


async def ended(connection: Connection, seen: str, snapshot: str) -> int | None:
    """Call it with bounds at the numbers 80 and 98."""
    found: int | None = await connection.fetchval(
        "select notifyq.ended_after(array[$1, '{80,98}', '{5,7}'], $2::text::pg_snapshot)",
        seen,
        snapshot,
    )
    return found


async def test_a_scan_goes_back_to_the_bound_of_ended_transactions(connection: Connection) -> None:
    for case in ENDED:
        seen, snapshot, expected = ENDED[case]
        assert await ended(connection, seen, snapshot) == expected


async def test_a_scan_that_used_the_end_of_a_snapshot_would_miss_messages(
    connection: Connection,
) -> None:
    """With snapshots made by hand: those of the server depend on what runs beside the test."""
    right = "if v_first is null and pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(v_seen) then"
    await connection.execute(mutated(right, "if false then"))
    missed = [
        case
        for case, (seen, snapshot, expected) in ENDED.items()
        if await ended(connection, seen, snapshot) != expected
    ]
    assert missed == ["one that was not there yet", "one of those that have begun behind the end"]
