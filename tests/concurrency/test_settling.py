"""Finishers, reapers, cancellers and thieves meet over the same messages: one outcome each."""

import asyncio
import random
from collections import Counter, defaultdict
from datetime import timedelta

import asyncpg
import pytest

from support.database import (
    Connect,
    Connection,
    archived,
    claim_one,
    expire,
    live,
    lock_of,
    publish,
    rows,
    until_blocked,
    value,
)


async def deadlocks(connection: Connection) -> int:
    await connection.execute("select pg_stat_force_next_flush()")
    count: int = await connection.fetchval(
        "select deadlocks from pg_stat_database where datname = current_database()"
    )
    return count


async def settle(connection: Connection, function: str, message: asyncpg.Record) -> bool:
    return bool(await value(connection, function, **lock_of(message)))


@pytest.mark.parametrize("function", ["finish", "retry", "release", "extend"])
@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_a_settler_waits_for_an_open_reaper_and_has_lost_the_lock(
    connection: Connection, connect: Connect, function: str, max_attempts: int
) -> None:
    worker, observer = await connect(), await connect()
    await value(connection, "alter_queue", name="default", max_attempts=max_attempts)
    await publish(connection, 1)
    message = await claim_one(worker)
    await expire(connection, message["id"])

    async with connection.transaction():
        assert await value(connection, "reap") == 1
        settling = asyncio.ensure_future(settle(worker, function, message))
        await until_blocked(observer, worker)
    assert await settling is False
    statuses = [row["status"] for row in await archived(connection, message["id"])]
    assert statuses == (["lock_expired"] if max_attempts == 1 else [])
    # Nor did it leave anything in the history.
    attempts = await rows(connection, "attempts", id=message["id"])
    assert [row["status"] for row in attempts] == ["lock_expired"]


@pytest.mark.parametrize(
    ("function", "statuses"),
    [("finish", ["success"]), ("retry", ["failed"]), ("release", []), ("extend", [])],
)
async def test_a_reaper_skips_a_message_of_an_open_settler(
    connection: Connection, connect: Connect, function: str, statuses: list[str]
) -> None:
    worker = await connect()
    await connection.execute("set lock_timeout = '50ms'")
    await publish(connection, 1)
    message = await claim_one(worker)
    await expire(connection, message["id"])
    async with worker.transaction():
        assert await settle(worker, function, message) is True
        assert await value(connection, "reap") == 0
    assert await value(connection, "reap") == 0
    assert [row["status"] for row in await archived(connection, message["id"])] == statuses


async def test_two_reapers_share_the_expired_locks(
    connection: Connection, connect: Connect
) -> None:
    ids = await publish(connection, 300)
    await rows(connection, "claim", quantity=300)
    await expire(connection, *ids)
    second = await connect()
    await second.execute("set lock_timeout = '50ms'")
    async with connection.transaction():
        assert await value(connection, "reap", quantity=100) == 100
        assert await value(second, "reap") == 200
        assert await value(second, "reap") == 0
    await second.execute("reset lock_timeout")

    again = await publish(connection, 300)
    await rows(connection, "claim", quantity=300)
    await expire(connection, *again)

    async def reap(session: Connection) -> int:
        total = 0
        while reaped := await value(session, "reap", quantity=7):
            total += reaped
        return total

    totals = await asyncio.gather(*(reap(it) for it in (connection, second)))
    assert sum(totals) + await reap(connection) == 300
    per_id = await connection.fetch("select count(*) from messages.message_archive group by id")
    assert [row[0] for row in per_id] == [1] * 600


class Storm:
    """Workers, a reaper and messages whose locks end at any moment, drawn from a seed."""

    SETTLERS = 6
    MESSAGES = 600

    def __init__(self, connect: Connect, seed: int) -> None:
        self._connect = connect
        self._chance = random.Random(seed)
        self.granted: defaultdict[int, list[int]] = defaultdict(list)
        self.finished: list[tuple[int, int, str]] = []
        self._working = 0

    async def run(self) -> None:
        self._working = self.SETTLERS
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reap(await self._connect()))
            for n in range(self.SETTLERS):
                group.create_task(self._work(await self._connect(), str(n)))

    async def drain(self, connection: Connection) -> None:
        """End what zombies left: each of these locks expires until the attempts are used up."""
        while await rows(connection, "message_list", quantity=1):
            for message in await rows(connection, "claim", quantity=1000, worker="last"):
                self.granted[message["id"]].append(message["lock_token"])
            await expire(connection, *self.granted)
            await value(connection, "reap")

    async def _work(self, connection: Connection, name: str) -> None:
        chance = random.Random(self._chance.random())
        zombies: list[asyncpg.Record] = []
        while claimed := await rows(connection, "claim", quantity=5, worker=name):
            for message in claimed:
                self.granted[message["id"]].append(message["lock_token"])
            hasty = [message for message in claimed if chance.random() < 0.5]
            await expire(connection, *(message["id"] for message in hasty))
            # The dead come back at the end, long after others got their messages.
            zombies += [message for message in claimed if chance.random() < 0.2]
            for message in claimed:
                if message not in zombies:
                    await self._finish(connection, message, chance.choice(("success", "failed")))
        for message in zombies:
            await self._finish(connection, message, "rejected")
        self._working -= 1

    async def _finish(self, connection: Connection, message: asyncpg.Record, status: str) -> None:
        id_, token = message["id"], message["lock_token"]
        if await value(connection, "finish", id=id_, lock_token=token, status=status):
            self.finished.append((id_, token, status))

    async def _reap(self, connection: Connection) -> None:
        while self._working:
            await value(connection, "reap", quantity=20)


