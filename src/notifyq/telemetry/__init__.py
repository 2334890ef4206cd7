"""Telemetry: events of workers, brokers and listeners, for logs, metrics and traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, dataclass_transform

from notifyq.printable import in_line

log = logging.getLogger("notifyq")


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class TelemetryEvent:
    """The base of all events: each subclass is a frozen dataclass with keyword fields."""

    level: ClassVar[int]
    sentence: ClassVar[str]

    def __init_subclass__(cls, *, sentence: str, level: int = logging.INFO) -> None:
        """Make a dataclass of the subclass; `sentence` and `level` are those of its log line."""
        cls.sentence = sentence
        cls.level = level
        dataclass(frozen=True, kw_only=True)(cls)

    def __str__(self) -> str:
        """The event as a sentence, for a log."""
        values = {it.name: _in_words(getattr(self, it.name)) for it in fields(self)}
        return self.sentence.format_map(values)


def _in_words(value: Any) -> Any:
    match value:
        case dict():
            return ", ".join(f"{in_line(name)} {number}" for name, number in value.items())
        case tuple():
            return ", ".join(map(in_line, value)) or "none"
        case str():
            return in_line(value)
    return value


TelemetryHandler = Callable[[TelemetryEvent], None]


class WorkerObserver(Protocol):
    """Observes workers: `notifyq.operations.metrics.WorkerMetrics` is one."""

    def beside(self, telemetry: TelemetryHandler, /) -> TelemetryHandler:
        """Return a handler that observes an event and passes it to `telemetry`."""

    def watch(self, worker: Any, /) -> None:
        """Also observe the state of this worker."""


def log_events(event: TelemetryEvent) -> None:
    """Log an event as a sentence; its name and its fields are `extra`."""
    _log(event, event.level)


def log_each(event: TelemetryEvent) -> None:
    """Log an event as `log_events` does.

    At level INFO also each message and each batch that ends, and each schedule that fires.
    """
    is_info = isinstance(event, MessageFinished | BatchFinished | SchedulesFired)
    _log(event, logging.INFO if is_info else event.level)


def _log(event: TelemetryEvent, level: int) -> None:
    if log.isEnabledFor(level):
        values = {f.name: getattr(event, f.name) for f in fields(event)}
        log.log(level, "%s", event, extra={"event_name": type(event).__name__, "event": values})


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


class WorkerStarted(
    TelemetryEvent,
    sentence="worker {worker} has started; queues: {queues}; streams: {streams}",
):
    """A worker listens and starts to claim."""

    worker: str
    queues: tuple[str, ...]
    streams: tuple[str, ...] = ()


class WorkerStopping(
    TelemetryEvent,
    sentence="worker {worker} is stopping; running handlers: {running}, with {grace:g} s to end",
):
    """A worker claims no more; its `running` handlers have up to `grace` seconds."""

    worker: str
    running: int
    grace: float


class WorkerStopped(
    TelemetryEvent,
    sentence="worker {worker} has stopped: {handled} handled, {released} released",
):
    """A worker has ended: messages and events that it handled, and messages that it released."""

    worker: str
    handled: int
    released: int


class MessagesClaimed(
    TelemetryEvent,
    sentence="claimed {quantity} messages: {by_queue}",
    level=logging.DEBUG,
):
    """One claim on all of `queues` returned `quantity` messages; `by_queue` splits that number.

    `since_notification` is in seconds; it is None where no notification caused the claim.
    """

    quantity: int
    queues: tuple[str, ...]
    by_queue: dict[str, int] = field(default_factory=dict)
    since_notification: float | None = None


class MessageFinished(
    TelemetryEvent,
    sentence="queue {queue!r}: attempt {attempts} at message {message_id} ended after {run:.3f} "
    "s: {status}",
    level=logging.DEBUG,
):
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


class LockLost(
    TelemetryEvent,
    sentence="queue {queue!r}: message {message_id} has lost its lock, or was cancelled; "
    "its outcome is dropped",
    level=logging.WARNING,
):
    """A message was settled too late: another worker has locked it, and nothing changed."""

    queue: str
    message_id: int
    lock_token: int


class LocksExtended(TelemetryEvent, sentence="extended {quantity} locks", level=logging.DEBUG):
    """The locks of messages whose handlers run were extended."""

    quantity: int


class OrphansReleased(
    TelemetryEvent,
    sentence="released {quantity} messages of a claim whose answer was lost",
    level=logging.WARNING,
):
    """Messages of a claim whose answer was lost went back to their queues."""

    quantity: int


class HandlerStuck(
    TelemetryEvent,
    sentence="queue {queue!r}: the handler of message {message_id} was given up, but its thread "
    "still runs",
    level=logging.WARNING,
):
    """A sync handler was given up, but its thread still runs and keeps its slot of the worker."""

    queue: str
    message_id: int


class LoopBlocked(
    TelemetryEvent,
    sentence="worker {worker}: the event loop stood still for {seconds:.1f} s",
    level=logging.DEBUG,
):
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


class QueueSuppressed(
    TelemetryEvent,
    sentence="queue {queue!r} is under load: publishers skip NOTIFY",
    level=logging.DEBUG,
):
    """The queue is under load: this worker polls it, and publishers skip NOTIFY."""

    queue: str


class QueueUnsuppressed(
    TelemetryEvent,
    sentence="queue {queue!r} is quiet: publishers send NOTIFY again",
    level=logging.DEBUG,
):
    """The queue is quiet, or this worker cannot serve it: publishers send NOTIFY again."""

    queue: str


class LocksExpired(
    TelemetryEvent,
    sentence="{quantity} locks expired: {by_queue}",
    level=logging.DEBUG,
):
    """This process ended expired locks, as of workers that were killed; the log names them."""

    quantity: int
    by_queue: dict[str, int]


class MaintenanceDone(
    TelemetryEvent,
    sentence="maintenance: reaped {reaped}, staged {staged}, notified {notified}; days made "
    "{partitions_made}, dropped {partitions_dropped}",
    level=logging.DEBUG,
):
    """This process ran messages.maintain()."""

    reaped: int
    staged: int
    notified: int
    partitions_made: int
    partitions_dropped: int


class MaintenanceFailing(
    TelemetryEvent,
    sentence="maintenance fails to do: {failing}",
    level=logging.WARNING,
):
    """Other duties of maintenance fail than before; none: all work again."""

    failing: tuple[str, ...]

    def __str__(self) -> str:
        """The event as a sentence, for a log."""
        return super().__str__() if self.failing else "maintenance works again"


class SchedulesFired(
    TelemetryEvent,
    sentence="schedules fired: {schedules}; messages published: {quantity}",
    level=logging.DEBUG,
):
    """This process published `quantity` messages of these schedules, which were due."""

    quantity: int
    schedules: tuple[str, ...] = ()


# Listening sessions


class NotificationReceived(
    TelemetryEvent,
    sentence="received a notification on {channel} for {name!r}",
    level=logging.DEBUG,
):
    """A notification arrived on a channel for a queue or stream of this worker.

    Notifications that arrive faster than the worker reads them count as one.
    """

    channel: str
    name: str


class ListenerConnected(TelemetryEvent, sentence="listening, in session {backend_pid}"):
    """The listening session is open and receives every notification from now on."""

    backend_pid: int
    again: bool

    def __str__(self) -> str:
        """Say whether it is not the first one."""
        return super().__str__() + ", again" * self.again


class ListenerLost(
    TelemetryEvent,
    sentence="the listening session was lost, only polling finds messages now: {error}",
    level=logging.WARNING,
):
    """The listening session broke; until it is open again only polling finds messages."""

    error: str


class NotificationsLost(
    TelemetryEvent,
    sentence="no notification reaches session {backend_pid}, only polling finds messages: {advice}",
    level=logging.WARNING,
):
    """No notification reaches the listening session, as behind a pooler: only polling works."""

    backend_pid: int
    advice: str = "listen at the server itself: NOTIFYQ_LISTEN_DSN, or App(dsn, listen_dsn=…)"


# Streams that a worker serves


class StreamSuppressed(
    TelemetryEvent,
    sentence="stream {stream!r} is under load: publishers skip NOTIFY",
    level=logging.DEBUG,
):
    """The stream is under load: this worker polls it, and publishers skip NOTIFY."""

    stream: str


class StreamUnsuppressed(
    TelemetryEvent,
    sentence="stream {stream!r} is quiet: publishers send NOTIFY again",
    level=logging.DEBUG,
):
    """The stream is quiet, or this worker cannot serve it: publishers send NOTIFY again."""

    stream: str


class SubscriptionTaken(
    TelemetryEvent,
    sentence="stream {stream!r}: member {member} of subscriber {subscriber!r} is served here",
):
    """This worker serves member `member` of the subscription from now on."""

    stream: str
    subscriber: str
    member: int


class SubscriptionLeft(
    TelemetryEvent,
    sentence="stream {stream!r}: member {member} of subscriber {subscriber!r} is left to others",
):
    """This worker no longer serves this member of the subscription: another one may."""

    stream: str
    subscriber: str
    member: int


class BatchFinished(
    TelemetryEvent,
    sentence="stream {stream!r}: subscriber {subscriber!r} ended batch {batch_id} after {run:.3f} "
    "s: {events} handled, {retried} come again, {failed} dead",
    level=logging.DEBUG,
):
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


class EventRetried(
    TelemetryEvent,
    sentence="stream {stream!r}: attempt {attempts} at event {event_id} by {subscriber!r} failed: "
    "{details}",
    level=logging.DEBUG,
):
    """An attempt at an event failed, and another one follows; the log has a line about it."""

    stream: str
    subscriber: str
    event_id: int
    attempts: int
    details: str


class BatchDropped(
    TelemetryEvent,
    sentence="stream {stream!r}: subscriber {subscriber!r} did not end batch {batch_id}: {reason}",
    level=logging.WARNING,
):
    """A batch was not finished here: it comes again, or another session has finished it."""

    stream: str
    subscriber: str
    batch_id: int
    reason: str


# Brokers


class BrokerStarted(
    TelemetryEvent,
    sentence="the broker of role {role!r} works in database {database!r}, in session {backend_pid}",
):
    """A broker calls the procedures of `role`; `again`: after the loss of its session."""

    role: str
    database: str
    backend_pid: int
    again: bool


class BrokerStopped(
    TelemetryEvent,
    sentence="the broker of role {role!r} in database {database!r} has stopped",
):
    """A broker was stopped, by a signal or by messages.stop_broker()."""

    role: str
    database: str


class BrokerLost(
    TelemetryEvent,
    sentence="the session of the broker of role {role!r} in database {database!r} was lost: "
    "{error}",
    level=logging.WARNING,
):
    """The session of a broker has ended, for example by a procedure; another one follows."""

    role: str
    database: str
    error: str


class ProcedureFailed(
    TelemetryEvent,
    sentence="a procedure of role {role!r} in database {database!r} failed: {warning}",
    level=logging.WARNING,
):
    """A procedure has failed; `warning` is the server's message."""

    role: str
    database: str
    warning: str
