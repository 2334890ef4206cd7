"""A storm over one stream: whatever happens to whom, each committed event is finished once.

Publishers and readers write what they did into tables of their own, in the transactions in which
they did it. So the accounts are exact, also where a session is ended in the middle of a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import asyncpg

from support.database import Connection, open_session, rows, value

READERS = {"plain": 1000, "sliced": 4, "single": 1, "whole": 100_000, "retrying": 20, "team": 6}
"""How many events each subscriber takes at a time, at most."""
_TABLES = """
    create schema storm;
    create table storm.published (id bigint primary key);
    create table storm.finished (subscriber text, id bigint, primary key (subscriber, id));
"""
_AGE = """
    update notifyq.segment set closed_at = closed_at - interval '1 day' where closed_at is not null
"""
_BACKENDS = """
    select pid from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend'
      and pid <> pg_backend_pid()
"""
_PREPARED = "select gid from pg_prepared_xacts where database = current_database()"
_MISSING = """
    select u.name, array(select id from storm.published except
      select id from storm.finished where subscriber = u.name order by 1) as lost,
      array(select id from storm.finished where subscriber = u.name except
      select id from storm.published order by 1) as unknown
    from unnest($1::text[]) as u (name)
"""
_MEMBERS = ["member 1", "member 2", "member 3"]
_PATIENCE = 30.0
"""Seconds without an event after which a reader gives up."""
_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.AdminShutdownError,
    asyncpg.QueryCanceledError,
    ConnectionError,
    TimeoutError,
)
_FAIR = {"40001", "40P01", "NQ022", "NQ003"}
"""Errors that a session may get: another was faster, or its snapshot is too old for the batch."""


class Storm:
    """One run; `seed` decides what is done, though not when the server does it."""

    def __init__(self, dsn: str, seed: int, *, publishers: int = 6) -> None:
        self._dsn = dsn
        self._seed = seed
        self._publishers = publishers
        self._prepares = False
        self._numbers = itertools.count(1)
        self._ends_at = 0.0
        self._is_published = False
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float) -> None:
        """Storm for so long, then wait until all is read, and settle the accounts."""
        async with self._session() as session:
            await session.execute(_TABLES)
            self._prepares = await session.fetchval("show max_prepared_transactions") != "0"
            await value(session, "create_stream", name="s", retention=timedelta(0), notify="off")
            for name in READERS:
                await value(session, "subscribe", stream="s", subscriber=name)
        self._ends_at = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            self._read_all(group)
            group.create_task(self._publish_all())
        # Readers publish, too: what one of them committed last, another may have left unread.
        async with asyncio.TaskGroup() as group:
            self._read_all(group)

    async def wrong(self) -> dict[str, str]:
        """What is wrong with the accounts, by subscriber."""
        async with self._session() as session:
            found = await session.fetch(_MISSING, list(READERS))
        return {
            row["name"]: f"lost {row['lost']}, unknown {row['unknown']}"
            for row in found
            if row["lost"] or row["unknown"]
        }

    def _read_all(self, group: asyncio.TaskGroup) -> None:
        for name in READERS:
            for member in _MEMBERS if name == "team" else [None]:
                group.create_task(self._read(name, member))

    async def _publish_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(self._publishers):
                group.create_task(self._repeat(self._publish))
            group.create_task(self._repeat(self._rotate))
            group.create_task(self._repeat(self._rotate))
            group.create_task(self._repeat(self._tick))
            group.create_task(self._repeat(self._hold))
            group.create_task(self._strike())
        async with self._session() as session:
            for row in await session.fetch(_PREPARED):
                await session.execute(f"commit prepared '{row['gid']}'")
        self._is_published = True

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._ends_at

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[Connection]:
        session = await open_session(self._dsn)
        try:
            yield session
        finally:
            session.terminate()

    def _dice(self) -> random.Random:
        return random.Random(f"{self._seed} {next(self._numbers)}")

    async def _repeat(self, step: Callable[[Connection, random.Random], Awaitable[None]]) -> None:
        """Do it again and again, in a new session where the last one was ended."""
        dice = self._dice()
        while not self._is_over:
            with contextlib.suppress(*_GONE):
                async with self._session() as session:
                    while not self._is_over:
                        try:
                            await step(session, dice)
                        except (*_GONE, asyncpg.PostgresError) as error:
                            self._note(error)
                            if session.is_closed():
                                break
                            await session.execute("rollback")

    def _note(self, error: Exception) -> None:
        state = getattr(error, "sqlstate", None) or type(error).__name__
        if not isinstance(error, _GONE) and state not in _FAIR:
            raise error
        self.counts[state] += 1

    async def _put(self, session: Connection, dice: random.Random) -> None:
        """One call, and the ids of what it has published, in one statement or two."""
        way = dice.random()
        if way < 0.5:
            await session.execute(
                "insert into storm.published select messages.publish('s', to_jsonb($1::int))", 1
            )
        elif way < 0.6:
            ids = await session.fetch(
                "select messages.publish('s', to_jsonb(n)) as id from generate_series(1, 3) as n"
            )
            await session.executemany("insert into storm.published values ($1)", map(tuple, ids))
        else:
            number = dice.choice((1, 2, 5, 30))
            await session.execute(
                "insert into storm.published select id from messages.publish_many('s', "
                "array_fill(to_jsonb(1), array[$1::int])) as p (id)",
                number,
            )

    async def _publish(self, session: Connection, dice: random.Random) -> None:
        way = dice.random()
        if way < 0.5:
            await session.execute("begin") if way < 0.1 else None
            await self._put(session, dice)
            await session.execute("commit") if way < 0.1 else None
            self.counts["single"] += 1
            await asyncio.sleep(dice.random() / 50)
            return
        isolation = dice.choice(("read committed", "repeatable read", "serializable"))
        await session.execute(f"begin isolation level {isolation}")
        for _ in range(dice.randint(1, 3)):
            await session.execute("savepoint a")
            await self._put(session, dice)
            await asyncio.sleep(dice.choice((0, 0, 0.01, 0.1)))
            await session.execute(dice.choice(("release a", "release a", "rollback to a")))
        if way < 0.8:
            await session.execute("commit")
        elif way < 0.9 or not self._prepares:
            await session.execute("rollback")
        else:
            name = f"storm {os.getpid()} {self._seed} {next(self._numbers)}"
            await session.execute("set local statement_timeout = 0")
            await session.execute(f"prepare transaction '{name}'")
            await asyncio.sleep(dice.random() / 3)
            await session.execute(
                f"{dice.choice(('commit', 'commit', 'rollback'))} prepared '{name}'"
            )
        self.counts["transaction"] += 1

    async def _read(self, subscriber: str, member: str | None) -> None:
        """Take batch after batch until all that was published is finished, or none comes."""
        dice, found_at = self._dice(), time.monotonic()
        while not await self._is_read(subscriber, found_at):
            with contextlib.suppress(*_GONE):
                async with self._session() as session:
                    while True:
                        try:
                            found = await self._read_one(session, dice, subscriber, member)
                        except (*_GONE, asyncpg.PostgresError) as error:
                            self._note(error)
                            if session.is_closed():
                                break
                            await session.execute("rollback")
                            continue
                        if found is not None:
                            found_at = time.monotonic()
                        elif await self._is_read(subscriber, found_at):
                            return
                        else:
                            await asyncio.sleep(dice.random() / 50)

    async def _is_read(self, subscriber: str, found_at: float) -> bool:
        """Whether a reader is done: the accounts are even, or nothing was found for long.

        Found was something at `found_at`, in monotonic seconds.
        """
        if not self._is_published:
            return False
        if time.monotonic() > max(found_at, self._ends_at) + _PATIENCE:
            return True
        return subscriber not in await self.wrong()

    async def _read_one(
        self, session: Connection, dice: random.Random, subscriber: str, member: str | None
    ) -> int | None:
        way = dice.random()
        limit = dice.choice((1, 3, 10, 50)) if way < 0.1 and not self._is_published else 0
        await session.execute(f"set statement_timeout = {limit}")
        within = dice.random() < 0.3
        if within:
            isolation = dice.choice(("read committed", "read committed", "repeatable read"))
            await session.execute(f"begin isolation level {isolation}")
            if dice.random() < 0.3 and not self._is_published:
                await self._put(session, dice)
        # In the end each takes what it has left faster.
        quantity = 10_000 if self._is_published else READERS[subscriber]
        arguments = {"stream": "s", "subscriber": subscriber, "quantity": quantity}
        if member:
            arguments |= {"member": member, "takeover": timedelta(seconds=0.5)}
        batch: int | None = await value(session, "next_batch", **arguments)
        if batch is None:
            if within:
                await session.execute("commit")
            return None
        if dice.random() < 0.05:
            await asyncio.sleep(dice.random() / 2)
        if not within:
            await session.execute("begin")
        await self._settle(session, dice, subscriber, batch)
        return batch

    async def _settle(
        self, session: Connection, dice: random.Random, subscriber: str, batch: int
    ) -> None:
        """Finish a batch in the transaction that is open, or leave it as it is."""
        ids = [row["id"] for row in await rows(session, "batch_events", batch=batch)]
        if not self._is_published:
            assert len(ids) <= READERS[subscriber], "a batch is too large"
        put_off = {e for e in ids if dice.random() < 0.1} if subscriber == "retrying" else set()
        for event in put_off:
            delay = timedelta(seconds=dice.random() / 5)
            assert await value(session, "retry_event", batch=batch, event=event, delay=delay)
        if dice.random() < 0.1 or not await value(session, "finish_batch", batch=batch):
            await session.execute("rollback")
            return
        await session.execute(
            "insert into storm.finished select $1, id from unnest($2::bigint[]) as u (id)",
            subscriber, [event for event in ids if event not in put_off],
        )  # fmt: skip
        await session.execute("commit")
        self.counts["batches"] += 1

    async def _rotate(self, session: Connection, dice: random.Random) -> None:
        """Maintenance, as if hours had passed: it closes, seals and empties segments."""
        with contextlib.suppress(asyncpg.ObjectNotInPrerequisiteStateError):
            await session.execute(_AGE) if dice.random() < 0.5 else None
            await session.execute(
                "update notifyq.segment set opened_at = opened_at - interval '1 day' "
                "where closed_at is null and stream is not null"
            )
            if dice.random() < 0.3 and not self._is_published:
                await session.execute("begin")
                await rows(session, "maintain")
                await asyncio.sleep(dice.random() / 20)
                await session.execute(dice.choice(("commit", "commit", "rollback")))
            else:
                await rows(session, "maintain")
            self.counts["maintenance"] += 1
        await asyncio.sleep(dice.random() / 10)

    async def _tick(self, session: Connection, dice: random.Random) -> None:
        if dice.random() < 0.3:
            await value(session, "tick", stream="s")
        await asyncio.sleep(dice.random() / 10)

    async def _hold(self, session: Connection, dice: random.Random) -> None:
        """An old snapshot, with a number or without one."""
        await session.execute("begin isolation level repeatable read")
        await session.execute(dice.choice(("select 1", "select pg_current_xact_id()")))
        await asyncio.sleep(dice.random())
        await session.execute("commit")

    async def _strike(self) -> None:
        """Stop sessions in their tracks for a while, cancel and end them."""
        dice, tasks = self._dice(), set()
        async with self._session() as session:
            while not self._is_over:
                await asyncio.sleep(dice.random() / 30)
                backends = [row["pid"] for row in await session.fetch(_BACKENDS)]
                if not backends:
                    continue
                pid = dice.choice(backends)
                way = dice.random()
                if way < 0.03:
                    await session.execute("select pg_terminate_backend($1)", pid)
                    self.counts["ended"] += 1
                elif way < 0.1:
                    await session.execute("select pg_cancel_backend($1)", pid)
                    self.counts["cancelled"] += 1
                elif _is_here(pid):
                    pause = dice.choice((0.003, 0.01, 0.03, 0.1, 0.3, 1.0))
                    task = asyncio.create_task(self._pause(pid, pause))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _pause(self, pid: int, seconds: float) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGSTOP)
            self.counts["paused"] += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                os.kill(pid, signal.SIGCONT)


def _is_here(pid: int) -> bool:
    """Whether this is a process of this machine's, and a server's: the server may run elsewhere."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"postgres:")
    return False
