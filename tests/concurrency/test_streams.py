"""Many publish into a stream and many read it: each subscriber gets each committed event once."""

from __future__ import annotations

import asyncio
import os
import random
from datetime import timedelta
from typing import Any

import pytest

from support.database import Connect, Connection, rows, until_blocked, value

"""Of each publisher, at least."""
STEPS = int(os.environ.get("NOTIFYQ_STREAM_STEPS", "100"))
INSERT = """
    insert into messages.stream_event (stream, message)
    select 's', e from jsonb_array_elements($1::jsonb) as e
"""


async def test_one_of_two_concurrent_calls_finishes_a_batch(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "create_stream", name="s")
    await value(connection, "subscribe", stream="s", subscriber="c")
    await rows(connection, "publish_many", queue="s", messages=[1])
    first, second = await connect(), await connect()
    batch = await value(first, "next_batch", stream="s", subscriber="c")
    for is_undone in (True, False):
        transaction = first.transaction()
        await transaction.start()
        assert await value(first, "finish_batch", batch=batch)
        # Open for all others until that is committed.
        assert await value(connection, "next_batch", stream="s", subscriber="c") == batch
        await second.execute("begin")
        finishing = asyncio.create_task(value(second, "finish_batch", batch=batch))
        await until_blocked(connection, second)
        await (transaction.rollback() if is_undone else transaction.commit())
        assert await finishing is is_undone
        await second.execute("rollback")
    assert await value(connection, "next_batch", stream="s", subscriber="c") is None


class Script:
    """Random steps of some sessions, one after the other: every interleaving can be repeated."""

    def __init__(self, sessions: list[Connection], reader: Connection, seed: int) -> None:
        self._dice = random.Random(seed)
        self._reader = reader
        self._sessions = sessions
        self._open: dict[Connection, list[Any]] = {}
        """Of each session its transaction and the savepoints in it."""
        self._written: dict[Connection, list[list[int]]] = {}
        """What each of those has published."""
        self._own: dict[Connection, set[int]] = {}
        """All that it has published."""
        self._reads: dict[Connection, list[int]] = {}
        self._number = 0
        self.committed: list[int] = []
        self.finished: dict[str, list[int]] = {"plain": [], "sliced": [], "within": []}
        self.steps: list[str] = []

    async def step(self) -> None:
        session = self._dice.choice(self._sessions)
        depth = len(self._open.get(session, []))
        if depth == 0:
            steps = [self.put, self.put, self.begin, self.begin, self.tick, self.maintenance]
            steps += [self.read_plain, self.read_sliced, self.end_within, self.others]
        else:
            steps = [self.put, self.put, self.begin, self.commit, self.commit, self.roll_back]
            steps += [self.read_within, self.others]
        chosen = self._dice.choice(steps)
        self.steps.append(f"{self._sessions.index(session)} {chosen.__name__}")
        await chosen(session)

    async def put(self, session: Connection) -> None:
        numbers = [*range(self._number, self._number + self._dice.randint(1, 3))]
        self._number = numbers[-1] + 1
        self._own.setdefault(session, set()).update(numbers)
        if self._dice.random() < 0.5:
            await rows(session, "publish_many", queue="s", messages=numbers)
        else:
            await session.fetch(INSERT, numbers)
        if self._open.get(session):
            self._written[session][-1] += numbers
        else:
            self.committed += numbers

    async def begin(self, session: Connection) -> None:
        transaction = session.transaction()
        await transaction.start()
        self._open.setdefault(session, []).append(transaction)
        self._written.setdefault(session, []).append([])

    async def commit(self, session: Connection) -> None:
        await self._open[session].pop().commit()
        written = self._written[session].pop()
        if self._open[session]:
            self._written[session][-1] += written
            return
        self.committed += written
        self.finished["within"] += self._reads.pop(session, [])

    async def roll_back(self, session: Connection) -> None:
        while self._open[session]:
            await self._open[session].pop().rollback()
            self._written[session].pop()
        self._reads.pop(session, None)

    async def tick(self, session: Connection) -> None:
        await value(session, "tick", stream="s")

    async def others(self, session: Connection) -> None:
        """As if other streams had got so many ids that a window is not read as a whole."""
        await session.fetchval(
            "select setval('messages.event_id_seq', nextval('messages.event_id_seq') + 2000)"
        )

    async def maintenance(self, session: Connection) -> None:
        # As if hours had passed: segments are closed, sealed and emptied.
        await session.execute(
            "update notifyq.segment set opened_at = opened_at - interval '1 day';"
            "update notifyq.tick set created_at = created_at - interval '1 day'"
        )
        await rows(session, "maintain")

    async def read_plain(self, session: Connection) -> None:
        await self._read_all(session, "plain", 1000)

    async def read_sliced(self, session: Connection) -> None:
        await self._read_all(session, "sliced", self._dice.randint(1, 4))

    async def _read_all(self, session: Connection, subscriber: str, quantity: int) -> None:
        """Whatever is committed by now is there, and nothing else."""
        arguments = {"stream": "s", "subscriber": subscriber, "quantity": quantity}
        while (batch := await value(session, "next_batch", **arguments)) is not None:
            found = await rows(session, "batch_events", batch=batch)
            assert len(found) <= quantity
            assert await value(session, "finish_batch", batch=batch)
            self.finished[subscriber] += [row["message"] for row in found]
        assert sorted(self.finished[subscriber]) == sorted(self.committed), self.steps

    async def read_within(self, session: Connection) -> None:
        """One batch, finished in a transaction that publishes, too."""
        if self._reads.keys() - {session}:
            return  # the subscription is locked by another one
        arguments = {"stream": "s", "subscriber": "within", "quantity": self._dice.randint(1, 5)}
        batch = await value(session, "next_batch", **arguments)
        kept = self._reads.setdefault(session, [])
        if batch is not None:
            found = await rows(session, "batch_events", batch=batch)
            assert await value(session, "finish_batch", batch=batch)
            kept += [row["message"] for row in found]

    async def end_within(self, session: Connection) -> None:
        """Read in autocommit what is left for the one that reads in transactions."""
        if not self._reads:
            await self._read_all(session, "within", 7)

    async def end(self) -> None:
        for session in self._sessions:
            if self._open.get(session):
                await self.roll_back(session)
        for name in self.finished:
            await self._read_all(self._reader, name, 3)
        for name in ("plain", "sliced"):
            for numbers in self._own.values():
                # In the order of its session, also where that had several transactions.
                own = [number for number in self.finished[name] if number in numbers]
                assert own == sorted(own), self.steps