@pytest.mark.parametrize("seed", [1, 2])
async def test_in_a_storm_every_message_ends_once_and_finishers_get_true_answers(
    connection: Connection, connect: Connect, seed: int
) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=3, backoff=timedelta(0))
    ids = await publish(connection, Storm.MESSAGES)
    storm = Storm(connect, seed)
    await storm.run()
    await storm.drain(connection)

    found = await connection.fetch("select * from messages.message_archive")
    assert Counter(row["id"] for row in found) == Counter(ids)
    by_finisher = {
        (row["id"], row["lock_token"], row["status"])
        for row in found
        if row["status"] != "lock_expired"
    }
    assert by_finisher == set(storm.finished)
    assert len(storm.finished) == len(by_finisher)
    assert len(by_finisher) > 100
    assert len(found) > len(by_finisher)
    for row in found:
        tokens = storm.granted[row["id"]]
        assert row["lock_token"] == tokens[-1]
        assert tokens == sorted(set(tokens))
        assert row["attempts"] <= 3
    assert await deadlocks(connection) == 0


async def test_a_batch_locks_its_messages_in_the_order_of_their_ids(
    connection: Connection, connect: Connect
) -> None:
    """Else two of them could deadlock. What is held is always a prefix."""
    ids = await publish(connection, 50)
    for id_ in random.Random(5).sample(ids, 50):  # so that they lie in another order
        await rows(connection, "claim_id", id=id_)
    blocker, worker, observer = await connect(), await connect(), await connect()
    shuffled = random.Random(7).sample(ids, 50)
    batch = {"ids": shuffled, "lock_tokens": [1] * 50}
    for function, arguments in (
        ("extend_many", batch),
        ("retry_many", batch),
        ("release_many", batch),
        ("finish_many", batch | {"statuses": ["success"] * 50}),
    ):
        async with blocker.transaction():
            await blocker.execute("select from messages.message where id = $1 for update", ids[25])
            await worker.execute("begin")
            working = asyncio.ensure_future(rows(worker, function, **arguments))
            await until_blocked(observer, worker)
            free = await observer.fetch(
                "select id from messages.message order by id for update skip locked"
            )
            assert [row["id"] for row in free] == ids[26:]
        assert len(await working) == 50
        await worker.execute("rollback")


async def test_cancel_and_claim_of_one_message_have_one_winner(
    connection: Connection, connect: Connect
) -> None:
    first, second = await connect(), await connect()
    for _ in range(30):
        (id_,) = await publish(connection, 1)
        claimed, cancelled = await asyncio.gather(
            rows(first, "claim"), value(second, "cancel", id=id_)
        )
        assert bool(claimed) != cancelled
        message = await live(connection, id_)
        assert (message is None) == cancelled
        if claimed:
            assert await settle(first, "finish", claimed[0])
        assert len(await archived(connection, id_)) == 1


async def test_in_a_storm_each_attempt_is_in_the_history_once(
    connection: Connection, connect: Connect
) -> None:
    """Retries and reapers meet over the same locks until all attempts are used up."""
    policy = {
        "max_attempts": 6,
        "backoff": timedelta(0),
        "lock_duration": timedelta(milliseconds=1),
    }
    await value(connection, "alter_queue", name="default", **policy)
    ids = await publish(connection, 60)
    chance = random.Random(5)

    async def work(session: Connection) -> None:
        while await session.fetchval("select exists (select from messages.message)"):
            for message in await rows(session, "claim", quantity=5):
                # Some are left to the reapers, which may also be first.
                if chance.random() < 0.7:
                    await settle(session, "retry", message)

    async def reap(session: Connection) -> None:
        while await session.fetchval("select exists (select from messages.message)"):
            await value(session, "reap", quantity=7)

    sessions = [await connect() for _ in range(10)]
    async with asyncio.timeout(60):
        await asyncio.gather(*map(work, sessions[:6]), *map(reap, sessions[6:]))
    found = await connection.fetch(
        "select message_id, array_agg(number order by lock_token) as numbers, "
        "count(*) filter (where retry_at is null) as last, array_agg(distinct status::text) as how "
        "from messages.attempt group by message_id order by message_id"
    )
    assert [row["message_id"] for row in found] == ids
    assert {tuple(row["numbers"]) for row in found} == {(1, 2, 3, 4, 5, 6)}
    assert {row["last"] for row in found} == {1}
    assert {status for row in found for status in row["how"]} == {"failed", "lock_expired"}
    assert await deadlocks(connection) == 0
