"""Telemetry: events of workers, brokers and listeners, for logs, metrics and traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, dataclass_transform

log = logging.getLogger("notifyq")


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class TelemetryEvent:
    """The base of all events: each subclass is a frozen dataclass with keyword fields."""

    level: ClassVar[int]

    def __init_subclass__(cls, level: int = logging.INFO) -> None:
        """Make a dataclass of the subclass; `level` is that of its log line."""
        cls.level = level
        dataclass(frozen=True, kw_only=True)(cls)


TelemetryHandler = Callable[[TelemetryEvent], None]


class WorkerObserver(Protocol):
    """Observes workers: `notifyq.operations.metrics.WorkerMetrics` is one."""

    def beside(self, telemetry: TelemetryHandler, /) -> TelemetryHandler:
        """Return a handler that observes an event and passes it to `telemetry`."""

    def watch(self, worker: Any, /) -> None:
        """Also observe the state of this worker."""


def log_events(event: TelemetryEvent) -> None:
    """Log an event: its name is the message, its fields are `extra`."""
    if log.isEnabledFor(event.level):
        values = {f.name: getattr(event, f.name) for f in fields(event)}
        log.log(event.level, type(event).__name__, extra={"event": values})


class Guarded:
    """A telemetry handler whose errors are logged and never reach a message."""

    def __init__(self, telemetry: TelemetryHandler) -> None:
        self._telemetry = telemetry

    def __call__(self, event: TelemetryEvent) -> None:
        """Pass on an event."""
        try:
            self._telemetry(event)
        except BaseException:
            log.exception("a telemetry handler failed on %s", type(event).__name__)

    def wants(self, kind: type[TelemetryEvent]) -> bool:
        """Whether events of this class are used; a log that is off needs none of them."""
        return self._telemetry is not log_events or log.isEnabledFor(kind.level)


# Workers


class WorkerStarted(TelemetryEvent):
    """A worker listens and starts to claim."""

    worker: str
    queues: tuple[str, ...]


class WorkerStopping(TelemetryEvent):
    """A worker claims no more; its `running` handlers have up to `grace` seconds."""

    worker: str
    running: int
    grace: float


class WorkerStopped(TelemetryEvent):
    """A worker has ended; it released `released` messages unfinished."""

    worker: str
    handled: int
    released: int


class MessagesClaimed(TelemetryEvent, level=logging.DEBUG):
    """One claim on all of `queues` returned `quantity` messages; `by_queue` splits that number.

    `since_notification` is in seconds; it is None where no notification caused the claim.
    """

    quantity: int
    queues: tuple[str, ...]
    by_queue: dict[str, int] = field(default_factory=dict)
    since_notification: float | None = None


class MessageFinished(TelemetryEvent, level=logging.DEBUG):
    """An attempt was settled. Times are in seconds.

    `status` is that of an archived message or `released`; after `failed` and `lock_expired` the
    message may be tried again. `wait` counts from publishing, `queued` from when the message was
    first available for this attempt, which is number `attempts`.
    """

    queue: str
    message_id: int
    lock_token: int
    status: str
    wait: float
    run: float
    details: str | None
    attempts: int = 1
    queued: float = 0.0


class LockLost(TelemetryEvent, level=logging.WARNING):
    """A message was settled too late: another worker has locked it, and nothing changed."""

    queue: str
    message_id: int
    lock_token: int


class LocksExtended(TelemetryEvent, level=logging.DEBUG):
    """The locks of messages whose handlers run were extended."""

    quantity: int


class OrphansReleased(TelemetryEvent, level=logging.WARNING):
    """Messages of a claim whose answer was lost went back to their queues."""

    quantity: int


class HandlerStuck(TelemetryEvent, level=logging.WARNING):
    """A sync handler was given up, but its thread still runs and keeps its slot of the worker."""

    queue: str
    message_id: int


class LoopBlocked(TelemetryEvent, level=logging.DEBUG):
    """The event loop of the handlers did not turn for `seconds`; reported when it turns again.

    `handler` names the function that blocked it, with the message, or the batch of a stream, that
    it handled. All of them are None where the loop stood outside the calls of handlers, as in what
    a handler has started. The log has a line when it begins, with the stack, and one when it ends.
    """

    worker: str
    seconds: float
    handler: str | None = None
    queue: str | None = None
    message_id: int | None = None
    stream: str | None = None
    subscriber: str | None = None
    batch_id: int | None = None


class QueueSuppressed(TelemetryEvent, level=logging.DEBUG):
    """The queue is under load: this worker polls it, and publishers skip NOTIFY."""

    queue: str


class QueueUnsuppressed(TelemetryEvent, level=logging.DEBUG):
    """The queue is quiet, or this worker cannot serve it: publishers send NOTIFY again."""

    queue: str


class LocksExpired(TelemetryEvent, level=logging.DEBUG):
    """This process ended expired locks, as of workers that were killed; the log names them."""

    quantity: int
    by_queue: dict[str, int]


class MaintenanceDone(TelemetryEvent, level=logging.DEBUG):
    """This process ran messages.maintain()."""

    reaped: int
    staged: int
    notified: int
    partitions_made: int
    partitions_dropped: int


class MaintenanceFailing(TelemetryEvent, level=logging.WARNING):
    """Other duties of maintenance fail than before; none: all work again."""

    failing: tuple[str, ...]


class SchedulesFired(TelemetryEvent):
    """This process published `quantity` messages of schedules that were due."""

    quantity: int


# Listening sessions


class NotificationReceived(TelemetryEvent, level=logging.DEBUG):
    """A notification arrived on a channel for a queue or stream of this worker.

    Notifications that arrive faster than the worker reads them count as one.
    """

    channel: str
    name: str


class ListenerConnected(TelemetryEvent):
    """The listening session is open and receives every notification from now on."""

    backend_pid: int
    again: bool


class ListenerLost(TelemetryEvent, level=logging.WARNING):
    """The listening session broke; until it is open again only polling finds messages."""

    error: str


class NotificationsLost(TelemetryEvent, level=logging.WARNING):
    """No notification reaches the listening session, as behind a pooler: only polling works."""

    backend_pid: int
    advice: str = "listen at the server itself: NOTIFYQ_LISTEN_DSN, or App(dsn, listen_dsn=…)"


# Streams that a worker serves


class StreamSuppressed(TelemetryEvent, level=logging.DEBUG):
    """The stream is under load: this worker polls it, and publishers skip NOTIFY."""

    stream: str


class StreamUnsuppressed(TelemetryEvent, level=logging.DEBUG):
    """The stream is quiet, or this worker cannot serve it: publishers send NOTIFY again."""

    stream: str


class SubscriptionTaken(TelemetryEvent):
    """This worker serves member `member` of the subscription from now on."""

    stream: str
    subscriber: str
    member: int


class SubscriptionLeft(TelemetryEvent):
    """This worker no longer serves this member of the subscription: another one may."""

    stream: str
    subscriber: str
    member: int


class BatchFinished(TelemetryEvent, level=logging.DEBUG):
    """A batch is finished: `events` succeeded, `retried` come again, `failed` are dead.

    `run` is in seconds.
    """

    stream: str
    subscriber: str
    batch_id: int
    events: int
    retried: int
    failed: int
    run: float


class EventRetried(TelemetryEvent, level=logging.DEBUG):
    """An attempt at an event failed, and another one follows; the log has a line about it."""

    stream: str
    subscriber: str
    event_id: int
    attempts: int
    details: str


class BatchDropped(TelemetryEvent, level=logging.WARNING):
    """A batch was not finished here: it comes again, or another session has finished it."""

    stream: str
    subscriber: str
    batch_id: int
    reason: str


# Brokers


class BrokerStarted(TelemetryEvent):
    """A broker calls the procedures of `role`; `again`: after the loss of its session."""

    role: str
    database: str
    backend_pid: int
    again: bool


class BrokerStopped(TelemetryEvent):
    """A broker was stopped, by a signal or by messages.stop_broker()."""

    role: str
    database: str


class BrokerLost(TelemetryEvent, level=logging.WARNING):
    """The session of a broker has ended, for example by a procedure; another one follows."""

    role: str
    database: str
    error: str


class ProcedureFailed(TelemetryEvent, level=logging.WARNING):
    """A procedure has failed; `warning` is the server's message."""

    role: str
    database: str
    warning: str
