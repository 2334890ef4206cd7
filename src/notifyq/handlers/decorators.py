"""The decorators of an App: they register handlers, subscribers, resources and middleware."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from notifyq.arguments import log_level
from notifyq.errors import ConfigurationError
from notifyq.handlers.build import HandlerOptions, SubscriberOptions, make_handler, make_subscriber
from notifyq.handlers.cron import CronOptions, make_cron
from notifyq.handlers.handler import Publishing
from notifyq.handlers.registry import Registry
from notifyq.handlers.subscriber import RegisterSubscriber, Subscriber
from notifyq.telemetry.tracing import make_tracing

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from notifyq.handlers.handler import (
        AroundSync,
        Handler,
        MessageHandler,
        Middleware,
        Register,
        RegisterBatch,
        RegisterCron,
    )

F = TypeVar("F", bound="Callable[..., Any]")
M = TypeVar("M", bound="Middleware")
A = TypeVar("A", bound="AroundSync")


class Decorators(Publishing):
    """The part of an App that registers functions."""

    def __init__(
        self,
        tracing: bool | TracerProvider = False,  # noqa: FBT001, FBT002
        capture_logs: str | int | None = None,
    ) -> None:
        self.registry = Registry()
        self.registry.tracing = make_tracing(tracing)
        if capture_logs is not None:
            self.registry.capture_logs = log_level("capture_logs", capture_logs)

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
    @overload
    def handler(self, queue: F, /) -> MessageHandler[F]: ...
    def handler(
        self,
        queue: str | Callable[..., Any] = "default",
        *,
        batch: int | None = None,
        linger: timedelta | float | None = None,
        **options: Unpack[HandlerOptions],
    ) -> Any:
        """Register a function, async or sync, as the handler of a queue.

        `@app.handler` without parentheses handles the queue "default".

        The function takes the payload, validated by the annotation of its parameter. A parameter
        annotated `notifyq.Message` receives the message, one annotated with the type of a
        `resource` receives that resource. The result is archived as JSON. `Reject` archives the
        message as rejected; `Retry` and any other exception end the attempt.

        After `timeout` the handler is stopped and has failed. Its lock is extended while it runs;
        with `heartbeat=False` it is not, and a handler that outlives its lock is stopped and
        archived as lock_expired. Durations are timedeltas or seconds.

        With `transactional=True` it takes a `notifyq.Transaction`: its writes and the end of the
        message are committed together, or not at all.

        `max_attempts` counts unless the message has its own; None: that of the queue. `backoff` is
        the base of an exponential backoff with jitter up to `backoff_max`, or a wait strategy of
        tenacity, or a mapping from classes of exceptions to either, to None (no other attempt) or
        to `Reject`; for other exceptions the backoff of the queue counts. A worker creates a
        missing queue with `policy` and these options; an existing one stays as it is.
        """
        if callable(queue):
            return self.handler()(queue)
        name = queue

        def register(function: Callable[..., Any]) -> Handler[Any]:
            handler = make_handler(
                name,
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

    def subscriber(
        self,
        stream: str = "",
        subscriber: str = "",
        *,
        batch: int | None = None,
        **options: Unpack[SubscriberOptions],
    ) -> RegisterSubscriber:
        """Register a function, async or sync, as a subscriber of a stream: it gets every event.

        It takes the payload of an event, validated by the annotation of its parameter; a parameter
        annotated `notifyq.Event` receives the event. Resources and middleware work as for
        `handler`. With `batch` it takes lists of up to that many, and optionally `notifyq.Batch`;
        it returns None, or a list with an outcome for each event, where an exception is one.

        Other results are ignored. `Reject` archives the event as dead for this subscriber. After
        any other exception the event is delivered again, up to `max_attempts` times, with the
        `backoff` of a handler; then it is dead too. With `ordered` a failed event blocks later ones
        with its key; otherwise it comes again in a later batch. Events of a killed worker's batch
        come again too, and later events may overtake them. With `transactional` it takes a
        `notifyq.Transaction`, which also finishes the batch.

        One worker at a time serves a subscription; with `members` that many batches are handled at
        a time over all workers. `quantity` is the most events of a batch, `concurrency` how many of
        them are handled at a time. A worker creates a missing stream, with `policy`, and a missing
        subscription at `position`.
        """
        if not stream or not subscriber or callable(stream):
            raise ConfigurationError(
                "a subscriber needs the name of its stream and a name: "
                '@app.subscriber("orders", "mailer")'
            )

        def register(function: Callable[..., Any]) -> Subscriber[Any]:
            made = make_subscriber(
                stream,
                subscriber,
                function,
                resources=self.registry.resources,
                publisher=self,
                batch=batch,
                **options,
            )
            self.registry.add_subscriber(made)
            return made

        return register

    def cron(self, cron: str = "", **options: Unpack[CronOptions]) -> RegisterCron:
        """Run a function on a schedule, which publishes a message that the function handles.

        `queue` and `name` of the schedule are the name of the function by default. On top of
        `@app.handler`, or of another `@app.cron`, it publishes into that queue. See `Schedule` and
        `handler` for the options.

        A worker defines the schedule when it starts; whether it is enabled does not change. The
        schedule of a removed function stays: `schedules.remove`.
        """
        if not cron or callable(cron):
            raise ConfigurationError(
                'a cron function needs a cron expression: @app.cron("*/5 * * * *")'
            )
        return make_cron(self.registry, self, cron, **options)

    @overload
    def resource(self, function: F) -> F: ...
    @overload
    def resource(self) -> Callable[[F], F]: ...
    def resource(self, function: Any = None) -> Any:
        """Register a resource: parameters annotated with its type receive it.

        The function returns it, or yields it and closes it after the `yield`; async or not, it
        runs on the event loop. A worker opens the resources of its handlers at its start, in the
        order of registration, and closes them in reverse after the last handler. A resource may
        take others that are registered before it.
        """
        if function is None:  # with parentheses
            return self.resource
        resources = self.registry.resources
        resources.add(function)
        return function

    @overload
    def middleware(self, function: M) -> M: ...
    @overload
    def middleware(self) -> Callable[[M], M]: ...
    def middleware(self, function: Any = None) -> Any:
        """Run `await function(message, call)` around each handler; the first one is the outermost.

        `await call()` runs the inner middleware and the handler, and returns the result. What the
        function returns or raises counts as the handler's own.
        """
        if function is None:  # with parentheses
            return self.middleware
        middleware = self.registry.middleware
        middleware.append(function)
        return function

    def around_sync(self, function: A) -> A:
        """Enter the context manager that the function makes around each sync function, in a thread.

        That is each sync handler, subscriber and step. What it raises counts as raised by that
        function. The first one is the outermost. Handlers with `executor="process"` run without it.
        """
        around = self.registry.around_sync
        around.append(function)
        return function
