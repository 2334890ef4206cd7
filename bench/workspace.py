"""A prepared system on the server, and the steps that cases share."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import asyncpg

from notifyq.errors import NotifyqError

from .processes import Workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from datetime import datetime

    from .server import Host
    from .system import Statements, System

_POLL = 0.02
"""Seconds between two questions for the last commit."""
_REST = 50
"""Times as long as a look at a backlog takes, there is no other while the server is busy."""
_SMALL = 2000
"""Messages of a backlog of the warm-up."""
_READY = 30.0
"""Seconds that workers have to begin."""
LOST = 10.0
"""Seconds after which a message counts as lost, with this latency."""
# The time is that of the commit, written by the server; null where it does not keep them.
_LAST_COMMIT = """
case when current_setting('track_commit_timestamp')::boolean
  then (select timestamp from pg_last_committed_xact()) end
"""
_PROBE = -1_000_000
"""The first number of the messages that wait for the workers to begin."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run; the defaults are those of a full run."""

    rounds: int = 3
    seconds: int = 3
    """Duration of each publication."""
    warm_up: float = 2.0
    """Seconds that workers have small backlogs before a measurement."""
    clients: tuple[int, ...] = (1, 16, 64)
    bulk: int = 1000
    """Messages of a bulk statement."""
    backlog: int = 200_000
    patience: float = 10.0
    """Seconds after which a drain ends; its rate counts the messages handled until then."""
    rate: int = 200
    """Messages a second of the steady case."""
    steady: int = 5
    """Seconds of the steady case."""
    idle: int = 200
    """Messages of the idle case."""
    calls: int = 3000
    """Calls that publish one message each, for their processor time."""
    dead_rows: int = 20_000
    """Messages handled while a snapshot is held, before the second measurement."""
    beside: tuple[int, ...] = (1, 2)
    """Numbers of worker processes beside publishers; more than the first for most clients only."""
    processes: tuple[int, ...] = (1, 2, 3, 4)
    queues: tuple[int, ...] = (1, 10, 100, 1000)
    payloads: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    """Bytes of a message."""
    volume: int = 100_000_000
    """Most bytes of a backlog of large messages."""
    events: int = 100_000
    """Events of a batch of a stream."""
    held: int = 20
    """Seconds of traffic while a snapshot is held, before the second measurement."""
    sessions: tuple[int, ...] = (1, 2)
    """Numbers of sessions that drain a queue with a limit."""
    limited: int = 20_000
    """Messages of such a drain."""
    turns: int = 3
    """Measurements of each limit in a round, in changing order."""

    @classmethod
    def quick(cls) -> Sizes:
        """Return the sizes of a quick run: a first impression."""
        return cls(
            rounds=1, seconds=1, warm_up=0.5, clients=(1, 64), backlog=20_000, patience=2.0,
            steady=2, idle=10, calls=300, dead_rows=2000, processes=(1, 2), queues=(1, 100),
            payloads=(100, 10_000), volume=10_000_000, events=20_000, held=2, limited=2000, turns=1,
        )  # fmt: skip


