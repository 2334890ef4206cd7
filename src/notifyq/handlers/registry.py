"""The registry: which function handles which queue, and what it takes."""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from notifyq.arguments import duration, known_options, text, whole
from notifyq.errors import ConfigurationError
from notifyq.handlers.handler import BatchHandler, Handler, MessageHandler
from notifyq.handlers.resources import Resources, name
from notifyq.handlers.retries import Retries
from notifyq.handlers.signature import Signature, adapter
from notifyq.queues.admin import Policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from notifyq.handlers.handler import Middleware, Publishing
    from notifyq.handlers.retries import Backoff
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.queues.schedules import Schedule
    from notifyq.telemetry.tracing import Tracing

Opened = dict[Any, Any]
"""Handlers by queue, and subscribers by stream and name."""
_MOST_BATCH = 10_000
_MOST_ATTEMPTS = 1000


class HandlerOptions(TypedDict, total=False):
    """What may be said of any handler; durations are timedeltas or seconds."""

    timeout: timedelta | float | None
    heartbeat: bool
    lock_timeout: timedelta | float | None
    max_attempts: int | None
    backoff: Backoff | None
    backoff_max: timedelta | float | None
    transactional: bool
    executor: Literal["process"] | None
    policy: Policy | None
    """What its queue gets, where the worker creates it, besides what the others say."""


class Registry:
    """Handlers by queue, one for each queue; what they share, and what runs around them."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[Any]] = {}
        self._subscribers: dict[tuple[str, str], Subscriber[Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        """By name."""
        self.resources = Resources()
        self._middleware: list[Middleware] = []
        self.tracing: Tracing | None = None
        """What makes spans of calls."""

    def add(self, handler: Handler[Any]) -> None:
        """Register a handler; a second one for the same queue is an error."""
        other = self._handlers.setdefault(handler.queue, handler)
        if other is not handler:
            raise ConfigurationError(
                f"queue {handler.queue!r} has the handler {name(other.function)} already: "
                f"{name(handler.function)} needs a queue of its own"
            )

    def add_subscriber(self, subscriber: Subscriber[Any]) -> None:
        """Register a subscriber; a second one of its name and stream is an error."""
        stream, called = subscriber.subscription
        other = self._subscribers.setdefault((stream, called), subscriber)
        if other is not subscriber:
            raise ConfigurationError(
                f"stream {stream!r} has the subscriber {called!r} already, "
                f"{name(other.function)}: {name(subscriber.function)} needs a name of its own"
            )

    def subscribers(self, streams: Iterable[str] = ()) -> list[Subscriber[Any]]:
        """The subscribers in the order of registration, all or those of some streams."""
        wanted = set(streams)
        return [it for it in self._subscribers.values() if not wanted or it.stream in wanted]

    def check(self, queues: Iterable[str], streams: Iterable[str]) -> None:
        """Raise unless there is something to serve, and for all that is asked for."""
        for queue in queues:
            if queue not in self._handlers:
                raise ConfigurationError(
                    f"no handler for queue {queue!r}: there are handlers for "
                    f"{', '.join(self._handlers) or 'no queue at all'}"
                )
        known = {stream for stream, _ in self._subscribers}
        for stream in streams:
            if stream not in known:
                raise ConfigurationError(
                    f"no subscriber of stream {stream!r}: there are subscribers of "
                    f"{', '.join(sorted(known)) or 'no stream at all'}"
                )
        if not self._handlers and not known:
            raise ConfigurationError("there is no handler: register one with @app.handler('queue')")

    def add_schedule(self, schedule: Schedule) -> None:
        """Register what workers of its queue put in place; a second one of its name is an error."""
        other = self.schedules.setdefault(schedule.name, schedule)
        if other is not schedule:
            raise ConfigurationError(
                f"there is a schedule {schedule.name!r} already, at {other.cron!r}: give this one "
                "a name of its own, as in @app.cron(..., name='...')"
            )

    def policies(self, queues: Iterable[str] = ()) -> dict[str, Policy]:
        """What the handlers of these queues say of them; of all, without any."""
        return {queue: self[queue].policy for queue in queues or self.queues()}

    def schedules_of(self, queues: Iterable[str]) -> list[Schedule]:
        """The schedules that publish into these queues."""
        wanted = set(queues)
        return [schedule for schedule in self.schedules.values() if schedule.queue in wanted]

    def add_resource(self, function: Callable[..., Any]) -> None:
        """Register what handlers that are registered later may take."""
        self.resources.add(function)

    def add_middleware(self, function: Middleware) -> None:
        """Run this around all handlers, inside of what was added before."""
        self._middleware.append(function)

    @asynccontextmanager
    async def opened(
        self,
        queues: Iterable[str],
        given: Mapping[Any, Any] | None = None,
        *,
        subscribers: Iterable[Subscriber[Any]] = (),
    ) -> AsyncIterator[Opened]:
        """Give the handlers of these queues, ready to be called, while their resources are open."""
        keyed: dict[Any, Any] = {queue: self[queue] for queue in queues}
        keyed |= {subscriber.subscription: subscriber for subscriber in subscribers}
        wanted = [
            kind for it in keyed.values() for _, kind in it.resources if kind in self.resources
        ]
        async with self.resources.opened(wanted, given or {}) as values:
            middleware = tuple(self._middleware)
            yield {key: _bound(it, values, middleware, self.tracing) for key, it in keyed.items()}

    def __getitem__(self, queue: str) -> Handler[Any]:
        return self._handlers[queue]

    def __len__(self) -> int:
        return len(self._handlers)

    def declares_stream(self, name: str) -> bool:
        """Whether a subscriber reads this stream."""
        return any(stream == name for stream, _ in self._subscribers)

    def queues(self) -> tuple[str, ...]:
        """The queues that have a handler, in the order of registration."""
        return tuple(self._handlers)


def _bound(
    handler: Handler[Any],
    values: Mapping[Any, Any],
    middleware: tuple[Middleware, ...],
    tracing: Tracing | None,
) -> Handler[Any]:
    if not handler.resources and not middleware and tracing is None:
        return handler
    if tracing is not None and handler.process is not None:
        middleware = (tracing.middleware(handler), *middleware)
    # A batch of events is not there yet.
    arguments = {place: values[kind] for place, kind in handler.resources if kind in values}
    function = partial(handler.function, **arguments)
    return replace(handler, function=function, middleware=middleware, tracing=tracing)


def make_handler(
    queue: str,
    function: Callable[..., Any],
    *,
    resources: Resources,
    publisher: Publishing,
    batch: int | None = None,
    linger: timedelta | float | None = None,
    **options: Unpack[HandlerOptions],
) -> Handler[Any]:
    """Read a function's signature: what it takes, and as what its payload is validated."""
    is_async = inspect.iscoroutinefunction(function)
    is_transactional = options.get("transactional", False)
    text("queue", queue)
    if linger is not None and batch is None:
        raise ConfigurationError(f"{name(function)} gathers no batch: linger needs batch=…")
    _check(function, batch, options, is_async=is_async)
    signature = Signature(
        function, resources, is_batch=batch is not None, has_transaction=is_transactional
    )
    lock_timeout = duration("lock_timeout", options.get("lock_timeout"))
    retries = Retries(options.get("backoff"), options.get("backoff_max"))
    return (MessageHandler if batch is None else BatchHandler)(
        queue=queue,
        function=function,
        policy=_policy(
            options.get("policy") or Policy(),
            lock_timeout=lock_timeout,
            max_attempts=options.get("max_attempts"),
            backoff=retries.base,
            backoff_max=retries.most,
        ),
        retries=retries,
        timeout=duration("timeout", options.get("timeout")),
        heartbeat=options.get("heartbeat", True),
        lock_timeout=lock_timeout,
        publisher=publisher,
        payload=adapter(function, signature.payload),
        result=adapter(function, signature.result),
        takes=tuple(signature.takes),
        names=tuple(signature.names),
        resources=tuple(signature.resources),
        takes_payload=signature.takes_payload,
        is_async=is_async,
        is_transactional=is_transactional,
        process=_importable(function, signature) if options.get("executor") else None,
        batch=batch,
        linger=duration("linger", linger) or timedelta(),
    )


