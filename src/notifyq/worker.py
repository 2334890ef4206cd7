"""The worker: claim, run, settle, and stop in the right order."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq import sql
from notifyq.crew import Crew
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.events import (
    MessagesClaimed,
    OrphansReleased,
    Sink,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    guarded,
    log_sink,
)
from notifyq.inbox import Inbox
from notifyq.listener import Listener
from notifyq.upkeep import Upkeep

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Coroutine, Sequence
    from datetime import timedelta

    from notifyq.config import WorkerSettings
    from notifyq.database import Database
    from notifyq.handlers import Registry
    from notifyq.model import Message

log = logging.getLogger("notifyq.worker")

_DOUBT = 5.0
"""Seconds after a claim without an answer in which the server may still carry it out."""
_FAREWELL = 2.0
"""Seconds that a worker that has stopped spends on looking for them a last time."""
_BARREN = 10
"""Claims in a row that may find nothing before the next one has to wait a little."""
_COOLDOWN = 0.05
"""That little, in seconds: anybody may ring the bell, and ring it all the time."""


class Worker:
    """Runs the handlers of a registry on the messages of their queues.

    `run()` returns after `stop()`: nothing more is claimed, running handlers have `grace` to end,
    then they are cancelled and their messages released. `stop()` again cancels at once. A worker
    runs once.
    """

    def __init__(
        self,
        database: Database,
        registry: Registry,
        *,
        settings: WorkerSettings,
        queues: Sequence[str] = (),
        listen_dsn: str | None = None,
        sink: Sink = log_sink,
    ) -> None:
        unknown = [queue for queue in queues if queue not in registry.queues()]
        if unknown:
            raise ConfigurationError(
                f"no handler for queue {unknown[0]!r}: there are handlers for "
                f"{', '.join(registry.queues()) or 'no queue at all'}"
            )
        self._database = database
        self._registry = registry
        self._settings = settings
        self._queues = list(queues or registry.queues())
        if not self._queues:
            raise ConfigurationError("there is no handler: register one with @app.handler('queue')")
        self._listen_dsn = listen_dsn or database.dsn
        self._sink = guarded(sink)
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._inbox = Inbox(database, self.name)
        self._wake = asyncio.Event()
        self._recovery: asyncio.Timeout | None = None
        self._crew = Crew(self._inbox, self._sink, on_free=self._wake.set, on_failure=self._fail)
        self._home: asyncio.AbstractEventLoop | None = None
        self._stops = 0
        self._doubt_ends = 0.0
        self._failure: BaseException | None = None

    @property
    def counts(self) -> Counter[str]:
        """Messages by how they were settled: an archive status, `released`, or `lost`."""
        return self._crew.counts

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that this worker serves."""
        return tuple(self._queues)

    def stop(self) -> None:
        """Claim no more and let the running handlers end; called again, cancel them now.

        Any thread may call it, that of a handler included.
        """
        self._stops += 1
        if self._home is not None:
            self._tell_home(self._stop_requested)

    def _stop_requested(self) -> None:
        self._wake.set()
        if self._recovery is not None:
            self._recovery.reschedule(asyncio.get_running_loop().time())
        if self._stops > 1:
            self._crew.cancel()

    async def run(self) -> None:
        """Work until `stop()`, or until the database is gone for longer than the retries last."""
        if self._home is not None:
            raise ConfigurationError("a worker runs once: make another one with app.worker()")
        settings = self._settings
        self._home = asyncio.get_running_loop()
        # Everything closes in the reverse of this order: handlers drain while their locks are
        # extended on the listener's session and the pool is there to settle them.
        async with (
            self._database,
            Listener(
                self._listen_dsn,
                [sql.NEW_MESSAGE],
                self._hear,
                settings=self._database.settings,
                name="notifyq worker",
                ping=settings.ping.total_seconds(),
                services=[self._crew.heartbeat.serve],
                sink=self._sink,
            ) as listener,
        ):
            listener.failed.add_done_callback(self._listener_failed)
            self._sink(WorkerStarted(worker=self.name, queues=tuple(self._queues)))
            upkeep = Upkeep(self._database, settings.upkeep.total_seconds(), self._sink)
            services = [
                self._serve(upkeep.serve()),
                self._serve(self._crew.watch()),
            ]
            try:
                await self._claim_until_stopped()
            finally:
                try:
                    await self._drain()
                finally:
                    await self._end(services)
        if self._failure is not None:
            raise self._failure

    async def _claim_until_stopped(self) -> None:
        barren = 0
        while not self._stops:
            # Cleared before the claim: a bell that rings while the claim is under way must set it
            # again, else its message waits for the next poll.
            self._wake.clear()
            if self._free > 0:
                if await self._claim():
                    barren = 0
                    continue
                barren += 1
                if barren > _BARREN:
                    await asyncio.sleep(_COOLDOWN)
            if not self._stops:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.poll.total_seconds()):
                        await self._wake.wait()

    @property
    def _free(self) -> int:
        return self._settings.concurrency - self._crew.busy

    async def _claim(self) -> int:
        if self._doubt_ends > time.monotonic():
            await self._release_orphans()
        claimed = 0
        for lock_timeout, queues in self._by_lock_timeout():
            free = self._free
            if free <= 0 or self._stops:
                break
            since = time.monotonic()
            try:
                messages = await self._inbox.claim(queues, free, lock_timeout=lock_timeout)
            except DatabaseUnavailableError as error:
                log.warning("claim failed: %s", error)
                self._doubt_ends = time.monotonic() + _DOUBT
                await self._recover()
                break
            except asyncio.CancelledError:
                self._doubt_ends = time.monotonic() + _DOUBT
                raise
            claimed += len(messages)
            await self._take(messages, queues, since)
        # The first queue of the list is served first, so each gets its turn at that.
        self._queues.append(self._queues.pop(0))
        return claimed

    async def _take(self, messages: list[Message], queues: list[str], since: float) -> None:
        if not messages:
            return
        self._sink(MessagesClaimed(quantity=len(messages), queues=tuple(queues)))
        if not self._stops:
            for message in messages:
                self._crew.start(self._registry[message.queue], message, since)
            return
        # The stop came while the claim was under way.
        try:
            self.counts["released"] += len(await self._inbox.release(messages))
        except DatabaseUnavailableError as error:
            self._fail(error)

    def _by_lock_timeout(self) -> list[tuple[timedelta | None, list[str]]]:
        groups: dict[timedelta | None, list[str]] = {}
        for queue in self._queues:
            groups.setdefault(self._registry[queue].lock_timeout, []).append(queue)
        return list(groups.items())

    async def _release_orphans(self) -> None:
        """After a claim without an answer: it may have locked messages that nobody knows of."""
        try:
            orphans = await self._inbox.release_orphans(self._crew.ids())
        except DatabaseUnavailableError as gone:
            self._fail(gone)
            return
        if orphans:
            self._sink(OrphansReleased(quantity=orphans))

    async def _recover(self) -> None:
        if self._stops:
            return  # _end() looks once more
        # The call is tried again for minutes; a stop must not wait for that.
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._recovery:
                await self._release_orphans()
        self._recovery = None

    async def _drain(self) -> None:
        grace = self._settings.grace.total_seconds()
        self._sink(WorkerStopping(worker=self.name, running=len(self._crew), grace=grace))
        await self._crew.drain(grace, hurried=lambda: self._stops > 1)

    async def _end(self, services: list[asyncio.Task[None]]) -> None:
        await self._crew.abandon()
        for service in services:
            service.cancel()
        await asyncio.wait(services)
        await self._inbox.close()
        if self._doubt_ends > time.monotonic():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._release_orphans()
        self._sink(
            WorkerStopped(
                worker=self.name,
                handled=self.counts.total() - self.counts["released"],
                released=self.counts["released"],
            )
        )

    def _hear(self, _channel: str, payload: str) -> None:
        # A payload is a hint that anybody may forge: it decides on a look, and on nothing else.
        queue = payload.rpartition(":")[0]
        if not queue or queue in self._queues:
            self._wake.set()

    def _tell_home(self, function: Callable[..., None], *args: Any) -> None:
        if self._home is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                self._home.call_soon_threadsafe(function, *args)

    def _serve(self, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a service beside the claims; one that ends with an error ends the worker."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._fail(error)

        task = asyncio.create_task(service)
        task.add_done_callback(ended)
        return task

    def _listener_failed(self, failed: asyncio.Future[None]) -> None:
        if not failed.cancelled() and (error := failed.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error that only another process can mend; `run()` raises it."""
        if self._failure is None:
            self._failure = error
            if not self._stops:
                self.stop()
