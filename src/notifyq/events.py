"""What happens inside a worker, as typed events. Logs, metrics and tests are sinks of the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

log = logging.getLogger("notifyq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events."""

    level: ClassVar[int] = logging.INFO


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStarted(Event):
    """A worker listens and begins to claim."""

    worker: str
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopping(Event):
    """A worker claims no more; `running` handlers have up to `grace` seconds."""

    worker: str
    running: int
    grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStopped(Event):
    """A worker has ended; `released` messages went back unfinished."""

    worker: str
    handled: int
    released: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesClaimed(Event):
    """One claim brought `quantity` messages."""

    level: ClassVar[int] = logging.DEBUG
    quantity: int
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFinished(Event):
    """An attempt was settled; in seconds.

    `status` is how it ended: one of an archived message, which may be tried again where it is
    `failed` or `lock_expired`, or `released`.
    """

    level: ClassVar[int] = logging.DEBUG
    queue: str
    message_id: int
    lock_token: int
    status: str
    wait: float
    run: float
    details: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLost(Event):
    """A message was settled too late: its lock was another's by then, and nothing changed."""

    level: ClassVar[int] = logging.WARNING
    queue: str
    message_id: int
    lock_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConnected(Event):
    """The listening session stands, and hears every bell from now on."""

    backend_pid: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerLost(Event):
    """The listening session broke; until it stands again only polling finds messages."""

    level: ClassVar[int] = logging.WARNING
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerDeaf(Event):
    """The listening session hears no bell, as behind a pooler: only polling finds messages."""

    level: ClassVar[int] = logging.WARNING
    backend_pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepDone(Event):
    """This process ran messages.maintain()."""

    level: ClassVar[int] = logging.DEBUG
    reaped: int
    staged: int
    rung: int
    partitions_made: int
    partitions_dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesFired(Event):
    """This process published `quantity` messages that schedules had due."""

    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansReleased(Event):
    """Messages of a claim whose answer was lost went back to their queues."""

    level: ClassVar[int] = logging.WARNING
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerStuck(Event):
    """A sync handler was given up, but its thread runs on and holds its slot of the worker."""

    level: ClassVar[int] = logging.WARNING
    queue: str
    message_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStarted(Event):
    """A broker calls the procedures of `role`; `again`: after the loss of its session."""

    role: str
    database: str
    backend_pid: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStopped(Event):
    """A broker was stopped, by a signal or by messages.stop_broker()."""

    role: str
    database: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLost(Event):
    """The session of a broker has ended, as where a procedure ends it; another one follows."""

    level: ClassVar[int] = logging.WARNING
    role: str
    database: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcedureFailed(Event):
    """The broker was told by the server, in these words, that a procedure has failed."""

    level: ClassVar[int] = logging.WARNING
    role: str
    database: str
    warning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAttended(Event):
    """The queue is under load: this worker keeps looking, and publishers need not ring."""

    level: ClassVar[int] = logging.DEBUG
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUnattended(Event):
    """The queue has calmed down, or this worker cannot serve it: publishers ring again."""

    level: ClassVar[int] = logging.DEBUG
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAttended(Event):
    """The stream is under load: this worker keeps looking, and publishers need not ring."""

    level: ClassVar[int] = logging.DEBUG
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamUnattended(Event):
    """The stream has calmed down, or this worker cannot serve it: publishers ring again."""

    level: ClassVar[int] = logging.DEBUG
    stream: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionTaken(Event):
    """This worker serves the subscription from now on; `member` is its place among several."""

    stream: str
    subscriber: str
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLeft(Event):
    """This worker serves the subscription no more: another one may."""

    stream: str
    subscriber: str
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinished(Event):
    """A batch is done: `events` succeeded, `retried` come again, `failed` are dead; in seconds."""

    level: ClassVar[int] = logging.DEBUG
    stream: str
    subscriber: str
    batch_id: int
    events: int
    retried: int
    failed: int
    run: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRetried(Event):
    """An attempt at an event has failed, and another one follows."""

    level: ClassVar[int] = logging.WARNING
    stream: str
    subscriber: str
    event_id: int
    attempts: int
    details: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDropped(Event):
    """A batch was not finished here: it comes again, or another session has finished it."""

    level: ClassVar[int] = logging.WARNING
    stream: str
    subscriber: str
    batch_id: int
    reason: str


Sink = Callable[[Event], None]


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
        except Exception:
            log.exception("a sink failed on %s", type(event).__name__)

    def hears(self, kind: type[Event]) -> bool:
        """Whether events of this class are of use: they need not be built for a log that is off."""
        return self._sink is not log_sink or log.isEnabledFor(kind.level)
