"""Reads the state of an installation: each function calls one SQL function."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from notifyq.database.pool import Database
from notifyq.models.message import Status, aware, columns
from notifyq.operations.monitor import statements

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection

    Source: TypeAlias = Database | AnyConnection

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Backlog:
    """The live messages of one queue."""

    queue: str
    paused: bool
    waiting: int
    scheduled: int
    locked: int
    expired: int
    """Messages whose lock has expired; also counted in `locked`."""
    dead: int
    """Messages that failed permanently within 24 hours and were not retried."""
    is_exact: bool
    """False: more messages wait or are scheduled than were counted; the rest is estimated."""
    oldest_waiting_at: datetime | None
    """Since when the next message waits, the oldest over all priorities."""
    oldest_expired_at: datetime | None
    next_due_at: datetime | None
    """When the next scheduled message is due; in the past: maintenance has not staged it."""
    is_unserved: bool
    """Messages have waited for a minute, and no worker serves the queue."""
    parked: int
    """Messages that wait in a step for a time, a signal or other messages; not in `scheduled`."""
    dead_recently: int
    """Messages that failed permanently within 10 minutes and were not retried."""


@dataclass(frozen=True, slots=True)
class Point:
    """Messages finished in one time step, with one status or, where `status` is None, in total."""

    bucket_at: datetime
    queue: str | None
    """None: all queues."""
    status: Status | None
    finished: int
    dead: int
    """How many of them are dead: neither succeeded nor cancelled."""
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
    """Messages finished in each time step, the earliest step first."""

    points: tuple[Point, ...]
    read_from_at: datetime | None
    """Older rows were not all read because there were too many; None: all were read."""


@dataclass(frozen=True, slots=True)
class LockedMessage:
    """A message that a worker has locked."""

    id: int
    queue: str
    type: str | None
    attempts: int
    locked_at: datetime
    lock_expires_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker that reports to the database, or that has messages locked."""

    name: str
    state: str
    """working, idle, stopping, blocked (a handler blocks its event loop), unresponsive, gone, or
    unknown (it only has messages locked)."""
    host: str | None
    pid: int | None
    version: str | None
    concurrency: int | None
    running: int | None
    """Messages that it was handling at its last report."""
    queues: tuple[str, ...]
    streams: tuple[str, ...]
    started_at: datetime | None
    seen_at: datetime | None
    blocked_at: datetime | None
    """Since when a handler has blocked its event loop; None: none does."""
    session_pid: int | None
    is_connected: bool | None
    """Whether the session of its last report still exists."""
    held: int
    expired: int
    messages: tuple[LockedMessage, ...]
    """Those locked the longest; `held` counts all."""


@dataclass(frozen=True, slots=True)
class Session:
    """Something that holds an old snapshot, or a session in a transaction."""

    cause: str
    """Of a snapshot: session, prepared transaction, replication slot, standby. Of a transaction:
    lock, idle, transaction."""
    name: str
    pid: int | None
    user_name: str | None
    application: str | None
    state: str | None
    since_at: datetime | None
    xmin_age: int | None
    """Age of its snapshot in transactions."""
    waits_for: str | None
    blocked_by: tuple[int, ...]
    query: str | None
    advice: str
    """How to end it."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far one subscriber is behind."""

    stream: str
    subscriber: str
    lag: timedelta
    """Age of the oldest event that it has not finished."""
    pending: int
    """Events that it has not finished, counted up to a limit."""
    retries: int
    """Events that wait for their next delivery, counted up to the same limit."""
    last_seen_at: datetime | None
    """When it last received a batch."""


@dataclass(frozen=True, slots=True)
class CronEntry:
    """A pg_cron entry of notifyq, and its last run."""

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
    """One number of messages.health(), whose comment explains it."""

    name: str
    subject: str
    """The table, cause, slot or entry that it belongs to; empty: the whole installation."""
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Health:
    """All numbers of messages.health()."""

    figures: tuple[Figure, ...]

    @property
    def is_whole(self) -> bool:
        """Whether it has the numbers of the server, which a viewer does not get."""
        return self.get("connections") is not None

    def get(self, name: str, subject: str = "") -> float | None:
        """One number, or None."""
        found = (it.value for it in self.figures if (it.name, it.subject) == (name, subject))
        return next(found, None)

    def by_subject(self, name: str) -> dict[str, float]:
        """The numbers with this name, by subject."""
        return {it.subject: it.value for it in self.figures if it.name == name}