def _policy(said: Policy, **of_handler: Any) -> Policy:
    """Policy for the queue of a handler: what it says of the queue, else of itself."""
    missing = {n: value for n, value in of_handler.items() if getattr(said, n) is None}
    return replace(said, **missing)


def _check(
    function: Callable[..., Any], batch: int | None, options: HandlerOptions, *, is_async: bool
) -> None:
    known_options("a handler", options, HandlerOptions.__annotations__)
    whole("batch", batch, _MOST_BATCH)
    whole("max_attempts", options.get("max_attempts"), _MOST_ATTEMPTS)
    policy = options.get("policy")
    if policy is not None and not isinstance(policy, Policy):
        raise ConfigurationError(
            f"policy must be a notifyq.Policy, as in Policy(concurrency=5), not {policy!r}"
        )
    executor = options.get("executor")
    if executor not in {None, "process"}:
        raise ConfigurationError(f"executor must be 'process' or None, not {executor!r}")
    if executor and (is_async or batch is not None):
        raise ConfigurationError(
            f"{name(function)} cannot run in a process: that is for sync functions that take one "
            "message"
        )
    if options.get("transactional") and not is_async:
        raise ConfigurationError(
            f"{name(function)} cannot be transactional: its connection belongs to the event loop, "
            "so it must be an async function"
        )


def _importable(function: Callable[..., Any], signature: Signature) -> tuple[str, str]:
    """Where a process finds a function, which is not sent there but imported."""
    if signature.resources:
        raise ConfigurationError(
            f"{name(function)} cannot run in a process: a resource such as "
            f"{signature.resources[0][0]!r} cannot go there. Open what it needs in the function"
        )
    if "<" in function.__qualname__:
        raise ConfigurationError(
            f"{name(function)} cannot run in a process, which could not import it: define it at "
            "the top of a module"
        )
    return function.__module__, function.__qualname__
