"""The worker: claim, run, settle, and stop in the right order."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from notifyq.database import sql
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.execution.processes import Processes
from notifyq.execution.runtime import Runtime
from notifyq.execution.transactions import Transactions
from notifyq.notify.listener import Listener
from notifyq.notify.poller import Poller
from notifyq.notify.shared import same_database
from notifyq.notify.suppression import Suppression
from notifyq.queues.claim_client import ClaimClient
from notifyq.telemetry import (
    Guarded,
    Sink,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    log_sink,
)
from notifyq.worker.dispatcher import Dispatcher
from notifyq.worker.fetcher import Fetcher
from notifyq.worker.maintenance import Upkeep
from notifyq.worker.notifications import NotificationFilter
from notifyq.worker.presence import Presence
from notifyq.worker.streams.consumer import StreamConsumer

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from notifyq.config import WorkerSettings
    from notifyq.database.pool import Database
    from notifyq.handlers.registry import Registry
    from notifyq.models.message import Message
    from notifyq.notify.listener import Service

log = logging.getLogger("notifyq.worker")


class Worker:
    """Runs the handlers of a registry on the messages of their queues.

    `run()` returns after `stop()`: nothing more is claimed, running handlers have `grace` to end,
    then they are cancelled and their messages released. `stop()` again cancels at once. A worker
    runs once.
    """

    _inbox_type: ClassVar[type[ClaimClient]] = ClaimClient

    def __init__(
        self,
        database: Database,
        registry: Registry,
        *,
        settings: WorkerSettings,
        queues: Sequence[str] = (),
        streams: Sequence[str] = (),
        sink: Sink = log_sink,
    ) -> None:
        everything = not queues and not streams
        self.patience = Patience("the start", log, database.settings.retry_for)
        """What the start of this worker waits with for its server."""
        self.queues = registry.queues() if everything else tuple(queues)
        """The queues that this worker serves."""
        self._subscribers = registry.subscribers(streams) if everything or streams else []
        self.streams = tuple(dict.fromkeys(it.stream for it in self._subscribers))
        """The streams that it serves subscribers of."""
        registry.check(self.queues, streams)
        self._database = database
        self._registry = registry
        self._settings = settings
        self._sink = Guarded(sink)
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._inbox = self._inbox_type(database, self.name)
        self._wake = asyncio.Event()
        handlers = [registry[queue] for queue in self.queues]
        tools = Runtime()
        if any(handler.is_transactional for handler in handlers):
            tools.transactions = Transactions(database, settings.concurrency)
        if any(handler.process for handler in handlers):
            tools.processes = Processes()
        self._crew = Dispatcher(
            self._inbox,
            self._sink,
            tools=tools,
            concurrency=settings.concurrency,
            on_free=self._freed,
            on_failure=self._fail,
        )
        self._claims = Fetcher(
            self._inbox,
            registry,
            self.queues,
            take=self._take,
            known=self._crew.ids,
            on_failure=self._fail,
            sink=self._sink,
        )
        self._readers: list[StreamConsumer] = []
        self._home: asyncio.AbstractEventLoop | None = None
        self._is_full, self._stops, self._has_run = False, 0, False
        self._refused: list[Message] = []
        self._failure: BaseException | None = None
        self._listener: Listener | None = None

    @property
    def counts(self) -> Counter[str]:
        """Messages by how they were settled: an archive status, `released`, or `lost`."""
        return self._crew.counts

    @property
    def slots(self) -> tuple[int, int]:
        """How many handlers run, and how many may at the same time."""
        return self._crew.running, self._settings.concurrency

    @property
    def loops(self) -> tuple[asyncio.AbstractEventLoop | None, asyncio.AbstractEventLoop | None]:
        """The event loops of the handlers and of the listener, None before they are there."""
        return self._home, None if self._listener is None else self._listener.loop

    def stop(self) -> None:
        """Claim no more and let the running handlers end; called again, cancel them now.

        Any thread may call it, that of a handler included.
        """
        self._stops += 1
        if self._home is not None:
            self._tell_home(self._stop_requested)

    def _stop_requested(self) -> None:
        self.patience.stop()
        if self._listener is None:  # nothing has begun
            return
        self._wake.set()
        for readers in self._readers:
            readers.stop()
        self._claims.stop()
        self._crew.stop_starting()
        self._presence.is_stopping = True
        if self._stops > 1:
            self._crew.cancel()
            for readers in self._readers:
                readers.cancel()

    async def run(self) -> None:
        """Work until `stop()`, or until the database is gone for longer than the retries last."""
        if self._has_run:
            raise ConfigurationError("a worker runs once: make another one with app.worker()")
        self._has_run = True
        async with AsyncExitStack() as stack:
            if await self.starting(partial(self._open, stack)):
                await self._work()
        if self._failure is not None:
            raise self._failure

    async def starting(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Do a step of the start, again while the server is away. False: it was stopped before."""
        self._home = asyncio.get_running_loop()
        if self._stops:
            return False
        return await self.patience.through(step)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Have all that stays open until the end; nothing of it if that is not all to be had."""
        settings = self._settings
        promises = Suppression(self._database, self._sink, on_session=self._wake.set)
        poll = settings.poll.total_seconds()
        self._attendance = Poller(promises, self.queues, poll=poll)
        self._ear = NotificationFilter(
            self.queues, self.streams, self._sink, self._attendance, self._readers, self._wake.set
        )
        self._presence = Presence(self._database, self)
        serve: list[Service] = [same_database(self._database), self._presence.serve]
        if self.queues:
            serve += [self._crew.heartbeat.serve, promises.serve]
        self._readers.clear()
        if self._subscribers:
            readers = StreamConsumer(
                self._database, self._subscribers, self._sink, poll=poll, on_failure=self._fail
            )
            self._readers.append(readers)
            serve.append(readers.serve)
        channels = [sql.NEW_MESSAGE] * bool(self.queues) + [sql.NEW_EVENT] * bool(self.streams)
        # Everything closes in the reverse of this order: handlers drain while their locks are
        # extended on the listener's session, their resources are open, and the pool is there to
        # settle them.
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._database)
            await opened.enter_async_context(self._presence)
            self._handlers = await opened.enter_async_context(
                self._registry.opened(self.queues, subscribers=self._subscribers)
            )
            self._listener = await opened.enter_async_context(
                Listener(
                    self._database.listen_dsn,
                    channels,
                    self._ear.hear,
                    settings=self._database.settings,
                    name="notifyq worker",
                    ping=settings.ping.total_seconds(),
                    services=serve,
                    sink=self._sink,
                )
            )
            stack.push_async_exit(opened.pop_all())

    async def _work(self) -> None:
        assert self._listener is not None  # noqa: S101  it was opened
        self._listener.failed.add_done_callback(self._listener_failed)
        self._sink(WorkerStarted(worker=self.name, queues=self.queues))
        upkeep = Upkeep(self._database, self._settings.upkeep.total_seconds(), self._sink)
        services = [self._serve(upkeep.serve()), self._serve(self._crew.watch())]
        services += [self._serve(it.run(self._handlers)) for it in self._readers]
        try:
            await self._claim_until_stopped()
        finally:
            try:
                await self._drain()
            finally:
                await self._end(services)

    async def _claim_until_stopped(self) -> None:
        while not self.queues and not self._stops:
            self._wake.clear()
            await self._wake.wait()
        while not self._stops:
            # Cleared before the look: a bell that rings while it is under way must set it again,
            # else its message waits for the next poll.
            is_rung = self._wake.is_set()
            self._wake.clear()
            rung_at = self._ear.take()
            if (room := self._crew.room) > 0:
                look = await self._claims.look(room, rung_at, is_last=self._attendance.owes_look)
                await self._attendance.note(look)
                if look.is_full:
                    continue
                if is_rung and not look.queues and (pause := self._ear.in_vain()) > 0:
                    await asyncio.sleep(pause)
            # Only then does a slot that becomes free call for another look.
            room = self._crew.room
            self._is_full = room <= 0
            seconds = await self._attendance.pause(room)
            if seconds > 0 and room > 0:
                seconds = min(seconds, await self._attendance.until_token())
            if seconds > 0 and not self._stops:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._wake.wait()

    def _freed(self) -> None:
        if self._is_full:
            self._wake.set()

    def _take(self, messages: list[Message], since: float) -> None:
        if self._stops:  # the stop came while the claim was under way
            self._refused.extend(messages)
            return
        for message in messages:
            self._crew.start(self._handlers[message.queue], message, since)

    async def _drain(self) -> None:
        grace = self._settings.grace.total_seconds()
        self._sink(WorkerStopping(worker=self.name, running=len(self._crew), grace=grace))
        farewell = asyncio.create_task(self._attendance.close())
        try:
            if self._refused:
                self.counts["released"] += len(await self._inbox.release(self._refused))
        except DatabaseUnavailableError as error:
            self._fail(error)
        crew = self._crew.drain(grace, hurried=lambda: self._stops > 1)
        await asyncio.gather(farewell, crew, *(it.drain(grace) for it in self._readers))

    async def _end(self, services: list[asyncio.Task[None]]) -> None:
        await self._crew.abandon()
        for service in services:
            service.cancel()
        await asyncio.wait(services)
        for readers in self._readers:
            await readers.close()
        await self._inbox.close()
        await self._claims.close()
        self._sink(
            WorkerStopped(
                worker=self.name,
                handled=self.counts.total() - self.counts["released"],
                released=self.counts["released"],
            )
        )

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
