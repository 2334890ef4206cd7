"""A prepared system on the server, and the steps that cases share."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncpg

from notifyq.errors import NotifyqError

from .processes import Workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .server import Host
    from .system import Statements, System

_POLL = 0.05
"""Seconds between two checks of a backlog."""
_READY = 30.0
"""Seconds that workers have to begin."""
LOST = 10.0
"""Seconds after which a message counts as lost, with this latency."""
_PROBE = -1_000_000
"""The first number of the messages that wait for the workers to begin."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a run; the defaults are those of a full run."""

    rounds: int = 3
    seconds: int = 2
    """Duration of each publication."""
    clients: tuple[int, ...] = (1, 16, 64)
    bulk: int = 1000
    """Messages of a bulk statement."""
    backlog: int = 20_000
    patience: float = 5.0
    """Seconds after which a drain ends; its rate counts the messages handled until then."""
    rate: int = 200
    """Messages a second of the steady case."""
    steady: int = 5
    """Seconds of the steady case."""
    idle: int = 60
    """Messages of the idle case."""
    dead_rows: int = 20_000
    """Messages handled while a snapshot is held, before the second measurement."""
    processes: tuple[int, ...] = (2, 4)
    events: int = 100_000
    """Events of a batch of a stream."""
    held: int = 20
    """Seconds of traffic while a snapshot is held, before the second measurement."""
    sessions: tuple[int, ...] = (1, 2)
    """Numbers of sessions that drain a queue with a limit."""
    turns: int = 3
    """Measurements of each limit in a round, in changing order."""

    @classmethod
    def quick(cls) -> Sizes:
        """Return the sizes of a quick run: a first impression."""
        return cls(
            rounds=1, seconds=1, clients=(1, 64), backlog=2000, patience=2.0, steady=2, idle=10,
            dead_rows=2000, processes=(2,), events=20_000, held=2,
            turns=1,
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
    async def working(self, processes: int = 1) -> AsyncIterator[Workers]:
        """Run so many workers; each has handled a message when the block begins."""
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
            await self.drained(connection, workers, _READY)
            yield workers

    async def drained(
        self, connection: asyncpg.Connection, workers: Workers, patience: float
    ) -> tuple[float, int]:
        """Wait until the backlog is empty; return the seconds and the messages left."""
        waiting = self.statements.waiting
        begun = time.monotonic()
        while True:
            workers.check()
            is_left = await connection.fetchval(f"select exists (select from {waiting})")
            seconds = time.monotonic() - begun
            if not is_left:
                return seconds, 0
            if seconds > patience:
                left = await connection.fetchval(f"select count(*) from {waiting}")
                return time.monotonic() - begun, left
            await asyncio.sleep(_POLL)

    async def drain(self, workers: Workers, number: int, patience: float) -> dict[str, float]:
        """Publish a backlog in one transaction and measure how it is drained."""
        async with self.connect() as connection:
            count = f"select count(*) from {self.statements.waiting}"
            async with connection.transaction():
                await connection.execute(self.statements.many(number))
                number = await connection.fetchval(count)  # an earlier drain may have left some
                # Autovacuum would have analysed a grown backlog; without statistics, some systems
                # read all of it for each message.
                await connection.execute(f"analyze {self.statements.tables}")
                # After the publication, whose cost is another case, and before workers see it.
                before = await self.host.used(workers)
            seconds, left = await self.drained(connection, workers, patience)
            done = number - left
            used = await self.host.per_message(before, done, workers)
        return {"rate": done / seconds, **used} | ({"left": left} if left else {})


async def publish(connection: asyncpg.Connection, statements: Statements, number: int) -> float:
    """Publish message `number`; return when it was committed, by this machine's clock."""
    await connection.fetchval(statements.one("$1::text"), f'{{"n": {number}}}')
    return time.time()


def latency(workers: Workers, number: int, committed: float) -> float:
    """Return the seconds from the commit to the handler's start."""
    # A handler may begin before the publisher gets the answer to its commit.
    return max(0.0, workers.begun[number] - committed) if number in workers.begun else LOST


async def one_by_one(workspace: Workspace, workers: Workers, numbers: range) -> list[float]:
    """Publish each message after the one before has begun; return the latencies."""
    latencies = []
    async with workspace.connect() as connection:
        for n in numbers:
            # Random, so that publications are not in step with polling.
            await asyncio.sleep(random.uniform(0.03, 0.13))  # noqa: S311  it protects nothing
            committed = await publish(connection, workspace.statements, n)
            await workers.wait(n, LOST)
            latencies.append(latency(workers, n, committed))
    return latencies
