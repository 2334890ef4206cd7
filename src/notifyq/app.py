"""The App: one database, what publishes into it, and workers; what user code imports."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from pydantic import TypeAdapter

from notifyq.archive.dead_letters import DeadLetters
from notifyq.archive.reader import Archive
from notifyq.config import DatabaseSettings, WorkerSettings, given_dsns, require_dsn
from notifyq.database.pool import Database
from notifyq.errors import (
    AccessDeniedError,
    ConfigurationError,
    QueueNotFoundError,
    SchemaError,
)
from notifyq.handlers.decorators import Registrar
from notifyq.queues.admin import Admin
from notifyq.queues.inbox import MessageInbox, QueueBells
from notifyq.queues.payload_schema import PayloadSchemas
from notifyq.queues.publisher import Publisher
from notifyq.queues.results import Group, Handle, Results
from notifyq.queues.schedules import Schedules
from notifyq.streams.admin import Streams
from notifyq.streams.subscription import Subscription
from notifyq.telemetry import log_sink
from notifyq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
    from datetime import datetime, timedelta
    from types import UnionType

    from opentelemetry.trace import TracerProvider

    from notifyq.config import DatabaseOptions, WorkerOptions
    from notifyq.queues.publisher import PublishManyOptions, PublishOptions, PublishStreamOptions
    from notifyq.streams.subscription import SubscriptionOptions
    from notifyq.telemetry import Sink
    from notifyq.telemetry.base import WorkerObserver

log = logging.getLogger("notifyq.worker")

R = TypeVar("R")


class App(Registrar):
    """Register handlers, publish messages, run workers.

    The DSN is that of the argument, else NOTIFYQ_DSN, looked up when it is first needed.
    `listen_dsn` is where all that waits listens when `dsn` goes through a pooler; beside a DSN from
    the environment it is NOTIFYQ_LISTEN_DSN. Settings are those of `DatabaseSettings`, by keyword
    or environment. With `check_payloads` what the JSON Schema of a queue refuses is not even sent.
    With `tracing` each publish and each handling is a span of the global tracer provider of
    OpenTelemetry, or of the one that is given.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        listen_dsn: str | None = None,
        check_payloads: bool = False,
        tracing: bool | TracerProvider = False,
        **settings: Unpack[DatabaseOptions],
    ) -> None:
        super().__init__(tracing)
        for name, given in (("dsn", dsn), ("listen_dsn", listen_dsn)):
            if given is not None:
                require_dsn(given, f"{name} of the App")
        self._check_payloads = check_payloads
        self.dsn = dsn
        self.listen_dsn = listen_dsn
        self._settings = DatabaseSettings.load(**settings)
        self._database: Database | None = None
        self._schemas: PayloadSchemas | None = None
        self._results: Results | None = None
        self._bells: QueueBells | None = None

    async def __aenter__(self) -> Self:
        """Connect; an App also connects by itself when it is first used."""
        await self.database.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the App can be used again."""
        results, self._results = self._results, None
        bells, self._bells = self._bells, None
        for waits in (results, bells):
            if waits is not None:
                await waits.close()
        database, self._database, self._schemas = self._database, None, None
        if database is not None:
            await database.close()

    @property
    def database(self) -> Database:
        """The pool of connections."""
        if self._database is None:
            dsn, listen_dsn = given_dsns(self.dsn, self.listen_dsn)
            if dsn is None:
                raise ConfigurationError(
                    "no database: set NOTIFYQ_DSN or give the App a DSN like "
                    "postgresql://user:password@host:5432/database"
                )
            self._database = Database(dsn, listen_dsn=listen_dsn, settings=self._settings)
        return self._database

    @property
    def _publisher(self) -> Publisher:
        if self._check_payloads and self._schemas is None:
            self._schemas = PayloadSchemas(self.database)
        return Publisher(self.database, schemas=self._schemas, tracing=self.registry.tracing)

    @property
    def results(self) -> Results:
        """What waits for the ends of messages."""
        if self._results is None:
            self._results = Results(self.database)
        return self._results

    def inbox(self, worker: str | None = None) -> MessageInbox:
        """Hand out messages one by one to a loop of your own: `await inbox.wait(queues)`.

        `worker` is the first part of the name in which messages are locked.
        """
        if self._bells is None:
            self._bells = QueueBells(self.database)
        return MessageInbox(self.database, self._bells, worker)

    @property
    def admin(self) -> Admin:
        """Create, change, pause and drop queues."""
        return Admin(self.database)

    @property
    def archive(self) -> Archive:
        """Read live and finished messages; retry dead ones."""
        return Archive(self.database)

    @property
    def streams(self) -> Streams:
        """Create, change, pause and drop streams; say who reads them, and from where on."""
        return Streams(self.database)

    def subscription(
        self, stream: str, subscriber: str, **options: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """Read a stream as one of its subscribers; the options are those of `Subscription`."""
        return Subscription(self.database, stream, subscriber, **options)

    @property
    def schedules(self) -> Schedules:
        """Define, list, stop and remove what is published by the clock."""
        return Schedules(self.database)

    async def publish(
        self, queue: str, payload: Any, **options: Unpack[PublishOptions]
    ) -> Handle[Any]:
        """Publish one message and return its id; the options are those of `Publisher.publish`.

        The id is an int that knows the way to the result: `await handle.result()`.
        """
        with self._hinting(queue):
            number = await self._publisher.publish(queue, payload, **options)
        return Handle(number, self.results)

    async def publish_many(
        self, queue: str, payloads: Iterable[Any], **options: Unpack[PublishManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many; return their ids. The options are those of `Publisher.publish_many`."""
        with self._hinting(queue):
            numbers = await self._publisher.publish_many(queue, payloads, **options)
        return [Handle(number, self.results) for number in numbers]

    async def publish_group(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        callback: tuple[str, Any],
        **options: Unpack[PublishManyOptions],
    ) -> Group:
        """Publish messages, and one more that runs when all of them have ended; all or none.

        `callback` is the queue and the payload of the latter, `on_failure` what becomes of it if
        one of the others dies, by default "run". The other options are those of `publish_many`,
        for the messages of the group. The callback's handler reads the results with
        `archive.dependencies(message.id)`.
        """
        on_failure = options.pop("on_failure", "run")
        async with self._publisher.joining(options.get("connection")) as held:
            options["connection"] = held
            messages = await self.publish_many(queue, payloads, **options)
            last = await self.publish(
                *callback, connection=held, after=messages, on_failure=on_failure
            )
        return Group(messages, last)

    @overload
    async def result(
        self, message_id: int, kind: type[R], *, timeout: timedelta | float | None = None
    ) -> R: ...
    @overload  # not of Any: a result that is assigned to what it is not would fit
    async def result(
        self, message_id: int, kind: UnionType = ..., *, timeout: timedelta | float | None = None
    ) -> Any: ...
    async def result(
        self, message_id: int, kind: Any = Any, *, timeout: timedelta | float | None = None
    ) -> Any:
        """Wait for the end of a message, wherever it was published; see `Handle.result`.

        The result is validated as `kind`, by default it is the decoded JSON.
        """
        return await Handle(message_id, self.results, TypeAdapter(kind)).result(timeout)

    async def publish_stream(
        self,
        queue: str,
        payloads: AsyncIterable[Any] | Iterable[Any],
        **options: Unpack[PublishStreamOptions],
    ) -> AsyncIterator[list[int]]:
        """Publish in batches; yield their ids. Options are those of `Publisher.publish_stream`."""
        with self._hinting(queue):
            async for numbers in self._publisher.publish_stream(queue, payloads, **options):
                yield numbers

    def dead_letters(
        self,
        queue: str | None = None,
        *,
        seen: str | None = None,
        since: datetime | None = None,
        sink: Sink = log_sink,
    ) -> DeadLetters:
        """Follow messages as they die, from a position or an instant on; by default from now on."""
        return DeadLetters(self.database, queue=queue, seen=seen, since=since, sink=sink)

    async def create(self) -> None:
        """Create what the app declares and the database lacks: queues, streams and subscriptions.

        For a program that only publishes; a worker does the same when it starts. What exists stays
        as it is.
        """
        if self.registry.queues():
            await self.create_queues()
        if self.registry.subscribers():
            await self.create_subscriptions()

    @contextmanager
    def _hinting(self, name: str) -> Iterator[None]:
        """Have the error say what to do in Python where a queue or a stream is missing."""
        try:
            yield
        except QueueNotFoundError as error:
            if name in self.registry.queues() or self.registry.declares_stream(name):
                error.hint = (
                    "await app.create() creates the queues and streams that the app declares"
                )
            else:
                error.hint = (
                    f"await app.admin.create_queue({name!r}) creates it, "
                    f"or where it is a stream await app.streams.create({name!r})"
                )
            raise

    async def create_queues(self, queues: Sequence[str] = ()) -> list[str]:
        """Create the queues of the handlers where they are missing; return those that were.

        `create` does that, and creates streams and subscriptions too.
        Of one that has not the limits that its handler's `policy` says there is a warning.
        """
        return await self.admin.create_missing(self.registry.policies(queues))

    async def create_subscriptions(self, streams: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Create streams and subscriptions of the subscribers that are missing; return those."""
        return await self.streams.subscribe_all(self.registry.subscribers(streams))

    async def create_schedules(self, queues: Sequence[str] = ()) -> list[str]:
        """Put the schedules of `cron` functions in place; return those that were new or other."""
        wanted = self.registry.schedules_of(queues or self.registry.queues())
        return await self.schedules.add_all(wanted)

    def worker(
        self,
        *,
        queues: Sequence[str] = (),
        streams: Sequence[str] = (),
        sink: Sink = log_sink,
        metrics: WorkerObserver | None = None,
        **settings: Unpack[WorkerOptions],
    ) -> Worker:
        """A worker for all handlers and subscribers, or for those of some queues and streams.

        `metrics` counts, beside the sink. Settings: `WorkerSettings`, by keyword or environment.
        """
        worker = Worker(
            self.database,
            self.registry,
            settings=WorkerSettings.load(**settings),
            queues=queues,
            streams=streams,
            sink=sink if metrics is None else metrics.beside(sink),
        )
        if metrics is not None:
            metrics.watch(worker)
        return worker

    async def work(self, worker: Worker | None = None) -> None:
        """Check the schema, create missing queues and schedules, run a worker until it is stopped.

        A server that is away or recovering is waited for, as later on, for `retry_for`. A database
        user who may not define schedules is warned about them, and works.
        """
        worker = worker or self.worker()
        try:
            if not await worker.starting(partial(self._prepare, worker)):
                return
            try:
                await worker.run()
            except SchemaError:
                # A call that the schema does not know: the versions tell what to do about it.
                await self.admin.check_schema()
                raise
        finally:
            await self.close()

    async def _prepare(self, worker: Worker) -> None:
        await self.database.open()
        await self.admin.check_schema()
        if worker.queues:
            await self.create_queues(worker.queues)
        if worker.streams:
            await self.create_subscriptions(worker.streams)
        try:
            if worker.queues:
                await self.create_schedules(worker.queues)
        except AccessDeniedError:
            log.warning(
                "the schedules of this app are left as they are, as only an admin may define "
                "them: `notifyq schedules apply`"
            )
