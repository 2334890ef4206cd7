"""Look at an installation: one call of a function of the schema each, into plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from notifyq.models.message import Status, aware, columns
from notifyq.operations.monitor import statements
from notifyq.operations.monitor.figures import (
    ArchiveDay,
    Backlog,
    CronEntry,
    Figure,
    Health,
    Held,
    Kept,
    Lag,
    Point,
    Presence,
    Session,
    Throughput,
)

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import TypeAlias

    from notifyq.database.pool import AnyConnection, Database

    Source: TypeAlias = Database | AnyConnection


async def backlog(source: Source, queue: str | None = None, *, most: int = 10_000) -> list[Backlog]:
    """What waits in each queue; of each, up to `most` messages are counted, then guessed."""
    return [Backlog(**columns(row)) for row in await source.fetch(statements.BACKLOG, queue, most)]


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
    """What was finished, by steps of time; of the archive not more than about `most` rows."""
    rows = await source.fetch(
        statements.THROUGHPUT, since, until, step, queue, by_queue, most
    )  # fmt: skip
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


async def workers(source: Source, *, most: int = 20) -> list[Presence]:
    """Who works, with up to `most` of the messages that each has locked."""

    def presence(row: Any) -> Presence:
        values = columns(row)
        for name in ("queues", "streams"):
            values[name] = tuple(values[name] or ())
        values["messages"] = tuple(Held(**columns(it)) for it in values["messages"])
        return Presence(**values)

    return [presence(row) for row in await source.fetch(statements.WORKERS, most)]


async def holders(source: Source, *, most: int = 50) -> list[Session]:
    """What keeps vacuum from taking dead rows, the oldest first."""
    return [_session(row) for row in await source.fetch(statements.HOLDERS, most)]


async def activity(source: Source, *, most: int = 50) -> list[Session]:
    """Sessions in a transaction, the longest first."""
    return [_session(row) for row in await source.fetch(statements.ACTIVITY, most)]


def _session(row: Any) -> Session:
    return Session(**{**columns(row), "blocked_by": tuple(row["blocked_by"] or ())})


async def cron_entries(source: Source) -> list[CronEntry]:
    """Our entries of pg_cron, as far as this user may see them."""
    return [CronEntry(**columns(row)) for row in await source.fetch(statements.CRON_ENTRIES)]


async def lags(source: Source, *, most: int = 10_000) -> list[Lag]:
    """How far behind each subscriber is; of each, up to `most` events are counted."""
    rows = await source.fetch(statements.LAGS, most)
    return [Lag(**{name: aware(row[name]) for name in Lag.__dataclass_fields__}) for row in rows]


async def health(source: Source) -> Health:
    """All numbers by which an installation is watched."""
    return Health(tuple(Figure(**columns(row)) for row in await source.fetch(statements.HEALTH)))


async def retention(source: Source) -> list[Kept]:
    """What the archive keeps of each queue, the largest first."""
    return [Kept(**columns(row)) for row in await source.fetch(statements.RETENTION)]


async def archive_days(source: Source) -> list[ArchiveDay]:
    """The days of the archive, also those that were made ahead."""
    return [ArchiveDay(**columns(row)) for row in await source.fetch(statements.ARCHIVE_DAYS)]
