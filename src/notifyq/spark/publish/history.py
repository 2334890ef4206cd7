"""History: the archived messages that a replay chooses from the archive or a lake, and counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from notifyq.spark import statements
from notifyq.spark.connection import fetch
from notifyq.spark.lake.lake import ARCHIVE, Lake

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import date, datetime

    from notifyq.spark.lake.lake import LakeFile
    from notifyq.spark.lake.storage import Location

_TIME = pa.timestamp("us", "UTC")
STEP = 10_000
"""Messages in one transaction."""
_READ = ["id", "status", "type", "priority", "max_attempts", "key", "archived_at", "subscriber",
         "event_id", "message", "headers", "day", "queue"]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The conditions of a replay; None: any.

    `match` is JSON that the message contains in the sense of PostgreSQL's operator `@>`.
    """

    queue: str | None = None
    statuses: tuple[str, ...] | None = None
    dead: bool = False
    """Only messages that did not succeed and were not cancelled."""
    type: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    match: Any = None

    def parameters(self) -> dict[str, Any]:
        """Return the conditions as parameters of the SQL functions."""
        match = None if self.match is None else json.dumps(self.match)
        statuses = None if self.statuses is None else list(self.statuses)
        return {**asdict(self), "match": match, "statuses": statuses}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How many messages a replay would publish, and how many of them it has published before."""

    queue: str
    type: str | None
    status: str
    day: date
    messages: int
    known: int


def chosen(lake: Lake, files: Sequence[LakeFile], choice: Choice) -> Iterator[list[dict[str, Any]]]:
    """Give the chosen rows in files of a lake, at most `STEP` at once."""
    found = lake.dataset(files=files)
    with lake.storage.reading(ARCHIVE):
        for batch in found.to_batches(columns=_READ, filter=_condition(choice), batch_size=STEP):
            rows = batch.to_pylist()
            if choice.match is not None:
                rows = [row for row in rows if contains(json.loads(row["message"]), choice.match)]
            if rows:
                yield rows


def _condition(choice: Choice) -> Any:
    condition = ds.scalar(value=True)
    if choice.statuses is not None:
        condition &= ds.field("status").isin(list(choice.statuses))
    if choice.dead:
        condition &= (ds.field("status") != "success") & ds.field("cancelled_by").is_null()
    if choice.type is not None:
        condition &= ds.field("type") == choice.type
    if choice.since is not None:
        condition &= ds.field("archived_at") >= pa.scalar(choice.since, _TIME)
    if choice.until is not None:
        condition &= ds.field("archived_at") < pa.scalar(choice.until, _TIME)
    return condition


def contains(value: Any, part: Any) -> bool:
    """Return whether JSON contains other JSON, as the operator `@>` of PostgreSQL does."""
    if isinstance(value, list) and not isinstance(part, (list, dict)):
        return any(_same(each, part) for each in value)
    return _within(value, part)


def _within(value: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(value, dict) and all(
            key in value and _within(value[key], wanted) for key, wanted in part.items()
        )
    if isinstance(part, list):
        return isinstance(value, list) and all(
            any(_within(each, wanted) for each in value) for wanted in part
        )
    return _same(value, part)


def _same(value: Any, part: Any) -> bool:
    return isinstance(value, bool) == isinstance(part, bool) and bool(value == part)


def files(lake: Lake, choice: Choice) -> list[LakeFile]:
    """Return the files that may have chosen messages, by their queue and day."""
    first = choice.since and choice.since.astimezone(UTC).date()
    last = choice.until and choice.until.astimezone(UTC).date()
    return [
        file
        for file in lake.files()
        if (choice.queue is None or file.queue == choice.queue)
        and (first is None or file.day is None or file.day >= first)
        and (last is None or file.day is None or file.day <= last)
    ]


def counts(dsn: str, name: str, choice: Choice, *, redrive: bool) -> list[Count]:
    """Count the chosen messages of the archive, by queue, type, status and day."""
    values = {"name": name, "redrive": redrive, **choice.parameters()}
    return fetch(dsn, Count, statements.REPLAY_COUNTS, values)


def lake_counts(
    dsn: str,
    location: Location,
    choice: Choice,
) -> list[Count]:
    """Count the chosen messages of a lake; `known` is always 0."""
    lake = Lake(dsn, location)
    found: Counter[tuple[Any, ...]] = Counter()
    for rows in chosen(lake, files(lake, choice), choice):
        found.update(
            (row["day"], row["queue"], row["type"] or "", row["status"])
            for row in rows
            if row["subscriber"] is None
        )
    return [
        Count(queue=queue, type=kind or None, status=status, day=day, messages=count, known=0)
        for (day, queue, kind, status), count in sorted(found.items())
    ]
