"""`@app.cron`: a handler, and the schedule that publishes into its queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack

from notifyq.arguments import known_options
from notifyq.errors import ConfigurationError
from notifyq.handlers.build import HandlerOptions, make_handler
from notifyq.handlers.handler import Handler, Publishing
from notifyq.models.payload import encode
from notifyq.queues.cron_syntax import check_cron
from notifyq.queues.schedules import Overlap, Schedule, WhenUnserved

if TYPE_CHECKING:
    from notifyq.handlers.registry import Registry


class CronOptions(HandlerOptions, total=False):
    """Options of a cron function: those of its handler, and those of its schedule."""

    name: str
    queue: str
    payload: Any
    timezone: str
    type: str
    headers: dict[str, Any]
    priority: int
    key: str
    jitter: timedelta | float
    overlap: Overlap
    backfill: int
    grace: timedelta | float
    when_unserved: WhenUnserved


_OF_HANDLER = HandlerOptions.__annotations__.keys()


def make_cron(
    registry: Registry, publisher: Publishing, cron: str, **options: Unpack[CronOptions]
) -> Callable[[Any], Any]:
    """Return a decorator that registers a schedule and, unless it gets one, a handler."""
    known_options("a cron function", options, CronOptions.__annotations__)
    encode(options.get("payload"))
    check_cron(cron)

    def register(function: Any) -> Handler[Any]:
        given: dict[str, Any] = dict(options)
        of_handler: Any = {name: given.pop(name) for name in _OF_HANDLER & given.keys()}
        if isinstance(function, Handler):
            handler = function
            if refused := sorted(of_handler.keys() | (given.keys() & {"queue"})):
                raise ConfigurationError(
                    f"queue {handler.queue!r} already has its handler: pass {refused[0]!r} there"
                )
        else:
            handler = make_handler(
                given.pop("queue", function.__qualname__),
                function,
                resources=registry.resources,
                publisher=publisher,
                **of_handler,
            )
        name = given.pop("name", handler.queue)
        schedule = Schedule(name=name, cron=cron, queue=handler.queue, **given)
        registry.add_schedule(schedule)
        if handler is not function:
            registry.add(handler)
        return handler

    return register
