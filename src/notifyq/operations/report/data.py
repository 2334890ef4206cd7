"""The numbers of a report, read from the roll-ups."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from notifyq.database.pool import Database
from notifyq.errors import ConfigurationError
from notifyq.operations.report import statements

_MOST_LISTED = 20
"""Errors and workers that are listed."""

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_RANGE = 7 * _DAY
_STEPS = (_HOUR, 3 * _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 28 * _DAY)
_MOST_STEPS = 190


@dataclass(frozen=True)
class Group:
    """Statistics of messages: of a time step, of a queue, or of all."""

    at: datetime | None
    queue: str | None
    status: str | None
    finished: int
    dead: int
    retried: int
    attempts: int
    wait: dict[str, timedelta | None]
    run: dict[str, timedelta | None]

    @property
    def failure_rate(self) -> float:
        """The share of messages that did not succeed."""
        return self.dead / self.finished if self.finished else 0.0


@dataclass(frozen=True)
class Failure:
    """Errors with the same fingerprint."""

    fingerprint: str
    errors: int
    queues: list[str]
    statuses: list[str]
    first_at: datetime
    last_at: datetime
    sample: str | None


@dataclass(frozen=True)
class WorkerTotal:
    """The messages of one worker."""

    worker: str
    queues: list[str]
    finished: int
    dead: int
    run_total: timedelta


@dataclass(frozen=True)
class Growth:
    """Messages of a queue, compared with the same time before; `queue` None: all queues."""

    queue: str | None
    before: int
    now: int

    @property
    def change(self) -> float | None:
        """The growth, 0.5 for 50 % more; None without earlier messages."""
        return self.now / self.before - 1 if self.before else None


@dataclass(frozen=True)
class Report:
    """All numbers of a report."""

    database: str
    lake: int
    rolled_at: datetime | None
    made_at: datetime
    since: datetime
    until: datetime
    step: timedelta
    first_at: datetime | None
    last_at: datetime | None
    total: Group | None
    timeline: list[Group]
    by_status: list[Group]
    queues: list[Group]
    failures: list[Failure]
    workers: list[WorkerTotal]
    growth: list[Growth]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to report."""
        return self.total is None


async def gather(
    database: Database,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    lake: int | None = None,
) -> Report:
    """Read the numbers; by default of the last seven days with messages."""
    [known] = await database.fetch(statements.ROLLUP_RANGE, lake)
    since, until = _limits(since, until, known["last_at"])
    step = next((it for it in _STEPS if (until - since) / it <= _MOST_STEPS), _STEPS[-1])
    source = known["source"]

    async def groups(step: timedelta | None, *dimensions: str, before: bool = False) -> list[Group]:
        start, end = (since - (until - since), since) if before else (since, until)
        rows = await database.fetch(
            statements.ROLLUP_SUMMARY, start, end, step, list(dimensions), source
        )
        return [_group(row) for row in rows]

    most = (since, until, _MOST_LISTED, source)
    total = await groups(None)
    queues = await groups(None, "queue")
    return Report(
        database=await database.value(statements.DATABASE),
        lake=source,
        rolled_at=known["rolled_at"],
        made_at=datetime.now(UTC),
        since=since,
        until=until,
        step=step,
        first_at=known["first_at"],
        last_at=known["last_at"],
        total=total[0] if total else None,
        timeline=await groups(step),
        by_status=await groups(step, "status"),
        queues=queues,
        failures=[Failure(**row) for row in await database.fetch(statements.ROLLUP_ERRORS, *most)],
        workers=[
            WorkerTotal(**row) for row in await database.fetch(statements.ROLLUP_WORKERS, *most)
        ],
        growth=_growth(await groups(None, "queue", before=True), queues),
    )


def _limits(
    since: datetime | None, until: datetime | None, last_at: datetime | None
) -> tuple[datetime, datetime]:
    """The range in whole hours, the shortest buckets of roll-ups."""
    # A row from the far future must not move the report.
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    latest = until or min(last_at or datetime.now(UTC), tomorrow) + _HOUR
    latest = latest.astimezone(UTC)
    end = latest.replace(minute=0, second=0, microsecond=0)
    if until is not None and end < latest:
        end += _HOUR
    start = (since or end - _RANGE).astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    if start >= end:
        raise ConfigurationError(f"--since {start.isoformat()} is not before {end.isoformat()}")
    return start, end


def _group(row: Any) -> Group:
    def times(kind: str) -> dict[str, timedelta | None]:
        return {name: row[f"{kind}_{name}"] for name in ("mean", "p50", "p95", "p99", "max")}

    return Group(
        row["bucket_at"], row["queue"], row["status"], row["finished"], row["dead"],
        row["retried"], row["attempts"], times("wait"), times("run"),
    )  # fmt: skip


def _growth(before: Sequence[Group], now: Sequence[Group]) -> list[Growth]:
    """All queues together first, then the queues with the largest changes."""
    was = {group.queue: group.finished for group in before}
    is_ = {group.queue: group.finished for group in now}
    each = [Growth(queue, was.get(queue, 0), is_.get(queue, 0)) for queue in {**is_, **was}]
    each.sort(key=lambda it: (-abs(it.now - it.before), it.queue or ""))
    return [Growth(None, sum(was.values()), sum(is_.values())), *each]
