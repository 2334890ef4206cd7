"""What a fault has at hand: a server, a proxy in front of it, workers, publishers, a history."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from typing import TYPE_CHECKING, Any

from notifyq.chaos.errors import ChaosError
from notifyq.chaos.history import History, calls, read
from notifyq.database import sql

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from notifyq.chaos.history import Call
    from notifyq.chaos.load import Load
    from notifyq.chaos.proxy import Proxy
    from notifyq.chaos.server import Server
    from notifyq.chaos.workers import WorkerProcess
    from notifyq.database.pool import Connection

_LOOK = 0.02
"""Seconds between two looks at a condition."""
_DRAIN_SECONDS = 60.0
_WARM_SECONDS = 0.5
"""How long messages flow before the fault."""


class Rig:
    """One fault's world, from its workers' start to an empty queue."""

    def __init__(
        self,
        server: Server,
        proxy: Proxy,
        folder: Path,
        *,
        chance: random.Random,
        seconds: float,
        workers: list[WorkerProcess],
        load: Load,
    ) -> None:
        self.random = chance
        """Where every choice of the fault is taken from."""
        self.seconds = seconds
        """How long the fault should do harm."""
        self.server = server
        """The primary; a fault that makes another server the primary says so here."""
        self.proxy = proxy
        """What workers and publishers connect through."""
        self.folder = folder
        """Where the history is, and what the workers log."""
        self.history = History(folder, "rig")
        self.workers = workers
        """The worker processes, by place."""
        self.load = load
        self.notes: list[str] = []
        self.figures: dict[str, float] = {}
        self.findings: list[str] = []
        """Promises that are not the checker's and were broken."""

    @property
    def dsn(self) -> str:
        """The address that workers and publishers use: that of the proxy."""
        return self.proxy.dsn

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """Open a session of the superuser's, past the proxy."""
        return self.server.connection()

    def note(self, text: str) -> None:
        """Say something that the report should tell."""
        self.notes.append(text)

    def figure(self, name: str, value: float) -> None:
        """Add a number to the report; the name has its unit."""
        self.figures[name] = value

    def require(self, condition: bool, finding: str) -> None:  # noqa: FBT001  as assert takes it
        """Add a finding to the report, and fail the fault, unless the condition holds."""
        if not condition:
            self.findings.append(finding)

    @contextlib.contextmanager
    def injecting(self, name: str, **fields: Any) -> Iterator[None]:
        """Write an injection down, from its beginning to the moment when it is healed.

        With `victim`, the name of a worker's process, recovery is counted from the beginning to the
        next execution of what that held; with `outage`, from the end to the first claim.
        """
        call = self.history.invoke("fault", name=name, **fields)
        try:
            yield
        except BaseException as error:
            call.fail(error=str(error))
            raise
        call.ok()

    def recovered(self, what: str, seconds: float) -> None:
        """Add a time of recovery that the fault has measured itself."""
        self.history.note("recovered", what=what, seconds=seconds)

    async def until(
        self,
        condition: Callable[[], bool | Awaitable[bool]],
        what: str,
        seconds: float = 30,
    ) -> None:
        """Wait until the condition holds; raises ChaosError with `what` when the time is up."""
        give_up = time.monotonic() + seconds
        while True:
            held = condition()
            if inspect.isawaitable(held):
                held = await held
            if held:
                return
            if time.monotonic() > give_up:
                raise ChaosError(f"waited {seconds:.0f} s in vain: {what}")
            await asyncio.sleep(_LOOK)

    async def pause(self, least: float, most: float | None = None) -> None:
        """Let messages flow for a while, of a length that is drawn between the two."""
        await asyncio.sleep(least if most is None else self.random.uniform(least, most))

    def lasting(self) -> Callable[[], bool]:
        """Begin to count `seconds`; what is returned tells whether they are not over."""
        end = time.monotonic() + self.seconds
        return lambda: time.monotonic() < end

    def calls(self) -> list[Call]:
        """The history so far."""
        return calls(read(self.folder))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Have workers, publishers and the watch at work; leave no process and no task."""
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
        """Heal what the fault may have left, drain to empty, and stop the workers.

        Raises ChaosError where messages stay, or a worker does not stop.
        """
        for worker in self.workers:
            if worker.is_paused:
                worker.resume()
            if not worker.is_alive:
                if not worker.was_ended:
                    code, words = worker.exit_code, worker.last_words()
                    self.note(f"{worker.name} ended by itself with {code}: {words}")
                worker.start()
        await self.load.stop_publishing()
        drain = self.history.invoke("drain")
        try:
            await self.until(self._is_drained, "messages are still live", _DRAIN_SECONDS)
            async with self.connection() as connection:
                dead = await connection.fetchval(sql.DEAD_COUNT, None, None)
            await self.until(
                lambda: self.load.has_reported(dead), "the watch has not reported all that died"
            )
        except ChaosError as error:
            drain.fail(error=str(error))
            raise
        drain.ok()
        await asyncio.gather(*(worker.terminate() for worker in self.workers))

    async def backlog(self) -> int:
        """How many messages are live."""
        async with self.connection() as connection:
            queues = await connection.fetch(sql.QUEUE_INFO, None)
        return sum(row["waiting"] + row["scheduled"] + row["locked"] for row in queues)

    async def _is_drained(self) -> bool:
        return await self.backlog() == 0
