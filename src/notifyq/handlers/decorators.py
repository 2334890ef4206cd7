"""The registrar: what user code decorates becomes a handler, a schedule, a resource, middleware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from notifyq.errors import ConfigurationError
from notifyq.handlers.build import make_handler
from notifyq.handlers.cron import make_cron
from notifyq.handlers.handler import Publishing
from notifyq.handlers.registry import Registry
from notifyq.handlers.subscriber import make_subscriber
from notifyq.telemetry.tracing import make_tracing

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from opentelemetry.trace import TracerProvider

    from notifyq.handlers.build import HandlerOptions
    from notifyq.handlers.cron import CronOptions
    from notifyq.handlers.handler import (
        Handler,
        MessageHandler,
        Middleware,
        Register,
        RegisterBatch,
        RegisterCron,
    )
    from notifyq.handlers.subscriber import RegisterSubscriber, Subscriber, SubscriberOptions

F = TypeVar("F", bound="Callable[..., Any]")
M = TypeVar("M", bound="Middleware")


class Registrar(Publishing):
    """The side of an App that functions are registered on; the other one publishes for them."""

    def __init__(self, tracing: bool | TracerProvider = False) -> None:  # noqa: FBT001, FBT002
        self.registry = Registry()
        self.registry.tracing = make_tracing(tracing)

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

        Without parentheses, `@app.handler`, it is that of the queue "default".

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
        queue's. A worker creates the queue if there is none, with `policy` and what else the
        handler says; one that exists stays as it is.
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

    @overload
    def subscriber(
        self, stream: str, subscriber: str, *, batch: int, **options: Unpack[SubscriberOptions]
    ) -> RegisterSubscriber: ...
    @overload
    def subscriber(
        self, stream: str, subscriber: str, **options: Unpack[SubscriberOptions]
    ) -> RegisterSubscriber: ...
    def subscriber(
        self,
        stream: Any = None,
        subscriber: Any = None,
        *,
        batch: int | None = None,
        **options: Unpack[SubscriberOptions],
    ) -> RegisterSubscriber:
        """Register a function, async or sync, as a subscriber of a stream: it gets every event.

        It takes the payload of an event, validated as the parameter's annotation says, and, where a
        parameter is annotated `notifyq.Event`, the event itself; resources and middleware as for
        `handler`. With `batch` it takes lists of up to so many, and `notifyq.Batch` if it wants to;
        it returns None, or a list with an outcome for each, in which an exception is one.

        What it returns is dropped. `Reject` archives the event as dead for this subscriber, any
        other exception has it delivered again, up to `max_attempts` times, after a `backoff` as
        that of a handler; then it is dead as well. With `ordered` an event that fails holds up
        those of its key behind it; without, it comes again in a later batch. So do parts of the
        batch of a worker that was killed, and later events may overtake them. With `transactional`
        it takes a `notifyq.Transaction`, in which the batch is finished, too.

        One worker at a time serves a subscription; with `members`, so many batches are handled at a
        time over all workers. `concurrency` is for the events of one batch, of which there are up
        to `quantity`. A worker creates the stream, with `policy`, and the subscription at
        `position`, where they are missing.
        """
        if stream is None or subscriber is None or callable(stream):
            raise ConfigurationError(
                "a subscriber needs the name of its stream and its own: "
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
        """Run a function by the clock: a schedule publishes, the function handles.

        Its queue and the schedule are called `queue` and `name`, by default both as the function.
        On top of `@app.handler`, or of another `@app.cron`, it publishes into the queue of that.
        What a schedule may be told is in `Schedule`, what a handler may be told in `handler`.

        A worker puts the schedule in place when it starts; redefined there, it is enabled or
        disabled as before. The schedule of a function that is gone stays: `schedules.remove`.
        """
        if not cron or callable(cron):
            raise ConfigurationError(
                'a cron function needs to be told when to run: @app.cron("*/5 * * * *")'
            )
        return make_cron(self.registry, self, cron, **options)

    @overload
    def resource(self, function: F) -> F: ...
    @overload
    def resource(self) -> Callable[[F], F]: ...
    def resource(self, function: Any = None) -> Any:
        """Register what handlers share: whoever is annotated with the type it gives, gets it.

        The function returns it, or yields it and closes it behind the `yield`; async or not, it
        runs on the event loop. A worker opens, when it starts, what its handlers take, in the order
        of registration, and closes it in reverse after the last handler has ended. A resource may
        take others that are registered before it.
        """
        if function is None:  # with parentheses
            return self.resource
        self.registry.add_resource(function)
        return function

    @overload
    def middleware(self, function: M) -> M: ...
    @overload
    def middleware(self) -> Callable[[M], M]: ...
    def middleware(self, function: Any = None) -> Any:
        """Run `await function(message, call)` around each handler; the first one is the outermost.

        `await call()` runs what is inside and returns its result; what the function returns or
        raises counts as the handler's own.
        """
        if function is None:  # with parentheses
            return self.middleware
        self.registry.add_middleware(function)
        return function
