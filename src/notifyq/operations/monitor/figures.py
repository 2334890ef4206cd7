"""What is seen of an installation, as the functions of the schema report it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import date, datetime, timedelta

    from notifyq.models.message import Status


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits in one queue."""

    queue: str
    paused: bool
    waiting: int
    scheduled: int
    locked: int
    expired: int
    """Locked past their time; also in `locked`."""
    dead: int
    """Died within a day, and not redriven."""
    is_exact: bool
    """False: more wait, or are scheduled, than were counted, and the server guessed how many."""
    oldest_waiting_at: datetime | None
    """Since when the first in turn of all priorities waits."""
    oldest_expired_at: datetime | None
    next_due_at: datetime | None
    """When the next scheduled one is due; in the past: nobody stages it."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was finished in one step of time: with one status, or all of them (status None)."""

    bucket_at: datetime
    queue: str | None
    """None: of all queues."""
    status: Status | None
    finished: int
    wait_p50: timedelta | None
    wait_p95: timedelta | None
    wait_p99: timedelta | None
    run_p50: timedelta | None
    run_p95: timedelta | None
    run_p99: timedelta | None
    source: str
    """`archive`, or `rollup`."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """What was finished, by steps of time, the earliest first."""

    points: tuple[Point, ...]
    read_from_at: datetime | None
    """What was archived before was not all read, as it is too much; None: all was."""


@dataclass(frozen=True, slots=True)
class Held:
    """A message that a worker has locked."""

    id: int
    queue: str
    type: str | None
    attempts: int
    locked_at: datetime
    lock_expires_at: datetime


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker that says it is there, or that has messages locked."""

    name: str
    state: str
    """working, idle, stopping, silent, gone, or unknown: it only has messages locked."""
    host: str | None
    pid: int | None
    version: str | None
    concurrency: int | None
    running: int | None
    """Messages that it handled when it came last."""
    queues: tuple[str, ...]
    streams: tuple[str, ...]
    started_at: datetime | None
    seen_at: datetime | None
    session_pid: int | None
    is_connected: bool | None
    """Whether the session is there in which it came last."""
    held: int
    expired: int
    messages: tuple[Held, ...]
    """Those held the longest; `held` is how many there are."""


@dataclass(frozen=True, slots=True)
class Session:
    """Who holds an old snapshot, or is in a transaction."""

    cause: str
    """Of a holder: session, prepared transaction, replication slot, standby. Else lock, idle,
    transaction."""
    name: str
    pid: int | None
    user_name: str | None
    application: str | None
    state: str | None
    since_at: datetime | None
    xmin_age: int | None
    """How many transactions old its snapshot is."""
    waits_for: str | None
    blocked_by: tuple[int, ...]
    query: str | None
    advice: str
    """How to end it."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind a subscriber is."""

    stream: str
    subscriber: str
    lag: timedelta
    """How old the oldest event is that it has not finished."""
    pending: int
    """Events that it has not finished, up to as many as were counted."""
    retries: int
    """Events that wait to be delivered again, likewise."""
    last_seen_at: datetime | None
    """When it was last handed a batch."""


@dataclass(frozen=True, slots=True)
class CronEntry:
    """An entry of pg_cron that is ours, and how it ran last."""

    entry: str
    schedule: str
    is_active: bool
    user_name: str
    last_status: str | None
    last_started_at: datetime | None
    last_message: str | None
    failed: int
    """Runs that failed within an hour."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number; what it means says the comment of messages.health()."""

    name: str
    subject: str
    """The table, cause, slot or entry that it is of; empty: of all."""
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Health:
    """All numbers by which an installation is watched."""

    figures: tuple[Figure, ...]

    def get(self, name: str, subject: str = "") -> float | None:
        """One number; None where there is none."""
        found = (it.value for it in self.figures if (it.name, it.subject) == (name, subject))
        return next(found, None)

    def by_subject(self, name: str) -> dict[str, float]:
        """The numbers of one name, by what they are of."""
        return {it.subject: it.value for it in self.figures if it.name == name}


@dataclass(frozen=True, slots=True)
class Kept:
    """What the archive keeps of one queue, and for how long."""

    queue: str | None
    """None: all that are too rare for the statistics of the server to tell apart."""
    is_known: bool
    """False: the queue was dropped, or it is a stream whose events died."""
    retention: timedelta | None
    retention_dead: timedelta | None
    rows: int
    dead: int | None
    """None: nobody counted them, as a day is large."""
    bytes: int
    first_day: date | None


@dataclass(frozen=True, slots=True)
class ArchiveDay:
    """One day of the archive, in UTC."""

    day: date
    rows: int
    dead: int | None
    is_exact: bool
    """False: rows and dead are those of the statistics of the server."""
    bytes: int
    attempt_bytes: int
    removed: int
    """Rows that retention has removed from it."""
    goes_at: datetime | None
    """When the last of it goes."""
    next_at: datetime | None
    next_step: str | None
    """What upkeep does with it now: `drop`, `rewrite`, `delete` or `age`."""
    awaits: str | None
    """The lake that must have it before."""
