"""The worker: claim, run, settle, and stop in the right order."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq import sql
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.events import (
    Event,
    HandlerStuck,
    LockLost,
    MessageFinished,
    MessagesClaimed,
    OrphansReleased,
    Sink,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    log_sink,
)
from notifyq.executor import Cause, Execution
from notifyq.heartbeat import Heartbeat, Key, Lock
from notifyq.inbox import Inbox
from notifyq.listener import Listener
from notifyq.model import Failed, Outcome, Released, Success
from notifyq.threads import Threads
from notifyq.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from datetime import timedelta

    from notifyq.config import WorkerSettings
    from notifyq.database import Database
    from notifyq.handlers import Registry
    from notifyq.model import Message

log = logging.getLogger("notifyq.worker")

_SETTLE = 10.0
"""Seconds that cancelled handlers and their settlements get at a stop."""
_WATCH = 0.1
"""Seconds between two looks at timeouts and locks of running handlers."""
_DOUBT = 5.0
"""Seconds after a claim without an answer in which the server may still carry it out."""
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
        self._sink = _guarded(sink)
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._inbox = Inbox(database, self.name)
        self._threads = Threads()
        self._heartbeat = Heartbeat(self._lock_lost)
        self._running: dict[Key, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._home: asyncio.AbstractEventLoop | None = None
        self._stops = 0
        self._doubt_ends = 0.0
        self._failure: BaseException | None = None
        self.counts: Counter[str] = Counter()
        """Messages by how they were settled: an archive status, `released`, or `lost`."""

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
        if self._stops > 1:
            self._cancel_all()

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
                services=[self._heartbeat.serve],
                sink=self._sink,
            ) as listener,
        ):
            listener.failed.add_done_callback(self._listener_failed)
            self._sink(WorkerStarted(worker=self.name, queues=tuple(self._queues)))
            upkeep = Upkeep(self._database, settings.upkeep.total_seconds(), self._sink)
            services = [
                self._serve(upkeep.serve()),
                self._serve(self._watch()),
            ]
            try:
                await self._claim_until_stopped()
            finally:
                try:
                    await self._drain()
                finally:
                    await self._abandon(services)
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
        # A thread whose handler was given up still works: its slot is not free.
        return self._settings.concurrency - len(self._running) - self._threads.stuck

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
                await self._release_orphans()
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
                self._start(message, since)
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
            orphans = await self._inbox.release_orphans([id_ for id_, _token in self._running])
        except DatabaseUnavailableError as gone:
            self._fail(gone)
            return
        if orphans:
            self._sink(OrphansReleased(quantity=orphans))

    def _start(self, message: Message, since: float) -> None:
        handler = self._registry[message.queue]
        execution = Execution(handler, message)
        lock = Lock.granted(message, since, extends=handler.heartbeat)
        self._running[lock.key] = execution
        self._heartbeat.add(lock)
        task = asyncio.create_task(self._handle(execution, lock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, execution: Execution, lock: Lock) -> None:
        message = execution.message
        started = execution.started = time.monotonic()
        try:
            outcome = await execution.outcome(self._threads)
            run = time.monotonic() - started
            self._heartbeat.remove(lock)
            held = await self._inbox.settle(message, outcome)
            self._report(message, outcome, run, held=held)
        except Exception as error:  # noqa: BLE001  whatever it is, the worker must not go on
            self._fail(error)
        finally:
            self._heartbeat.remove(lock)
            del self._running[lock.key]
            self._wake.set()

    def _report(self, message: Message, outcome: Outcome, run: float, *, held: bool) -> None:
        status = _status(outcome)
        self.counts[status if held else "lost"] += 1
        if not held:
            self._sink(
                LockLost(queue=message.queue, message_id=message.id, lock_token=message.lock_token)
            )
            return
        locked_at = message.locked_at or message.created_at
        self._sink(
            MessageFinished(
                queue=message.queue,
                message_id=message.id,
                status=status,
                wait=(locked_at - message.created_at).total_seconds(),
                run=run,
                details=getattr(outcome, "details", getattr(outcome, "reason", None)),
            )
        )

    async def _watch(self) -> None:
        """Stop handlers that are past their timeout or their lock."""
        while True:
            await asyncio.sleep(_WATCH)
            now = time.monotonic()
            for lock in self._heartbeat.expired():
                self._stop(lock.key, Cause.LOCK)
            for key, execution in list(self._running.items()):
                timeout, started = execution.handler.timeout, execution.started
                if timeout is None or started is None:
                    continue
                if now - started >= timeout.total_seconds():
                    self._stop(key, Cause.TIMEOUT)

    def _stop(self, key: Key, cause: Cause) -> None:
        execution = self._running.get(key)
        if execution is None or not execution.is_running or execution.cause is not None:
            return
        execution.stop(cause)
        if not execution.handler.is_async:
            message = execution.message
            self._sink(HandlerStuck(queue=message.queue, message_id=message.id))

    def _cancel_all(self) -> None:
        for key in list(self._running):
            self._stop(key, Cause.STOP)

    async def _drain(self) -> None:
        """Let handlers end within the grace, then cancel them; wait until all are settled."""
        grace = self._settings.grace.total_seconds()
        self._sink(WorkerStopping(worker=self.name, running=len(self._running), grace=grace))
        await self._wait_until_idle(grace, hurried=lambda: self._stops > 1)
        give_up = time.monotonic() + _SETTLE
        while self._running and time.monotonic() < give_up:
            # Again and again: a handler may be about to start.
            self._cancel_all()
            await self._wait_until_idle(0.2)

    async def _abandon(self, services: list[asyncio.Task[None]]) -> None:
        """End whatever still runs; what is not settled by now is left to the reaper."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=1)
            if left:
                # Their locks are extended no more, so other workers get the messages.
                log.error("%d handlers do not end although they were cancelled", len(left))
        for service in services:
            service.cancel()
        await asyncio.wait(services)
        await self._inbox.close()
        if self._doubt_ends > time.monotonic():
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE):
                    await self._release_orphans()
        self._threads.close()
        self._sink(
            WorkerStopped(
                worker=self.name,
                handled=self.counts.total() - self.counts["released"],
                released=self.counts["released"],
            )
        )

    async def _wait_until_idle(
        self, seconds: float, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every claimed message is settled, for so long, or until hurried."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running and not hurried():
                    self._wake.clear()
                    await self._wake.wait()

    def _hear(self, _channel: str, payload: str) -> None:
        # A payload is a hint that anybody may forge: it decides on a look, and on nothing else.
        queue = payload.rpartition(":")[0]
        if not queue or queue in self._queues:
            self._wake.set()

    def _lock_lost(self, key: Key) -> None:
        self._tell_home(self._stop, key, Cause.LOCK)

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


def _guarded(sink: Sink) -> Sink:
    """A sink whose errors cost an event, but never a message."""

    def emit(event: Event) -> None:
        try:
            sink(event)
        except Exception:
            log.exception("a sink failed on %s", type(event).__name__)

    return emit


def _status(outcome: Outcome) -> str:
    match outcome:
        case Success():
            return "success"
        case Released():
            return "released"
        case Failed():
            return outcome.status.value
        case _:
            return "rejected"
