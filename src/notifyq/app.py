"""The App: one database, publishing into it, and its workers. User code imports this."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from pydantic import TypeAdapter

from notifyq.archive.dead_letters import DeadLetters
from notifyq.archive.reader import Archive
from notifyq.config import NO_DSN, DatabaseSettings, WorkerSettings, given_dsns, require_dsn
from notifyq.database.encryption.envelopes import keys_of
from notifyq.database.loop_thread import LoopThread
from notifyq.database.per_loop import PerLoop
from notifyq.database.pool import Database
from notifyq.errors import AccessDeniedError, ConfigurationError, QueueNotFoundError, SchemaError
from notifyq.handlers.decorators import Decorators
from notifyq.queues.admin import Admin
from notifyq.queues.payload_schema import PayloadSchemas
from notifyq.queues.publisher import Publisher
from notifyq.queues.results import Group, Handle, Results
from notifyq.queues.schedules import Schedules
from notifyq.streams.admin import Streams
from notifyq.streams.subscription import Subscription
from notifyq.telemetry import log_events
from notifyq.worker.inbox import MessageInbox, QueueNotifications
from notifyq.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta
    from types import UnionType

    from opentelemetry.trace import TracerProvider

    from notifyq.archive.reader import CancelOptions
    from notifyq.config import DatabaseOptions, WorkerOptions
    from notifyq.database.encryption.envelopes import KeySource
    from notifyq.models.message import Cancellation
    from notifyq.queues.publish_options import ManyOptions, MessageOptions
    from notifyq.queues.published import Published
    from notifyq.queues.publisher import PublishManyOptions, PublishOptions, PublishStreamOptions
    from notifyq.streams.subscription import SubscriptionOptions
    from notifyq.telemetry import TelemetryHandler, WorkerObserver

log = logging.getLogger("notifyq.worker")

R = TypeVar("R")


class App(Decorators):
    """Register handlers, publish messages, run workers.

    `dsn` is the argument or NOTIFYQ_DSN, which is read when it is first needed. `listen_dsn` is the
    address of the server itself where `dsn` goes through a pooler; beside a DSN from the
    environment it is NOTIFYQ_LISTEN_DSN. Settings are those of `DatabaseSettings`, by keyword or
    environment. With `check_payloads`, payloads are checked against the JSON Schema of their queue
    before they are sent. `encryption` has keys of 32 bytes by id, of which the first encrypts, or
    returns them. With `tracing`, each publish and each handler call is a span of the global tracer
    provider of OpenTelemetry, or of the given one. `capture_logs`: the least level that is kept.
    `schema` is that of the install, by default NOTIFYQ_SCHEMA, else `messages`.
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        listen_dsn: str | None = None,
        check_payloads: bool = False,
        encryption: KeySource | None = None,
        tracing: bool | TracerProvider = False,
        capture_logs: str | int | None = None,
        schema: str | None = None,
        **settings: Unpack[DatabaseOptions],
    ) -> None:
        super().__init__(tracing, capture_logs)
        for name, given in (("dsn", dsn), ("listen_dsn", listen_dsn)):
            if given is not None:
                require_dsn(given, f"{name} of the App")
        self._check_payloads = check_payloads
        self._encryption = encryption
        self._dsn = dsn
        self._listen_dsn = listen_dsn
        self.schema = schema
        self._settings = DatabaseSettings.load(**settings)
        self._database: Database | None = None
        self._schemas: PayloadSchemas | None = None
        self._results: Results | None = None
        self._notifications = PerLoop(lambda: QueueNotifications(self.database))
        self._loop_thread = LoopThread()

    async def __aenter__(self) -> Self:
        """Connect; an App also connects when it is first used."""
        await self.database.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop; the App can be used again."""
        if self._results is not None:
            await self._results.close()
        if notifications := self._notifications.pop():
            await notifications.close()
        self._schemas = None
        if self._database is not None:
            await self._database.close()

    @property
    def dsn(self) -> str | None:
        """The DSN that was given; None: that of the environment. Close the App before a change."""
        return self._dsn

    @dsn.setter
    def dsn(self, dsn: str | None) -> None:
        """Use another database."""
        self._dsn = dsn
        self._database = self._schemas = self._results = None

    @property
    def listen_dsn(self) -> str | None:
        """The DSN to listen on that was given. Close the App before a change."""
        return self._listen_dsn

    @listen_dsn.setter
    def listen_dsn(self, listen_dsn: str | None) -> None:
        """Listen elsewhere."""
        self._listen_dsn = listen_dsn
        self._database = self._schemas = self._results = None

    @property
    def database(self) -> Database:
        """The connections, a pool for each event loop."""
        if self._database is None:
            dsn, listen_dsn = given_dsns(self.dsn, self.listen_dsn)
            if dsn is None:
                raise ConfigurationError(NO_DSN)
            self._database = Database(
                dsn, listen_dsn=listen_dsn, settings=self._settings, schema=self.schema,
                keys=keys_of(self._encryption),
            )  # fmt: skip
        return self._database

    @property
    def _publisher(self) -> Publisher:
        if self._check_payloads and self._schemas is None:
            self._schemas = PayloadSchemas(self.database)
        return Publisher(self.database, schemas=self._schemas, tracing=self.registry.tracing)

    @property
    def results(self) -> Results:
        """Waits for the ends of messages."""
        if self._results is None:
            self._results = Results(self.database)
        return self._results

    def inbox(self, worker: str | None = None) -> MessageInbox:
        """Get messages one by one in a loop of your own: `await inbox.wait(queues)`.

        `worker` is the first part of the name that locks messages.
        """
        return MessageInbox(self.database, self._notifications, worker)

    def sync(self) -> SyncApp:
        """The calls for a program that does not await: `with app.sync() as calls:`.

        They block the calling thread, and may come from any thread in which no event loop runs.
        Their connections are closed at the end of the block, by `close()`, or with the process.
        """
        return SyncApp(self, self._loop_thread)

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
        """Create, change, pause and drop streams and their subscriptions."""
        return Streams(self.database)

    def subscription(
        self, stream: str, subscriber: str, **options: Unpack[SubscriptionOptions]
    ) -> Subscription:
        """Read a stream as one of its subscribers; options are those of `Subscription`."""
        return Subscription(self.database, stream, subscriber, **options)

    @property
    def schedules(self) -> Schedules:
        """Define, list, stop and remove schedules."""
        return Schedules(self.database)

    async def publish(
        self, queue: str, payload: Any, **options: Unpack[PublishOptions]
    ) -> Handle[Any]:
        """Publish one message and return its id; options are those of `Publisher.publish`.

        The id is an int that can wait for the result: `await handle.result()`. Its `is_duplicate`
        is true where the `dedup_key` is that of an existing message, whose id it is.
        """
        with self._hinting(queue):
            number = await self._publisher.publish(queue, payload, **options)
        return Handle(number, self.results)

    def publish_sync(
        self, queue: str, payload: Any, **options: Unpack[MessageOptions]
    ) -> Handle[Any]:
        """Publish one message and return its id, without `await`; see `sync` for other calls.

        Raises ConfigurationError where an event loop runs: there `await app.publish(…)`.
        For a transaction of a library that does not await there is `notifyq.within`.
        """
        return self.sync().publish(queue, payload, **options)

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

        `callback` is the queue and the payload of that message, `on_failure` what happens to it if
        one of the others fails permanently, by default "run". The other options are those of
        `publish_many`, for the messages of the group. The handler of the callback reads the results
        with `archive.dependencies(message.id)`.
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
    @overload  # not `kind: Any`: then a result of any type could be assigned
    async def result(
        self, message_id: int, kind: UnionType = ..., *, timeout: timedelta | float | None = None
    ) -> Any: ...
    async def result(
        self, message_id: int, kind: Any = Any, *, timeout: timedelta | float | None = None
    ) -> Any:
        """Wait for the end of a message of any publisher; see `Handle.result`.

        The result is validated as `kind`; by default it is the decoded JSON.
        """
        return await Handle(message_id, self.results, TypeAdapter(kind)).result(timeout)

    async def signal(self, name: str, payload: Any = None, *, connection: Any = None) -> int:
        """Send a signal to all handlers that wait for this name, now or later.

        The first signal of a name counts, later ones change nothing. Return how many messages it
        wakes. `connection` sends it in a transaction of the caller's. `handle.signal()` sends one
        to a single message.
        """
        return await self.results.signal(name, payload, connection=connection)

    async def publish_stream(
        self,
        queue: str,
        payloads: AsyncIterable[Any] | Iterable[Any],
        **options: Unpack[PublishStreamOptions],
    ) -> AsyncIterator[list[Published]]:
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
        telemetry: TelemetryHandler = log_events,
    ) -> DeadLetters:
        """Follow dead messages from a position or a time on; by default from now."""
        return DeadLetters(self.database, queue=queue, seen=seen, since=since, telemetry=telemetry)

    async def create(self) -> None:
        """Create missing queues, streams and subscriptions that the app declares.

        It is for a program that only publishes; workers do it. Existing ones do not change.
        """
        if self.registry.queues():
            await self.create_queues()
        if self.registry.subscribers():
            await self.create_subscriptions()

    @contextmanager
    def _hinting(self, name: str) -> Iterator[None]:
        """Add a hint for Python to the error for a missing queue or stream."""
        try:
            yield
        except QueueNotFoundError as error:
            meant, ends, _ = (error.hint or "").partition("? Or ")
            if name in self.registry.queues() or self.registry.declares_stream(name):
                error.hint = (
                    "await app.create() creates the queues and streams that the app declares"
                )
            else:
                error.hint = (
                    f"create a queue with await app.admin.create_queue({name!r}), "
                    f"a stream with await app.streams.create({name!r})"
                )
            if ends:
                error.hint = meant + ends + error.hint
            raise

    async def create_queues(self, queues: Sequence[str] = ()) -> list[str]:
        """Create missing queues of the handlers and return them; `create` does more.

        For an existing queue that differs from the `policy` of its handler, log a warning.
        """
        return await self.admin.create_missing(self.registry.policies(queues))

    async def create_subscriptions(self, streams: Sequence[str] = ()) -> list[tuple[str, str]]:
        """Create missing streams and subscriptions of the subscribers; return those."""
        return await self.streams.subscribe_all(self.registry.subscribers(streams))

    async def create_schedules(self, queues: Sequence[str] = ()) -> list[str]:
        """Create or change the schedules of `cron` functions; return those that changed."""
        wanted = self.registry.schedules_of(queues or self.registry.queues())
        return await self.schedules.add_all(wanted)

    def worker(
        self,
        *,
        queues: Sequence[str] | Mapping[str, int] = (),
        strict: bool = False,
        streams: Sequence[str] = (),
        telemetry: TelemetryHandler = log_events,
        metrics: WorkerObserver | None = None,
        **settings: Unpack[WorkerOptions],
    ) -> Worker:
        """A worker for all handlers and subscribers, or for those of some queues and streams.

        While several queues have messages they take turns. `queues={"high": 3, "low": 1}` gives
        them weights: three messages of `high` are claimed for each one of `low`. With `strict` a
        queue is served only while those before it in `queues` have nothing to claim.

        `metrics` observes beside the telemetry. Settings: `WorkerSettings`, by keyword or
        environment.
        """
        worker = Worker(
            self.database, self.registry, settings=WorkerSettings.load(**settings), queues=queues,
            strict=strict, streams=streams,
            telemetry=telemetry if metrics is None else metrics.beside(telemetry),
        )  # fmt: skip
        if metrics is not None:
            metrics.watch(worker)
        return worker

    async def work(self, worker: Worker | None = None) -> None:
        """Check the schema, create missing queues and schedules, run a worker until it is stopped.

        It retries for `retry_for` while the server is away or recovering. A database user who must
        not define schedules gets a warning.
        """
        worker = worker or self.worker()
        try:
            if not await worker.starting(partial(self._prepare, worker)):
                return
            try:
                await worker.run()
            except SchemaError:
                # A call that the schema lacks: the error about versions has the remedy.
                await self.admin.check_schema()
                raise
        finally:
            await self.close()

    async def _prepare(self, worker: Worker) -> None:
        await self.database.open()
        await self.admin.check_schema()
        # Each by a call of its own: creating one may lock out publishers until the commit. In one
        # transaction they would wait for all, and workers that start together for each other.
        if worker.queues:
            await self.create_queues(sorted(worker.queues))
            await self._warn_of_one_attempt(worker.queues)
            try:
                await self.create_schedules(worker.queues)
            except AccessDeniedError:
                log.warning(
                    "the schedules of this app were not updated, as only an admin may define them: "
                    "run `notifyq schedules apply`"
                )
        if worker.streams:
            await self.create_subscriptions(worker.streams)

    async def _warn_of_one_attempt(self, queues: Iterable[str]) -> None:
        """Warn where what is recorded is of no use after a crash, as no attempt is left."""
        durable = [it for it in map(self.registry.__getitem__, queues) if it.takes_steps]
        if not durable:
            return
        allowed = {row["queue"]: row["max_attempts"] for row in await self.admin.queue_info()}
        for handler in durable:
            if (handler.policy.max_attempts or allowed.get(handler.queue)) == 1:
                log.warning(
                    "the handler of queue %r takes Steps, but with max_attempts 1 a message whose "
                    "worker is killed is not handled again: allow it more attempts",
                    handler.queue,
                )


class SyncApp:
    """The calls of an App for programs that do not await; `App.sync` makes one."""

    def __init__(self, app: App, thread: LoopThread) -> None:
        self._app = app
        self._thread = thread
        self._run = thread.run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens others."""
        self._thread.close()

    def create(self) -> None:
        """Create missing queues, streams and subscriptions; see `App.create`."""
        self._run(self._app.create())

    def publish(self, queue: str, payload: Any, **options: Unpack[MessageOptions]) -> Handle[Any]:
        """Publish one message and return its id; see `App.publish`."""
        return self._run(self._app.publish(queue, payload, **options))

    def publish_many(
        self, queue: str, payloads: Iterable[Any], **options: Unpack[ManyOptions]
    ) -> list[Handle[Any]]:
        """Publish many; return their ids; see `App.publish_many`."""
        return self._run(self._app.publish_many(queue, payloads, **options))

    def publish_group(
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        callback: tuple[str, Any],
        **options: Unpack[ManyOptions],
    ) -> Group:
        """Publish messages, and one that runs when all have ended; see `App.publish_group`."""
        return self._run(self._app.publish_group(queue, payloads, callback=callback, **options))

    @overload
    def result(self, message: Handle[R], *, timeout: timedelta | float | None = None) -> R: ...
    @overload
    def result(
        self, message: int, kind: type[R], *, timeout: timedelta | float | None = None
    ) -> R: ...
    @overload
    def result(
        self, message: int, kind: Any = None, *, timeout: timedelta | float | None = None
    ) -> Any: ...
    def result(
        self, message: int, kind: Any = None, *, timeout: timedelta | float | None = None
    ) -> Any:
        """Wait for the end of a message, given by its handle or id; see `Handle.result`.

        The result is validated as `kind`, by default with the type of the handle.
        """
        if isinstance(message, Handle) and kind is None:
            return self._run(message.result(timeout))
        return self._run(self._app.result(message, Any if kind is None else kind, timeout=timeout))

    def cancel(self, message_id: int, **options: Unpack[CancelOptions]) -> Cancellation:
        """Archive a live message as rejected; see `Archive.cancel`."""
        return self._run(self._app.archive.cancel(message_id, **options))

    def signal(self, name: str, payload: Any = None) -> int:
        """Send a signal to all handlers that wait for this name; see `App.signal`."""
        return self._run(self._app.signal(name, payload))
