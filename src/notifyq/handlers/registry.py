"""The registry: handlers by queue, subscribers, schedules, resources and middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.handlers.resources import Resources
from notifyq.models.annotations import name

if TYPE_CHECKING:
    from notifyq.handlers.handler import AroundSync, Handler, Middleware
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.queues.policy import Policy
    from notifyq.queues.schedules import Schedule
    from notifyq.telemetry.tracing import Tracing

Opened = dict[Any, Any]
"""Handlers by queue, and subscribers by stream and name."""


class Registry:
    """Everything that the decorators of an App register."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler[Any]] = {}
        self._subscribers: dict[tuple[str, str], Subscriber[Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.resources = Resources()
        self.middleware: list[Middleware] = []
        """The outermost first."""
        self.around_sync: list[AroundSync] = []
        """The outermost first."""
        self.tracing: Tracing | None = None
        self.capture_logs: int | None = None
        """From which level on log records of handlers are kept; None: none are."""

    def add(self, handler: Handler[Any]) -> None:
        """Register a handler; a second one of the same queue is an error."""
        other = self._handlers.setdefault(handler.queue, handler)
        if other is not handler:
            raise ConfigurationError(
                f"queue {handler.queue!r} has the handler {name(other.function)} already: "
                f"{name(handler.function)} needs a queue of its own"
            )

    def add_subscriber(self, subscriber: Subscriber[Any]) -> None:
        """Register a subscriber; a second one of the same name and stream is an error."""
        stream, called = subscriber.subscription
        other = self._subscribers.setdefault((stream, called), subscriber)
        if other is not subscriber:
            raise ConfigurationError(
                f"stream {stream!r} has the subscriber {called!r} already, "
                f"{name(other.function)}: {name(subscriber.function)} needs a name of its own"
            )

    def subscribers(self, streams: Iterable[str] = ()) -> list[Subscriber[Any]]:
        """The subscribers in the order of registration: all, or those of some streams."""
        wanted = set(streams)
        return [it for it in self._subscribers.values() if not wanted or it.stream in wanted]

    def check(self, queues: Iterable[str], streams: Iterable[str]) -> None:
        """Raise unless each of these queues and streams, and at least one, has a handler."""
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
        """Register a schedule, which workers define; a second one of the same name is an error."""
        other = self.schedules.setdefault(schedule.name, schedule)
        if other is not schedule:
            raise ConfigurationError(
                f"schedule {schedule.name!r} already exists, at {other.cron!r}: give this one "
                "a name of its own, as in @app.cron(..., name='...')"
            )

    def policies(self, queues: Iterable[str] = ()) -> dict[str, Policy]:
        """The policies of these queues by their handlers; without any, of all queues."""
        return {queue: self[queue].policy for queue in queues or self.queues()}

    def schedules_of(self, queues: Iterable[str]) -> list[Schedule]:
        """The schedules that publish into these queues."""
        wanted = set(queues)
        return [schedule for schedule in self.schedules.values() if schedule.queue in wanted]

    @asynccontextmanager
    async def opened(
        self,
        queues: Iterable[str],
        given: Mapping[Any, Any] | None = None,
        *,
        subscribers: Iterable[Subscriber[Any]] = (),
    ) -> AsyncIterator[Opened]:
        """Open the resources of these handlers and subscribers; yield them, ready to be called."""
        keyed: dict[Any, Any] = {queue: self[queue] for queue in queues}
        keyed |= {subscriber.subscription: subscriber for subscriber in subscribers}
        wanted = [
            kind for it in keyed.values() for _, kind in it.resources if kind in self.resources
        ]
        async with self.resources.opened(wanted, given or {}) as values:
            middleware = tuple(self.middleware)
            yield {key: _bound(it, values, middleware, self.tracing) for key, it in keyed.items()}

    def __getitem__(self, queue: str) -> Handler[Any]:
        return self._handlers[queue]

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
    # The type `Batch` is no resource: each call passes its own batch.
    arguments = {name: values[kind] for name, kind in handler.resources if kind in values}
    function = partial(handler.function, **arguments)
    return replace(handler, function=function, middleware=middleware, tracing=tracing)
