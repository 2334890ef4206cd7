"""Staging: rows that are copied into PostgreSQL, and become messages when their load is committed.

Whatever publishes in bulk stages here: the data source, `load` and `replay`. See transfer/load.sql.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg.rows import class_row

from notifyq.spark import statements
from notifyq.spark.connection import connect, connect_arrow
from notifyq.spark.failures import translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

OPTIONS = {
    "priority": pa.int32(),
    "max_attempts": pa.int32(),
    "delay": pa.float64(),
    "available_at": pa.timestamp("us", "UTC"),
    "type": pa.string(),
    "key": pa.string(),
    "headers": pa.string(),
    "dedup_key": pa.string(),
    "origin_id": pa.int64(),
}
"""What a row may have beside its queue and message; headers and message are JSON, as text."""
COLUMNS = {"position": pa.int64(), "queue": pa.string(), "message": pa.string(), **OPTIONS}


@dataclass(frozen=True, slots=True)
class Staged:
    """What a task has staged: it counts once its number is in a commit."""

    attempt: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What became of a load; `is_new` says whether this call has published it, or is to."""

    name: str
    epoch: int | None
    is_new: bool
    published: int
    merged: int
    committed_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A staged row that cannot be published, and why."""

    attempt: int
    position: int
    queue: str
    message: str
    reason: str


def check_targets(dsn: str, queues: Sequence[str]) -> None:
    """Raise an error of notifyq unless messages could be published into all of them now."""
    with translated(), connect(dsn) as session:
        session.execute(statements.CHECK_TARGETS, (list(queues),))


def begin(dsn: str, name: str, epoch: int | None = None) -> LoadReport:
    """Begin a load, or learn that it was published already."""
    return _report(dsn, statements.BEGIN_LOAD, (name, epoch))


def commit(dsn: str, name: str, staged: Sequence[Staged], epoch: int | None = None) -> LoadReport:
    """Publish what was staged, all or nothing; a load that was published is left as it is."""
    numbers, counts = [it.attempt for it in staged], [it.rows for it in staged]
    return _report(dsn, statements.COMMIT_LOAD, (name, numbers, counts, epoch))


def abandon(dsn: str, name: str, staged: Sequence[Staged]) -> None:
    """Give up what was staged; the upkeep removes it."""
    with translated(), connect(dsn) as session:
        session.execute(statements.DROP_ATTEMPTS, (name, [it.attempt for it in staged]))


def rejects(
    dsn: str, name: str, staged: Sequence[Staged], most: int, *, take: bool = False
) -> list[Reject]:
    """Find the rows that cannot be published; with `take` they are taken out, else only shown."""
    numbers = [it.attempt for it in staged]
    with (
        translated(),
        connect(dsn) as session,
        session.transaction(force_rollback=not take),
        session.cursor(row_factory=class_row(Reject)) as cursor,
    ):
        return cursor.execute(statements.LOAD_REJECTS, (name, numbers, most)).fetchall()


def stage(dsn: str, load: str, batches: Iterable[pa.RecordBatch]) -> Staged | None:
    """Copy batches under a number of their own; None if there is no row.

    Columns are some of `COLUMNS`; without `position` rows are counted. Either all of it is staged,
    or nothing.
    """
    given = (batch for batch in batches if batch.num_rows)
    first = next(given, None)
    if first is None:
        return None
    with translated(), closing(connect_arrow(dsn)) as session, session.cursor() as cursor:
        cursor.execute(statements.BEGIN_ATTEMPT, (load,))
        [attempt] = cursor.fetchone()
        rows = _Numbered(attempt, first, given)
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows)
        try:
            cursor.adbc_ingest("load_row", reader, mode="append", db_schema_name="notifyq")
        finally:
            # The reader is of C: it would make a line of text of an error of ours.
            if rows.error is not None:
                raise rows.error
        session.commit()
    return Staged(attempt, rows.count)


class _Numbered:
    """Batches with the number of the attempt and the position of each row."""

    def __init__(
        self, attempt: int, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]
    ) -> None:
        self._attempt = attempt
        self._first = first
        self._batches = batches
        names = [name for name in first.schema.names if name != "position"]
        self._names = ["attempt", "position", *names]
        self.schema = pa.schema(
            [("attempt", pa.int64()), ("position", pa.int64())]
            + [(name, COLUMNS[name]) for name in names]
        )
        self.count = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield self._numbered(self._first)
            for batch in self._batches:
                yield self._numbered(batch)
        except BaseException as error:
            self.error = error
            raise

    def _numbered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns["attempt"] = pa.repeat(pa.scalar(self._attempt, pa.int64()), rows)
        columns.setdefault("position", pa.array(range(self.count, self.count + rows), pa.int64()))
        self.count += rows
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self._names], schema=self.schema
        )


def _report(dsn: str, statement: str, values: tuple[Any, ...]) -> LoadReport:
    with (
        translated(),
        connect(dsn) as session,
        session.cursor(row_factory=class_row(LoadReport)) as cursor,
    ):
        found = cursor.execute(statement.encode(), values).fetchone()
        assert found is not None  # noqa: S101 - a function returns one row
        return found