@dataclass(frozen=True, slots=True)
class QueueRetention:
    """What the archive keeps of one queue, and for how long."""

    queue: str | None
    """None: all queues that are too rare to appear in the statistics of the server."""
    is_known: bool
    """False: the queue was dropped, or it is a stream with dead events."""
    retention: timedelta | None
    retention_dead: timedelta | None
    rows: int
    dead: int | None
    """None: not counted, because a day is large."""
    bytes: int
    first_day: date | None


@dataclass(frozen=True, slots=True)
class ArchiveDay:
    """One day of the archive, in UTC."""

    day: date
    rows: int
    dead: int | None
    is_exact: bool
    """False: `rows` and `dead` are estimates from the statistics of the server."""
    bytes: int
    attempt_bytes: int
    removed: int
    """Rows that retention has removed."""
    goes_at: datetime | None
    """When its last row is removed."""
    next_at: datetime | None
    next_step: str | None
    """What maintenance does with it next: `drop`, `rewrite`, `delete` or `age`."""
    awaits: str | None
    """The lake that must have it first."""


async def _rows(source: Source, kind: type[Row], statement: str, *args: Any) -> list[Row]:
    return [kind(**columns(row)) for row in await source.fetch(statement, *args)]


async def backlog(source: Source, queue: str | None = None, *, most: int = 10_000) -> list[Backlog]:
    """The live messages of each queue: up to `most` are counted, more are estimated."""
    return await _rows(source, Backlog, statements.BACKLOG, queue, most)


async def throughput(
    source: Source,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    step: timedelta | None = None,
    queue: str | None = None,
    by_queue: bool = False,
    most: int = 100_000,
) -> Throughput:
    """Messages finished in each time step; reads about `most` rows of the archive at most."""
    rows = await source.fetch(statements.THROUGHPUT, since, until, step, queue, by_queue, most)
    read_from_at, points = None, []
    for row in rows:
        if not row["is_complete"]:
            read_from_at = row["bucket_at"]
            continue
        values = {name: value for name, value in row.items() if name != "is_complete"}
        values["status"] = values["status"] and Status(values["status"])
        points.append(Point(**values))
    points.sort(key=lambda it: (it.bucket_at, it.queue or "", it.status or ""))
    return Throughput(tuple(points), read_from_at)


async def workers(source: Source, *, most: int = 20) -> list[WorkerInfo]:
    """All workers, each with up to `most` of the messages that it has locked."""
    found = await source.fetch(statements.WORKERS, most)
    return [
        WorkerInfo(
            **columns(row)
            | {name: tuple(row[name] or ()) for name in ("queues", "streams")}
            | {"messages": tuple(LockedMessage(**columns(it)) for it in row["messages"])}
        )
        for row in found
    ]


async def holders(source: Source, *, most: int = 50) -> list[Session]:
    """What prevents vacuum from removing dead rows, the oldest snapshot first."""
    return await _sessions(source, statements.HOLDERS, most)


async def activity(source: Source, *, most: int = 50) -> list[Session]:
    """Sessions in a transaction, the longest first."""
    return await _sessions(source, statements.ACTIVITY, most)


async def _sessions(source: Source, statement: str, most: int) -> list[Session]:
    return [
        Session(**columns(row) | {"blocked_by": tuple(row["blocked_by"] or ())})
        for row in await source.fetch(statement, most)
    ]


async def cron_entries(source: Source) -> list[CronEntry]:
    """The pg_cron entries of notifyq that this user may see."""
    return await _rows(source, CronEntry, statements.CRON_ENTRIES)


async def lags(source: Source, *, most: int = 10_000) -> list[Lag]:
    """How far each subscriber is behind; counts up to `most` events of each."""
    rows = await source.fetch(statements.LAGS, most)
    return [Lag(**{name: aware(row[name]) for name in Lag.__dataclass_fields__}) for row in rows]


async def health(source: Source) -> Health:
    """All numbers that monitoring needs."""
    return Health(tuple(await _rows(source, Figure, statements.HEALTH)))


async def retention(source: Source) -> list[QueueRetention]:
    """What the archive keeps of each queue, the largest first."""
    return await _rows(source, QueueRetention, statements.RETENTION)


async def archive_days(source: Source) -> list[ArchiveDay]:
    """The days of the archive, including those that exist in advance."""
    return await _rows(source, ArchiveDay, statements.ARCHIVE_DAYS)