@dataclass(slots=True)
class Measured:
    """One measurement of a case."""

    variant: str
    system: str
    values: dict[str, float]
    latencies: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Workspace:
    """A prepared system on the server, and the operations on it that cases use."""

    host: Host
    system: System
    dsn: str
    statements: Statements

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a session in the system's database."""
        connection = await asyncpg.connect(self.dsn, command_timeout=120)
        try:
            yield connection
        finally:
            await connection.close()

    async def clear(self) -> None:
        """Delete all messages and write a checkpoint."""
        async with self.connect() as connection:
            await connection.execute(f"truncate {self.statements.tables}")
        await self.host.settle()

    @contextlib.asynccontextmanager
    async def working(self, sizes: Sizes, processes: int = 1) -> AsyncIterator[Workers]:
        """Run so many workers; each is warm when the block begins."""
        async with (
            self.connect() as connection,
            Workers.start(self.system.commands(self.dsn, processes)) as workers,
        ):
            deadline = time.monotonic() + _READY
            probe = _PROBE
            while len(workers.seen) < processes:
                workers.check()
                if time.monotonic() > deadline:
                    raise NotifyqError(
                        f"{len(workers.seen)} of {processes} workers began: {workers.output}"
                    )
                await publish(connection, self.statements, probe)
                await workers.wait(probe, 0.2)
                probe += 1
            ready = time.monotonic() + sizes.warm_up
            while (left := ready - time.monotonic()) > 0:
                await self.drain(workers, self.statements.many(_SMALL), left)
            await self.drained(connection, workers, _READY)
            yield workers

    async def left(self, connection: asyncpg.Connection) -> int:
        """Return the number of messages that are not finished."""
        number: int = await connection.fetchval(f"select count(*) from {self.statements.waiting}")
        return number

    async def drained(
        self, connection: asyncpg.Connection, workers: Workers, patience: float
    ) -> tuple[datetime, int]:
        """Wait until the backlog is empty; return when, by the server, and the messages left.

        It was empty when the last transaction committed before it was found to be so.
        """
        waiting = self.statements.waiting
        begun = time.monotonic()
        resume = 0.0
        last: datetime | None = None
        while True:
            workers.check()
            before, last = last, await connection.fetchval(f"select {_LAST_COMMIT}")
            now = time.monotonic()
            # To read a table with many dead rows takes from the workers, so it waits for them.
            if (last is not None and last == before) or now > resume:
                is_left, ended = await _row(
                    connection,
                    f"select exists (select from {waiting}), "
                    f"coalesce({_LAST_COMMIT}, statement_timestamp())",
                )
                if not is_left:
                    return ended, 0
                resume = now + _REST * (time.monotonic() - now)
            if now - begun > patience:
                left, ended = await _row(
                    connection, f"select count(*), statement_timestamp() from {waiting}"
                )
                return ended, left
            await asyncio.sleep(_POLL)

    async def drain(self, workers: Workers, statement: str, patience: float) -> dict[str, float]:
        """Publish a backlog in one transaction and measure how it is drained.

        Its seconds go from just before this transaction commits until the last one of the workers
        has.
        """
        async with self.connect() as connection:
            async with connection.transaction():
                await connection.execute(statement)
                # Autovacuum would have analysed a grown backlog; without statistics, some systems
                # read all of it for each message.
                await connection.execute(f"analyze {self.statements.tables}")
                # After the publication, whose cost is another case, and before workers see it.
                before = await self.host.used(workers)
                await self.host.flush()
                # With what an earlier drain may have left.
                number, begun = await _row(
                    connection, f"select count(*), clock_timestamp() from {self.statements.waiting}"
                )
            ended, left = await self.drained(connection, workers, patience)
            done = number - left
            used = await self.host.per_message(before, done, workers)
        seconds = (ended - begun).total_seconds()
        return {"rate": done / seconds, **used} | ({"left": left} if left else {})

    async def kept(self) -> int | None:
        """Return the bytes on disk of the finished messages, where a table has only these."""
        if self.statements.archive is None:
            return None
        async with self.connect() as connection:
            size: int = await connection.fetchval(
                "select sum(pg_total_relation_size(relid))::bigint from pg_partition_tree($1)",
                self.statements.archive,
            )
            return size


class Sent(NamedTuple):
    """When a message was published, by this machine's clock."""

    call: float
    """Before its call was sent."""
    reply: float
    """When it was known to be committed."""


async def publish(connection: asyncpg.Connection, statements: Statements, number: int) -> Sent:
    """Publish message `number`."""
    call = time.time()
    await connection.fetchval(statements.one("$1::text"), f'{{"n": {number}}}')
    return Sent(call, time.time())


def latencies(workers: Workers, sent: Mapping[int, Sent]) -> Iterator[tuple[str, list[float]]]:
    """Yield the seconds to the handler's start, from the call of each message and from its reply.

    They are negative where a handler began before its publisher had the reply.
    """
    for index, name in enumerate(Sent._fields):
        yield (
            f"from the {name}",
            [
                workers.begun[n] - at[index] if n in workers.begun else LOST
                for n, at in sent.items()
            ],
        )


async def one_by_one(workspace: Workspace, workers: Workers, numbers: range) -> dict[int, Sent]:
    """Publish each message after the one before has begun; return when, by number."""
    sent = {}
    async with workspace.connect() as connection:
        for n in numbers:
            # Random, so that publications are not in step with polling.
            await asyncio.sleep(random.uniform(0.03, 0.13))  # noqa: S311  it protects nothing
            sent[n] = await publish(connection, workspace.statements, n)
            await workers.wait(n, LOST)
    return sent


async def _row(connection: asyncpg.Connection, statement: str) -> asyncpg.Record:
    """Return the row of a statement that has exactly one."""
    [row] = await connection.fetch(statement)
    return row
