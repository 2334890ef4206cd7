"""The test rig of a fault: a server behind a proxy, workers, publishers and a history."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from notifyq.chaos.history import Call, History, calls, read
from notifyq.chaos.server import Server, until
from notifyq.config import DatabaseSettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from notifyq.chaos.load import Load
    from notifyq.chaos.proxy import Proxy
    from notifyq.chaos.workers import WorkerProcess
    from notifyq.database.pool import Connection

_DRAIN_SECONDS = 60.0
_WARM_SECONDS = 0.5
"""How long messages are published before the fault."""


@dataclass(kw_only=True)
class Rig:
    """The rig of one fault, from the start of its workers to empty queues."""

    server: Server
    """The primary; a fault that promotes another server sets it."""
    proxy: Proxy
    """Workers and publishers connect through it."""
    folder: Path
    """The folder of the history and of the workers' logs."""
    random: random.Random
    """The source of every choice of the fault."""
    seconds: float
    """How long the fault should last."""
    workers: list[WorkerProcess]
    load: Load
    notes: list[str] = field(default_factory=list)
    """Remarks for the report."""
    figures: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    """Expectations of the fault that were not met, beside those of the checker."""

    def __post_init__(self) -> None:
        self.history = History(self.folder, "rig")

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Open a session of the superuser that does not use the proxy."""
        return self.server.connection()

    @contextlib.asynccontextmanager
    async def publisher(self, sessions: int = 1) -> AsyncIterator[Publisher]:
        """Give a publisher for clients of the fault, through the proxy."""
        settings = DatabaseSettings.load(pool_size=sessions, connect_timeout=timedelta(seconds=5))
        async with Database(self.proxy.dsn, settings=settings) as database:
            yield Publisher(database)

    def figure(self, name: str, value: float, *, most: float | None = None) -> None:
        """Add a number to the report; more than `most` fails the fault. The unit is in its name."""
        self.figures[name] = value
        finding = f"{name}: at most {most} is allowed"
        if most is not None and value > most and finding not in self.findings:
            self.findings.append(finding)

    def peak(self, name: str, value: float, *, most: float | None = None) -> None:
        """Add the greatest of several numbers, as `figure` does."""
        if value >= self.figures.get(name, 0):
            self.figure(name, value, most=most)

    def kill_worker(self, victim: WorkerProcess | None = None) -> None:
        """Kill a worker, by default a random one, and start the next one in its place."""
        victim = victim or self.random.choice(self.workers)
        with self.injecting("worker-kill", victim=victim.name):
            victim.restart()

    def injecting(self, name: str, **fields: Any) -> AbstractContextManager[None]:
        """Record an injection from its start until it is healed.

        With `victim`, the name of a worker's process, recovery lasts from the start to the next
        execution of the messages that it held; with `outage`, from the end to the first claim.
        """
        return self._recording("fault", name=name, **fields)

    @contextlib.contextmanager
    def _recording(self, op: str, **fields: Any) -> Iterator[None]:
        call = self.history.invoke(op, **fields)
        try:
            yield
        except BaseException as error:
            call.fail(error=str(error))
            raise
        call.ok()

    async def pause(self, least: float, most: float | None = None) -> None:
        """Wait for a random time between the two."""
        await asyncio.sleep(least if most is None else self.random.uniform(least, most))

    def rounds(self) -> Iterator[int]:
        """Yield 1, 2, 3 and so on for the next `self.seconds`."""
        end = time.monotonic() + self.seconds
        return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(1))

    def calls(self) -> list[Call]:
        """The history so far."""
        return calls(read(self.folder))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run workers, publishers and the watcher until the end of the block."""
        try:
            for worker in self.workers:
                worker.start()
            await asyncio.gather(*(worker.started() for worker in self.workers))
            async with self.load.running():
                await asyncio.sleep(_WARM_SECONDS)
                yield
        finally:
            for worker in self.workers:
                worker.close()
            self.history.close()

    async def settle(self) -> None:
        """Restart workers that ended, drain the queues, and stop the workers.

        Raises ChaosError if messages stay live or a worker does not stop.
        """
        for worker in self.workers:
            if not worker.is_alive:
                if not worker.was_ended:
                    code, words = worker.process.returncode, worker.last_words()
                    self.notes.append(f"{worker.name} ended unexpectedly with {code}: {words}")
                worker.start()
        await self.load.stop_publishing()
        with self._recording("drain"):
            await until(self._is_drained, "no message is live", _DRAIN_SECONDS)
            async with self.connection() as connection:
                dead = await connection.fetchval(sql.DEAD_COUNT, None, None)
            await until(
                lambda: self.load.has_reported(dead), "the watcher reported all dead messages"
            )
        await asyncio.gather(*(worker.terminate() for worker in self.workers))

    async def backlog(self) -> int:
        """Return the number of live messages."""
        async with self.connection() as connection:
            count: int = await connection.fetchval("select count(*) from messages.message")
        return count

    async def _is_drained(self) -> bool:
        return await self.backlog() == 0
