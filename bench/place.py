"""A prepared system on the server, and the ways to use it that the cases share."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncpg

from notifyq.errors import NotifyqError

from .processes import Crew

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from .server import Host
    from .system import Statements, System

_LOOK = 0.05
"""Seconds between two looks at how much is left of a backlog."""
_READY = 30.0
"""Seconds that workers have to begin."""
LOST = 10.0
"""Seconds after which a message is no longer waited for; it counts with this latency."""
_PROBE = -1_000_000
"""Numbers of the messages that find out whether the workers are there begin here."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is done; the defaults are those of a full run."""

    rounds: int = 3
    seconds: int = 2
    """Of each publishing."""
    clients: tuple[int, ...] = (1, 16, 64)
    bulk: int = 1000
    """Messages of a bulk statement."""
    backlog: int = 20_000
    patience: float = 5.0
    """Seconds after which a drain ends; its rate is that of what was done until then."""
    rate: int = 200
    """Messages a second of the steady case."""
    steady: int = 5
    """Seconds of it."""
    idle: int = 60
    """Messages of the idle case."""
    dead_rows: int = 20_000
    """Messages worked while a snapshot is held, before the second look."""
    processes: tuple[int, ...] = (2, 4)
    events: int = 100_000
    """Of a batch of a stream."""
    held: int = 20
    """Seconds for which a stream is used while a snapshot is held, before the second look."""
    sessions: tuple[int, ...] = (1, 2)
    """That work off a queue with a limit."""
    turns: int = 3
    """How often each limit is measured in a round, between the others."""

    @classmethod
    def quick(cls) -> Sizes:
        """Return the sizes of a quick run: a look, not a result."""
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


class Place:
    """A prepared system on the server: what the cases do with it."""

    def __init__(self, host: Host, system: System, dsn: str, statements: Statements) -> None:
        self.host = host
        self.system = system
        self.dsn = dsn
        self.statements = statements

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[asyncpg.Connection]:
        """Open a session in the system's database."""
        connection = await asyncpg.connect(self.dsn, command_timeout=120)
        try:
            yield connection
        finally:
            await connection.close()

    async def clear(self) -> None:
        """Forget all messages, and let the server come to rest."""
        async with self.connect() as connection:
            await connection.execute(f"truncate {self.statements.tables}")
        await self.host.settle()

    @contextlib.asynccontextmanager
    async def working(self, processes: int = 1) -> AsyncIterator[Crew]:
        """Run so many workers, each of which has handled a message when the block begins."""
        async with (
            self.connect() as connection,
            Crew.start(self.system.workers(self.dsn, processes)) as crew,
        ):
            deadline = time.monotonic() + _READY
            probe = _PROBE
            while len(crew.seen) < processes:
                crew.check()
                if time.monotonic() > deadline:
                    raise NotifyqError(
                        f"{len(crew.seen)} of {processes} workers began: {crew.said}"
                    )
                await publish(connection, self.statements, probe)
                await crew.wait(probe, 0.2)
                probe += 1
            await self.drained(connection, crew, _READY)
            yield crew

    async def drained(
        self, connection: asyncpg.Connection, crew: Crew, patience: float
    ) -> tuple[float, int]:
        """Wait for the end of the backlog; return the seconds, and how many messages are left."""
        waiting = self.statements.waiting
        begun = time.monotonic()
        while True:
            crew.check()
            is_left = await connection.fetchval(f"select exists (select from {waiting})")
            seconds = time.monotonic() - begun
            if not is_left:
                return seconds, 0
            if seconds > patience:
                left = await connection.fetchval(f"select count(*) from {waiting}")
                return time.monotonic() - begun, left
            await asyncio.sleep(_LOOK)

    async def drain(self, crew: Crew, number: int, patience: float) -> dict[str, float]:
        """Publish a backlog in one transaction and measure how it is worked off."""
        async with self.connect() as connection:
            count = f"select count(*) from {self.statements.waiting}"
            async with connection.transaction():
                await connection.execute(self.statements.many(number))
                number = await connection.fetchval(count)  # a drain before may have left some
                # A backlog that had grown would have been analysed; without it, the plans of some
                # systems read all of it for each message.
                await connection.execute(f"analyze {self.statements.tables}")
                # After the publishing, whose cost is another case, and before anybody sees it.
                before, worked = await self.host.counters(), crew.cpu()
            seconds, left = await self.drained(connection, crew, patience)
            after, ended = await self.host.counters(), crew.cpu()
        done = number - left
        values = {"rate": done / seconds, **after.per_message(before, done)}
        if worked is not None and ended is not None:
            values["worker_cpu"] = (ended - worked) / max(done, 1)
        return values | ({"left": left} if left else {})


async def publish(connection: asyncpg.Connection, statements: Statements, number: int) -> float:
    """Publish message `number`; return when it was committed, by this machine's clock."""
    await connection.fetchval(statements.one("$1::text"), f'{{"n": {number}}}')
    return time.time()


def latency(crew: Crew, number: int, committed: float) -> float:
    """Return the seconds from the commit to the handler's start."""
    # A handler may begin before the publisher has heard that its commit is done.
    return max(0.0, crew.begun[number] - committed) if number in crew.begun else LOST


async def one_by_one(place: Place, crew: Crew, numbers: range) -> list[float]:
    """Publish message after message, each when the one before has begun; return the latencies."""
    latencies = []
    async with place.connect() as connection:
        for n in numbers:
            # Not in step with anybody's polling.
            await asyncio.sleep(random.uniform(0.03, 0.13))  # noqa: S311  it protects nothing
            committed = await publish(connection, place.statements, n)
            await crew.wait(n, LOST)
            latencies.append(latency(crew, n, committed))
    return latencies