@pytest.mark.parametrize("seed", range(54, 60))
async def test_each_committed_event_is_read_once_in_any_interleaving(
    connection: Connection, connect: Connect, seed: int
) -> None:
    await value(connection, "create_stream", name="s", retention=timedelta(0))
    script = Script([await connect() for _ in range(4)], connection, seed)
    for name in script.finished:
        await value(connection, "subscribe", stream="s", subscriber=name)
    for _ in range(STEPS):
        await script.step()
    await script.end()


@pytest.mark.parametrize("first", ["next_batch", "tick", "publish", "subscribe"])
async def test_a_transaction_continues_in_its_segment(
    connection: Connection, connect: Connect, first: str
) -> None:
    """Whatever it does first, nothing is lost: it may have a number by then, or none yet."""
    late = await connect()
    await value(connection, "create_stream", name="s")
    read: list[int] = []

    async def read_all() -> None:
        while (batch := await value(connection, "next_batch", **arguments)) is not None:
            read.extend(r["message"] for r in await rows(connection, "batch_events", batch=batch))
            assert await value(connection, "finish_batch", batch=batch)

    arguments: dict[str, Any] = {"stream": "s", "subscriber": "c", "quantity": 2}
    await value(connection, "subscribe", stream="s", subscriber="c")
    await value(connection, "publish", queue="s", message=0)
    await late.execute("begin")
    await value(late, "publish", queue="s", message=1)  # with the newest number of all
    async with connection.transaction():
        if first == "tick":
            await value(connection, "tick", stream="s")
        elif first == "publish":
            await value(connection, "publish", queue="s", message=2)
        elif first == "subscribe":
            await value(connection, "unsubscribe", stream="s", subscriber="c")
            await value(connection, "subscribe", stream="s", subscriber="c", position="start")
        await read_all()
        await value(late, "publish", queue="s", message=3)
        await value(connection, "publish", queue="s", message=4)
        await value(connection, "tick", stream="s")
        await read_all()
    await read_all()
    await late.execute("commit")
    await read_all()
    assert sorted(read) == [0, 1, *([2] if first == "publish" else []), 3, 4]


async def test_a_batch_that_was_taken_over_repeats_for_its_new_member(
    connection: Connection,
) -> None:
    await value(connection, "create_stream", name="s")
    await value(connection, "subscribe", stream="s", subscriber="team")

    async def next_of(member: str, **options: Any) -> int | None:
        arguments = {"stream": "s", "subscriber": "team", "quantity": 1, "member": member}
        batch: int | None = await value(connection, "next_batch", **arguments, **options)
        return batch

    await rows(connection, "publish_many", queue="s", messages=[1, 2, 3])
    dead = await next_of("one")
    own = await next_of("two")
    assert own != dead
    assert await value(connection, "finish_batch", batch=own)
    await connection.execute(
        "update notifyq.batch set opened_at = opened_at - interval '1 hour' where member = 'one'"
    )
    minute = timedelta(minutes=1)
    assert await next_of("two", takeover=minute) == dead
    assert await next_of("two", takeover=minute) == dead
    assert await next_of("two") == dead
    assert await next_of("one", takeover=minute) not in {dead, own, None}
    assert await value(connection, "finish_batch", batch=dead)


async def _age(session: Connection) -> None:
    await session.execute(
        "update notifyq.segment set opened_at = opened_at - interval '1 day';"
        "update notifyq.tick set created_at = created_at - interval '1 day'"
    )


