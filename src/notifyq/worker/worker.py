"""The worker: claim, run, settle, and stop in the right order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from notifyq.config import WorkerSettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.retry import Patience
from notifyq.errors import ConfigurationError
from notifyq.execution.capture import Capture, capturing
from notifyq.execution.processes import Processes
from notifyq.execution.runtime import Runtime, Threads, Transactions
from notifyq.notify.listener import Listener
from notifyq.notify.wake import TokenBucket, at_most, call_on
from notifyq.telemetry import (
    BatchFinished,
    Guarded,
    NotificationReceived,
    TelemetryEvent,
    TelemetryHandler,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    log_events,
)
from notifyq.worker.fetch import Claims, Fetcher, process_name
from notifyq.worker.loop_watch import LoopWatch
from notifyq.worker.maintenance import Maintenance
from notifyq.worker.presence import Presence
from notifyq.worker.queue_order import QueueOrder
from notifyq.worker.run import Runner
from notifyq.worker.streams.consumer import StreamConsumer
from notifyq.worker.wake import Poll, Poller, Suppression

if TYPE_CHECKING:
    from notifyq.handlers.registry import Registry
    from notifyq.notify.listener import Service

log = logging.getLogger("notifyq.worker")


class Worker:
    """Runs the handlers of a registry on the messages of their queues.

    `run()` returns after `stop()`: the worker claims nothing more, running handlers have `grace` to
    end, then they are cancelled and their messages released. `stop()` again cancels at once. A
    worker runs once.
    """

    def __init__(
        self,
        database: Database,
        registry: Registry,
        *,
        settings: WorkerSettings,
        queues: Sequence[str] | Mapping[str, int] = (),
        strict: bool = False,
        streams: Sequence[str] = (),
        telemetry: TelemetryHandler = log_events,
        claims: Callable[[Database, str], Claims] = Claims,
    ) -> None:
        everything = not queues and not streams
        self.patience = Patience("the start", log, database.settings.retry_for)
        """How the start of this worker waits for its server."""
        self.queues = registry.queues() if everything else tuple(queues)
        """The queues that this worker serves."""
        self._subscribers = registry.subscribers(streams) if everything or streams else []
        self.streams = tuple(dict.fromkeys(it.stream for it in self._subscribers))
        """The streams whose subscribers it serves."""
        registry.check(self.queues, streams)
        if strict and not queues:
            raise ConfigurationError("strict has no order: name the queues, the first served first")
        order = QueueOrder(queues or self.queues, strict=strict)
        self._database = database
        self._registry = registry
        self._settings = settings
        self._telemetry = Guarded(telemetry)
        self.name = process_name()
        self._claims = claims(database, self.name)
        self._wake = asyncio.Event()
        handlers = [registry[queue] for queue in self.queues]
        self._runtime = runtime = Runtime(threads=Threads(registry.around_sync), database=database)
        if any(handler.is_transactional or handler.takes_steps for handler in handlers):
            runtime.transactions = Transactions(database, settings.concurrency)
        if any(handler.process for handler in handlers):
            runtime.processes = Processes()
        self._loop_watch = LoopWatch(self.name, self._telemetry)
        self._runner = Runner(
            self._claims.settler,
            self._telemetry,
            self._wake,
            concurrency=settings.concurrency,
            on_failure=self._fail,
            runtime=runtime,
            loop_watch=self._loop_watch,
        )
        self._fetcher = Fetcher(self._claims, registry, order, self._runner.held, self._telemetry)
        self._consumers: list[StreamConsumer] = []
        self._home: asyncio.AbstractEventLoop | None = None
        self._stops, self._has_run = 0, False
        self._notified_at: float | None = None
        self._failure: BaseException | None = None
        self._listener: Listener | None = None

    @property
    def counts(self) -> Counter[str]:
        """Messages by how they were settled: an archive status, `released`, or `lost`; `events`."""
        return self._runner.counts

    @property
    def grace(self) -> timedelta:
        """How long running handlers may end after `stop()`."""
        return self._settings.grace

    @property
    def slots(self) -> tuple[int, int]:
        """How many handlers run, and how many may run at the same time."""
        return self._runner.running, self._settings.concurrency

    @property
    def blocked_for(self) -> float | None:
        """Seconds for which the event loop of the handlers has been blocked; None: it is not."""
        return self._loop_watch.blocked_for

    @property
    def loops(self) -> tuple[asyncio.AbstractEventLoop | None, asyncio.AbstractEventLoop | None]:
        """The event loops of the handlers and of the listener; None before they exist."""
        return self._home, None if self._listener is None else self._listener.loop

    def stop(self) -> None:
        """Claim nothing more and let the running handlers end; called again, cancel them now.

        Any thread may call it, that of a handler too.
        """
        self._stops += 1
        if self._home is not None:
            call_on(self._home, self._stop_requested)

    def _stop_requested(self) -> None:
        self.patience.stop()
        if self._listener is None:  # the start is not over
            return
        self._wake.set()
        for consumer in self._consumers:
            consumer.stop()
        self._fetcher.stop()
        self._runner.stop_starting()
        self._presence.is_stopping = True
        if self._stops > 1:
            self._runner.cancel()
            for consumer in self._consumers:
                consumer.cancel()

    async def run(self) -> None:
        """Work until `stop()`, or until the database is away for longer than the retries last."""
        if self._has_run:
            raise ConfigurationError("a worker runs once: make another one with app.worker()")
        self._has_run = True
        async with AsyncExitStack() as stack:
            if await self.starting(partial(self._open, stack)):
                await self._work()
        if self._failure is not None:
            raise self._failure

    async def starting(self, step: Callable[[], Awaitable[object]]) -> bool:
        """Do a step of the start, again while the server is away. False: the worker was stopped."""
        self._home = asyncio.get_running_loop()
        if self._stops:
            return False
        return await self.patience.through(step)

    async def _open(self, stack: AsyncExitStack) -> None:
        """Open what stays open until the end; if one part cannot be opened, close the others."""
        settings = self._settings
        poll = settings.poll.total_seconds()
        suppression = Suppression(self._database, self._telemetry, on_session=self._wake.set)
        self._poller = Poller(suppression, self.queues, poll=poll)
        self._presence = Presence(self._database, self)
        self._loop_watch.watch()
        self._loop_watch.on_change = self._presence.hurry
        services: list[Service] = [self._presence.serve, self._loop_watch.serve]
        if self.queues:
            services += [self._runner.heartbeat.serve, suppression.serve]
        self._consumers.clear()
        if self._subscribers:
            consumer = StreamConsumer(
                self._database,
                self._subscribers,
                self._count_events,
                poll=poll,
                on_failure=self._fail,
                loop_watch=self._loop_watch,
                around_sync=self._registry.around_sync,
            )
            self._consumers.append(consumer)
            services.append(consumer.serve)
        works: list[Runner | StreamConsumer] = [self._runner, *self._consumers]
        self._loop_watch.running = [it.on_loop for it in works]
        listener = Listener(
            self._database,
            [sql.NEW_MESSAGE, sql.CANCELLED_MESSAGE] * bool(self.queues)
            + [sql.NEW_EVENT] * bool(self.streams),
            self._receive,
            name="notifyq worker",
            ping=settings.ping.total_seconds(),
            services=services,
            telemetry=self._telemetry,
        )
        # Everything closes in the reverse of this order: while handlers drain, their locks are
        # extended on the listener's session, their resources are open, and the pool settles them.
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._database)
            if (level := self._registry.capture_logs) is not None:
                self._runtime.capture = Capture(level, self._database.encoding)
                opened.enter_context(capturing(level))
            await opened.enter_async_context(self._presence)
            self._handlers = await opened.enter_async_context(
                self._registry.opened(self.queues, subscribers=self._subscribers)
            )
            self._listener = await opened.enter_async_context(listener)
            listener.failed.add_done_callback(self._task_ended)
            stack.push_async_exit(opened.pop_all())

    async def _work(self) -> None:
        self._runtime.owner = asyncio.current_task()
        self._telemetry(
            WorkerStarted(worker=self.name, queues=self.queues, streams=tuple(self.streams))
        )
        maintenance = Maintenance(
            self._database, self._settings.maintenance.total_seconds(), self._telemetry
        )
        services = [self._serve(maintenance.serve()), self._serve(self._runner.watch())]
        services += [self._serve(it.run(self._handlers)) for it in self._consumers]
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
        empty_polls = TokenBucket()
        while not self._stops:
            # Cleared before the poll: a notification during the poll must set it again, or its
            # message waits for the next poll.
            is_notified = self._wake.is_set()
            self._wake.clear()
            if (room := self._runner.room) > 0:
                poll = await self._fetch(room)
                await self._poller.record(poll)
                if poll.is_full:
                    continue
                if is_notified and not poll.queues and (pause := empty_polls.spend()) > 0:
                    await asyncio.sleep(pause)
            room = self._runner.room
            self._runner.is_full = room <= 0  # only then a settled message causes another poll
            seconds = await self._poller.pause(room)
            if seconds > 0 and room > 0:
                seconds = min(seconds, self._fetcher.retry_in, await self._poller.rate_limit_wait())
            if seconds > 0 and not self._stops:
                await at_most(seconds, self._wake.wait())

    async def _fetch(self, room: int) -> Poll:
        """Claim messages and start their handlers."""
        notified_at, self._notified_at = self._notified_at, None
        full_scan = self._poller.needs_full_scan
        async for since, messages in self._fetcher.fetch(room, notified_at, full_scan=full_scan):
            if self._stops:  # the stop came during the claim
                self._runner.stop_starting()
            for message in messages:
                self._runner.start(self._handlers[message.queue], message, since)
        return self._fetcher.poll

    def _receive(self, channel: str, payload: str) -> None:
        """Take a notification; without a channel some may have been missed.

        Any session can send any payload: it may cause a poll, and decides nothing else.
        """
        if channel == sql.CANCELLED_MESSAGE:
            self._runner.heartbeat.hurry(payload)
            return
        if channel != sql.NEW_MESSAGE:
            if payload in self.streams:
                self._report(channel, payload)
            for consumer in self._consumers:
                consumer.receive(payload)
        if channel != sql.NEW_EVENT:
            self._new_message(channel, payload)

    def _new_message(self, channel: str, payload: str) -> None:
        queue, _, ids = payload.rpartition(":")
        if not queue:
            self._wake.set()
        elif queue in self._handlers:
            self._report(channel, queue)
            self._poller.notified(queue)
            if self._poller.answers(queue, ids):
                self._notified_at = self._notified_at or time.monotonic()
                self._wake.set()

    def _report(self, channel: str, name: str) -> None:
        if self._telemetry.wants(NotificationReceived):
            self._telemetry(NotificationReceived(channel=channel, name=name))

    async def _drain(self) -> None:
        grace = self._settings.grace.total_seconds()
        running = len(self._runner.held)
        self._telemetry(WorkerStopping(worker=self.name, running=running, grace=grace))
        drains = [it.drain(grace) for it in self._consumers]
        await asyncio.gather(self._poller.close(), self._runner.drain(grace), *drains)

    async def _end(self, services: list[asyncio.Task[None]]) -> None:
        await self._close(self._runner.abandon())
        for service in services:
            service.cancel()
        await asyncio.wait(services)
        consumers = [consumer.close for consumer in self._consumers]
        for close in (*consumers, self._claims.close, self._fetcher.close):
            await self._close(close())
        released = self.counts["released"]
        handled = self.counts.total() - released
        self._telemetry(WorkerStopped(worker=self.name, handled=handled, released=released))

    async def _close(self, closing: Awaitable[None]) -> None:
        """Wait until one part is closed; its error leaves no other part open."""
        try:
            await closing
        except Exception as error:  # noqa: BLE001  run() raises it
            self._fail(error)

    def _count_events(self, event: TelemetryEvent) -> None:
        if isinstance(event, BatchFinished) and (handled := event.events + event.failed):
            self.counts["events"] += handled
        self._telemetry(event)

    def _serve(self, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a service beside the claims; one that ends with an error ends the worker."""
        task = asyncio.create_task(service)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error that only another process can fix; `run()` raises it."""
        if self._failure is None:
            self._failure = error
            if not self._stops:
                self.stop()
