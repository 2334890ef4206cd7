"""The App: one database, its handlers, and publishing; what user code imports."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from pydantic import TypeAdapter

from notifyq.admin import Admin
from notifyq.archive import Archive
from notifyq.config import DatabaseSettings, WorkerSettings, dsn_from_environment
from notifyq.crons import make_cron
from notifyq.database import Database
from notifyq.deadletters import DeadLetters
from notifyq.errors import AccessDeniedError, ConfigurationError, SchemaError
from notifyq.events import log_sink
from notifyq.publisher import Publisher
from notifyq.registry import Registry, make_handler
from notifyq.results import Handle, Results
from notifyq.schedules import Schedules
from notifyq.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Sequence
    from datetime import datetime, timedelta

    from notifyq.crons import CronOptions
    from notifyq.events import Sink
    from notifyq.handlers import Handler, Middleware, Register, RegisterBatch, RegisterCron
    from notifyq.registry import HandlerOptions

log = logging.getLogger("notifyq.worker")

F = TypeVar("F", bound="Callable[..., Any]")
M = TypeVar("M", bound="Middleware")
R = TypeVar("R")


class App:
    """Register handlers, publish messages, run workers.

    The DSN is that of the argument, else NOTIFYQ_DSN, looked up when it is first needed.
    `listen_dsn` is where the worker listens when `dsn` goes through a pooler. Settings of the
    connection are those of `DatabaseSettings`, by keyword or environment.
    """

    def __init__(
        self, dsn: str | None = None, *, listen_dsn: str | None = None, **settings: Any
    ) -> None:
        self.dsn = dsn
        self.listen_dsn = listen_dsn
        self.registry = Registry()
        self._settings = DatabaseSettings.load(**settings)
        self._database: Database | None = None
        self._results: Results | None = None

    async def __aenter__(self) -> Self:
        """Connect; an App also connects by itself when it is first used."""
        await self.database.open()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; the App can be used again."""
        results, self._results = self._results, None
        if results is not None:
            await results.close()
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    @property
    def database(self) -> Database:
        """The pool of connections."""
        if self._database is None:
            dsn = self.dsn or dsn_from_environment()
            if dsn is None:
                raise ConfigurationError(
                    "no database: set NOTIFYQ_DSN or give the App a DSN like "
                    "postgresql://user:password@host:5432/database"
                )
            self._database = Database(dsn, settings=self._settings)
        return self._database

    @property
    def results(self) -> Results:
        """What waits for the ends of messages."""
        if self._results is None:
            self._results = Results(self.database, listen_dsn=self.listen_dsn)
        return self._results

    @property
    def admin(self) -> Admin:
        """Create, change, pause and drop queues."""
        return Admin(self.database)

    @property
    def archive(self) -> Archive:
        """Read live and finished messages; retry dead ones."""
        return Archive(self.database)

    @property
    def schedules(self) -> Schedules:
        """Define, list, stop and remove what is published by the clock."""
        return Schedules(self.database)

    @overload
    def handler(
        self,
        queue: str = "default",
        *,
        batch: int,
        linger: timedelta | float = 0,
        **options: Unpack[HandlerOptions],
    ) -> RegisterBatch: ...
    @overload
    def handler(self, queue: str = "default", **options: Unpack[HandlerOptions]) -> Register: ...
    def handler(
        self,
        queue: str = "default",
        *,
        batch: int | None = None,
        linger: timedelta | float | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Any], Any]:
        """Register a function, async or sync, as the handler of a queue.

        It takes the payload, validated as the parameter's annotation says, and, where a parameter
        is annotated `notifyq.Message`, the message itself; one annotated with the type of a
        `resource` registered before gets that. What it returns is archived as JSON. `Reject`
        archives the message as rejected, `Retry` and any other exception end the attempt.

        A handler that runs longer than `timeout` is stopped and has failed. While it runs, its lock
        is extended; with `heartbeat=False` it is not, and a handler that outlives its lock is
        stopped and archived as lock_expired. Durations are timedeltas or seconds.

        With `transactional=True` it takes a `notifyq.Transaction`, in which the message is finished
        too: its writes and the end of the message are committed together, or not at all.

        A message has `max_attempts`, unless it was published with its own; None: as many as the
        queue gives. Between them lies `backoff`: the base of an exponential backoff with jitter,
        which grows up to `backoff_max`, or a wait strategy of tenacity, or a mapping from classes
        of exceptions to either, to None (not again) or to `Reject`. What it leaves out is the
        queue's. A worker creates the queue if there is none, with what the handler says as its
        policy.
        """

        def register(function: Callable[..., Any]) -> Handler[Any]:
            handler = make_handler(
                queue,
                function,
                resources=self.registry.resources,
                publisher=self,
                batch=batch,
                linger=linger,
                **options,
            )
            self.registry.add(handler)
            return handler

        return register

    def cron(self, cron: str, **options: Unpack[CronOptions]) -> RegisterCron:
        """Run a function by the clock: a schedule publishes, the function handles.

        Its queue and the schedule are called `queue` and `name`, by default both as the function.
        On top of `@app.handler`, or of another `@app.cron`, it publishes into the queue of that.
        What a schedule may be told is in `Schedule`, what a handler may be told in `handler`.

        A worker puts the schedule in place when it starts; redefined there, it is enabled or
        disabled as before. The schedule of a function that is gone stays: `schedules.remove`.
        """
        return make_cron(self.registry, self, cron, **options)

    def resource(self, function: F) -> F:
        """Register what handlers share: whoever is annotated with the type it gives, gets it.

        The function returns it, or yields it and closes it behind the `yield`; async or not, it
        runs on the event loop. A worker opens, when it starts, what its handlers take, in the order
        of registration, and closes it in reverse after the last handler has ended. A resource may
        take others that are registered before it.
        """
        self.registry.add_resource(function)
        return function

    def middleware(self, function: M) -> M:
        """Run `await function(message, call)` around each handler; the first one is the outermost.

        `await call()` runs what is inside and returns its result; what the function returns or
        raises counts as the handler's own.
        """
        self.registry.add_middleware(function)
        return function

    async def publish(self, queue: str, payload: Any, **options: Any) -> Handle[Any]:
        """Publish one message and return its id; the options are those of `Publisher.publish`.

        The id is an int that knows the way to the result: `await handle.result()`.
        """
        number = await Publisher(self.database).publish(queue, payload, **options)
        return Handle(number, self.results)

    async def publish_many(
        self, queue: str, payloads: Iterable[Any], **options: Any
    ) -> list[Handle[Any]]:
        """Publish many; return their ids. The options are those of `Publisher.publish_many`."""
        numbers = await Publisher(self.database).publish_many(queue, payloads, **options)
        return [Handle(number, self.results) for number in numbers]

    @overload
    async def result(
        self, message_id: int, kind: type[R], *, timeout: timedelta | float | None = None
    ) -> R: ...
    @overload
    async def result(
        self, message_id: int, kind: Any = Any, *, timeout: timedelta | float | None = None
    ) -> Any: ...
    async def result(
        self, message_id: int, kind: Any = Any, *, timeout: timedelta | float | None = None
    ) -> Any:
        """Wait for the end of a message, wherever it was published; see `Handle.result`.

        The result is validated as `kind`, by default it is the decoded JSON.
        """
        handle: Handle[Any] = Handle(message_id, self.results, TypeAdapter(kind))
        return await handle.result(timeout)

    def publish_stream(
        self, queue: str, payloads: AsyncIterable[Any] | Iterable[Any], **options: Any
    ) -> AsyncIterator[list[int]]:
        """Publish in batches; yield their ids. Options are those of `Publisher.publish_stream`."""
        return Publisher(self.database).publish_stream(queue, payloads, **options)

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

    async def create_queues(self, queues: Sequence[str] = ()) -> list[str]:
        """Create the queues of the handlers where they are missing; return those that were."""
        existing = {row["queue"] for row in await self.admin.queue_info()}
        missing = [queue for queue in queues or self.registry.queues() if queue not in existing]
        for queue in missing:
            await self.admin.create_queue(queue, self.registry[queue].policy)
        return missing

    async def create_schedules(self, queues: Sequence[str] = ()) -> list[str]:
        """Put the schedules of `cron` functions in place; return those that were new or other."""
        wanted = self.registry.schedules_of(queues or self.registry.queues())
        return [schedule.name for schedule in wanted if await self.schedules.add(schedule)]

    def worker(
        self, *, queues: Sequence[str] = (), sink: Sink | None = None, **settings: Any
    ) -> Worker:
        """A worker for all queues that have a handler, or for some of them.

        Settings are those of `WorkerSettings`, by keyword or environment.
        """
        options = {} if sink is None else {"sink": sink}
        return Worker(
            self.database,
            self.registry,
            settings=WorkerSettings.load(**settings),
            queues=queues,
            listen_dsn=self.listen_dsn,
            **options,
        )

    async def work(self, worker: Worker | None = None) -> None:
        """Check the schema, create missing queues and schedules, run a worker until it is stopped.

        A database user who may not define schedules is warned about them, and works.
        """
        worker = worker or self.worker()
        async with self:
            await self.admin.check_schema()
            await self.create_queues(worker.queues)
            try:
                await self.create_schedules(worker.queues)
            except AccessDeniedError:
                log.warning(
                    "the schedules of this app are left as they are, since only an admin may "
                    "define them: `notifyq schedules apply`"
                )
            try:
                await worker.run()
            except SchemaError:
                # A call that the schema does not know: the versions tell what to do about it.
                await self.admin.check_schema()
                raise