async def _read_all(session: Connection, subscriber: str) -> list[Any]:
    found: list[Any] = []
    arguments = {"stream": "s", "subscriber": subscriber}
    while (batch := await value(session, "next_batch", **arguments)) is not None:
        found += [row["message"] for row in await rows(session, "batch_events", batch=batch)]
        assert await value(session, "finish_batch", batch=batch)
    return found


@pytest.mark.parametrize("reads_before", [False, True])
async def test_a_publisher_that_came_while_its_segment_was_being_closed_is_waited_for(
    connection: Connection, connect: Connect, reads_before: bool
) -> None:
    """It has read which segment is the present one, and is slow in writing to it."""
    closer, later, gate = await connect(), await connect(), await connect()
    await value(connection, "create_stream", name="s", retention=timedelta(0))
    await value(connection, "subscribe", stream="s", subscriber="c")
    spare = "select exists (select from notifyq.segment where stream is null and waits_for = '{}')"
    while not await connection.fetchval(spare):
        await value(connection, "publish", queue="s", message=0)
        assert await _read_all(connection, "c") == [0]
        await _age(connection)
        await rows(connection, "maintain")
    await value(connection, "publish", queue="s", message=0)
    assert await _read_all(connection, "c") == [0]
    await _age(connection)
    present = "select segment from messages.stream"
    segment = await connection.fetchval(present)
    await later.execute("begin")
    if reads_before:
        await later.execute("select from pg_stat_activity")
    publisher = await connect()
    await closer.execute("begin")
    await rows(closer, "maintain")
    assert await closer.fetchval(present) != segment
    await gate.execute("begin; alter sequence messages.event_id_seq no cycle")
    publishing = asyncio.create_task(value(publisher, "publish", queue="s", message=4))
    await until_blocked(connection, publisher)
    await closer.execute("commit")
    await rows(later, "maintain")
    await later.execute("commit")
    for _ in range(3):
        await rows(connection, "maintain")
        await value(connection, "tick", stream="s")
        assert await _read_all(connection, "c") == []
    await gate.execute("rollback")
    await publishing
    assert await _read_all(connection, "c") == [4]


async def test_a_new_segment_is_written_to_when_all_can_know_of_it(
    connection: Connection, connect: Connect
) -> None:
    """The session that made it may be slow to notify others: until then it holds the table.

    And others may be slow in listening: until their transactions are over.
    """
    maker, old = await connect(), await connect()
    await value(connection, "create_stream", name="s", retention=timedelta(0))
    await value(connection, "publish", queue="s", message=0)
    await _age(connection)
    present = "select segment from messages.stream"
    first = await connection.fetchval(present)
    await rows(connection, "maintain")
    assert await connection.fetchval(present) == first
    spare = await connection.fetchval("select id from notifyq.segment where stream is null")
    async with maker.transaction():
        await maker.execute(f"lock table notifyq.event_{spare}")
        await rows(connection, "maintain")
        assert await connection.fetchval(present) == first
    async with old.transaction():
        await old.fetchval("select 1")
        for _ in range(4):
            await rows(connection, "maintain")
        assert await connection.fetchval(present) == first
        # However long that takes, one is made.
        assert await connection.fetchval("select count(*) from notifyq.segment") == 2
    async with maker.transaction():
        await rows(connection, "maintain")
        assert await connection.fetchval(present) != first


async def test_a_transaction_publishes_while_its_stream_goes_on_to_a_new_segment(
    connection: Connection, connect: Connect
) -> None:
    """With a plan that is there it takes no lock that it has not got, so it learns of no table."""
    publisher, suppressing = await connect(), await connect()
    await value(connection, "create_stream", name="s", retention=timedelta(0))
    await value(connection, "subscribe", stream="s", subscriber="c")
    assert await value(suppressing, "notifyq.suppress_stream", stream="s")
    numbers = iter(range(100))
    await publisher.execute("set plan_cache_mode = force_generic_plan")
    present = "select segment from messages.stream"
    first = await connection.fetchval(present)
    for _ in range(3):
        async with publisher.transaction():
            for _ in range(4):
                await publisher.fetch(INSERT, [next(numbers)])
                for _ in range(3):
                    await _age(connection)
                    await rows(connection, "maintain")
        for _ in range(2):
            await _age(connection)
            await rows(connection, "maintain")
    assert await connection.fetchval(present) != first
    assert await _read_all(connection, "c") == list(range(next(numbers)))


async def test_all_sessions_are_notified_again_of_a_segment_in_use(connection: Connection) -> None:
    """A session that reads the tables of events while another one is made may miss it."""
    await value(connection, "create_stream", name="s", retention=timedelta(0))
    await value(connection, "publish", queue="s", message=0)
    count = """
        select xmin from pg_attribute
        where attrelid = 'messages.event'::regclass and attname = 'id'
    """
    present = "select segment from messages.stream"
    first, before = await connection.fetchval(present), await connection.fetchval(count)
    while await connection.fetchval(present) == first:
        assert await connection.fetchval(count) == before
        await _age(connection)
        await rows(connection, "maintain")
    assert await connection.fetchval(count) != before
