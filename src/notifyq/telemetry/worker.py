"""What happens inside a worker."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import ClassVar

from notifyq.telemetry.base import Event


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
    """One claim brought `quantity` messages, so many `by_queue`, and was for all of `queues`.

    `since_bell` is how many seconds after a bell; None: no bell had called for this look.
    """

    level: ClassVar[int] = logging.DEBUG
    quantity: int
    queues: tuple[str, ...]
    by_queue: dict[str, int] = field(default_factory=dict)
    since_bell: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFinished(Event):
    """An attempt was settled; in seconds.

    `status` is how it ended: one of an archived message, which may be tried again where it is
    `failed` or `lock_expired`, or `released`. `wait` counts from publishing, `queued` from when
    the message could first be claimed for this attempt, which is the `attempts`-th.
    """

    level: ClassVar[int] = logging.DEBUG
    queue: str
    message_id: int
    lock_token: int
    status: str
    wait: float
    run: float
    details: str | None
    attempts: int = 1
    queued: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LockLost(Event):
    """A message was settled too late: its lock was another's by then, and nothing changed."""

    level: ClassVar[int] = logging.WARNING
    queue: str
    message_id: int
    lock_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LocksExtended(Event):
    """The locks of messages whose handlers run were extended."""

    level: ClassVar[int] = logging.DEBUG
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BellHeard(Event):
    """A bell has rung on a channel for a queue or a stream of this worker.

    Bells that ring faster than the worker can hear them apart are one.
    """

    level: ClassVar[int] = logging.DEBUG
    channel: str
    name: str


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
    advice: str = "listen at the server itself: NOTIFYQ_LISTEN_DSN, or App(dsn, listen_dsn=…)"


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
class QueueAttended(Event):
    """The queue is under load: this worker keeps looking, and publishers need not ring."""

    level: ClassVar[int] = logging.DEBUG
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUnattended(Event):
    """The queue has calmed down, or this worker cannot serve it: publishers ring again."""

    level: ClassVar[int] = logging.DEBUG
    queue: str
