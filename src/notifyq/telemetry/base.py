"""The root of all events, and the sinks that they go to."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

log = logging.getLogger("notifyq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events."""

    level: ClassVar[int] = logging.INFO


Sink = Callable[[Event], None]


class WorkerObserver(Protocol):
    """Watches workers: `notifyq.metrics.WorkerMetrics` is one."""

    def beside(self, sink: Sink, /) -> Sink:
        """Make a sink that observes an event and hands it on."""

    def watch(self, worker: Any, /) -> None:
        """Also observe the state of this worker."""


def log_sink(event: Event) -> None:
    """Log an event: its name is the message, its fields are `extra`."""
    if log.isEnabledFor(event.level):
        values = {f.name: getattr(event, f.name) for f in fields(event)}
        log.log(event.level, type(event).__name__, extra={"event": values})


class Guarded:
    """A sink whose errors cost an event, but never a message."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __call__(self, event: Event) -> None:
        """Hand on an event."""
        try:
            self._sink(event)
        except BaseException:
            log.exception("a sink failed on %s", type(event).__name__)

    def hears(self, kind: type[Event]) -> bool:
        """Whether events of this class are of use: they need not be built for a log that is off."""
        return self._sink is not log_sink or log.isEnabledFor(kind.level)
