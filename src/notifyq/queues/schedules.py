"""Schedules: messages published repeatedly, by the clock of the database."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

import asyncpg

from notifyq.arguments import check_fields, plain
from notifyq.database import statements as sql
from notifyq.errors import DatabaseError
from notifyq.models.message import decode_headers, readable
from notifyq.models.payload import encode

if TYPE_CHECKING:
    from notifyq.database.pool import Calls

Overlap = Literal["allow", "skip_waiting", "skip"]
"""What happens to a run while the one before is not over."""
WhenUnserved = Literal["publish", "skip"]
"""What happens to a run while messages wait in the queue and no worker serves it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A definition: when to publish what. Durations are timedeltas or seconds."""

    name: str
    cron: str
    """Five fields, six with leading seconds, a name such as `@daily`, or `@every 90s`."""
    queue: str
    payload: Any = None
    """The payload of each message."""
    timezone: str = "UTC"
    """The time zone of `cron`, such as `Europe/Oslo`."""
    type: str | None = None
    headers: dict[str, Any] | None = None
    priority: int = 0
    key: str | None = None
    max_attempts: int | None = None
    jitter: timedelta | float = 0
    """Each message becomes available up to this much later, at random."""
    overlap: Overlap = "allow"
    """`allow`; `skip_waiting`: skip a run while the last waits; `skip`: while it is live."""
    backfill: int = 1
    """Most missed runs that are made up for."""
    grace: timedelta | float = timedelta(minutes=5)
    """With `backfill=0`: how late a run may be and still be published."""
    when_unserved: WhenUnserved = "publish"
    """`skip`: skip a run while messages have waited for a minute and no worker serves the queue."""

    def __post_init__(self) -> None:
        """Raise for a value that its field does not accept."""
        check_fields(self)

    def args(self) -> tuple[object, ...]:
        """The values in the order of the SQL function."""
        given = plain(self)
        encoded = {"payload": encode(self.payload), "headers": encode(self.headers or {})}
        return tuple((given | encoded)[field.name] for field in fields(Schedule))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo(Schedule):
    """A schedule in the database."""

    enabled: bool
    created_at: datetime
    next_at: datetime
    last_at: datetime | None
    """The time of the last run."""
    last_id: int | None
    """The message of the last run."""
    skipped_at: datetime | None
    """The last run that was skipped: missed, or because of an earlier one."""
    failed_at: datetime | None
    """When firing last failed; it is retried every minute. None: it did not fail."""
    last_error: str | None
    unserved_at: datetime | None
    """When a run first found its queue without a worker. None: the last run did not."""

    def __post_init__(self) -> None:
        """Check nothing: rows of the database are shown as they are."""

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> Self:
        """Take the columns that this class has from a row."""
        names = [field.name for field in fields(cls) if field.name != "payload"]
        values: dict[str, Any] = {name: row[name] for name in names}
        values["headers"] = decode_headers(row["headers"])
        return cls(payload=readable(row["message"]), **values)


class Schedules:
    """Define, list, stop and remove schedules."""

    def __init__(self, database: Calls) -> None:
        self._database = database

    async def add(self, schedule: Schedule) -> bool:
        """Define or redefine a schedule. False: nothing changed. It stays enabled or disabled."""
        return bool(await self._database.value(sql.SCHEDULE, *schedule.args()))

    async def add_all(self, schedules: Iterable[Schedule]) -> list[str]:
        """Define or redefine schedules; return the names of those that changed."""
        changed = []
        for schedule in schedules:
            try:
                if await self.add(schedule):
                    changed.append(schedule.name)
            except DatabaseError as error:
                error.args = (f"schedule {schedule.name!r}: {error.args[0]}", *error.args[1:])
                raise
        return changed

    async def remove(self, name: str) -> bool:
        """Remove a schedule; its messages stay. False: there was none."""
        return bool(await self._database.value(sql.UNSCHEDULE, name))

    async def enable(self, name: str) -> bool:
        """Let it fire again, from its next time. False: it was enabled already."""
        return bool(await self._database.value(sql.ENABLE_SCHEDULE, name))

    async def disable(self, name: str) -> bool:
        """Stop it until it is enabled. False: it was disabled already."""
        return bool(await self._database.value(sql.DISABLE_SCHEDULE, name))

    async def run(self, name: str) -> int:
        """Publish its message now and return the id; its next time does not change."""
        return int(await self._database.value(sql.RUN_SCHEDULE, name))

    async def next(
        self,
        cron: str,
        timezone: str = "UTC",
        *,
        quantity: int = 1,
        later_than: datetime | None = None,
    ) -> list[datetime]:
        """The next times of an expression."""
        found: list[datetime] = []
        while len(found) < quantity:
            latest = found[-1] if found else later_than
            found.append(await self._database.value(sql.CRON_NEXT, cron, timezone, latest))
        return found

    async def list(self, name: str | None = None) -> list[ScheduleInfo]:
        """All schedules by name, or the one of this name."""
        return [
            ScheduleInfo.from_row(row)
            for row in await self._database.fetch(sql.SCHEDULE_INFO, name)
        ]
