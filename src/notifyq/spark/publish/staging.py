"""Staging: rows are copied into PostgreSQL, and become messages when their load is committed.

All that publishes in bulk stages here: the data source, `load` and `replay`. See transfer/load.sql.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg.rows import class_row

from notifyq.spark import statements
from notifyq.spark.connection import connect_arrow, fetch, opened, translated

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
"""Optional columns of a row; headers and message are JSON, as text."""
COLUMNS = {"position": pa.int64(), "queue": pa.string(), "message": pa.string(), **OPTIONS}


@dataclass(frozen=True, slots=True)
class Staged:
    """The rows that a task has staged: they count once a commit names their attempt."""

    attempt: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The state of a load; `is_new` is false where an earlier call has published it."""

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
    """Raise an error of notifyq unless messages can be published into all of them now."""
    with opened(dsn) as session:
        session.execute(statements.CHECK_TARGETS, (list(queues),))


def begin(dsn: str, name: str, epoch: int | None = None) -> LoadReport:
    """Begin a load, or report that it was published before."""
    return fetch(dsn, LoadReport, statements.BEGIN_LOAD, (name, epoch))[0]


def commit(dsn: str, name: str, staged: Sequence[Staged], epoch: int | None = None) -> LoadReport:
    """Publish the staged rows, all or nothing; a load that was published before is unchanged."""
    numbers, counts = [it.attempt for it in staged], [it.rows for it in staged]
    return fetch(dsn, LoadReport, statements.COMMIT_LOAD, (name, numbers, counts, epoch))[0]


def abandon(dsn: str, name: str, staged: Sequence[Staged]) -> None:
    """Give up staged rows; maintenance removes them."""
    with opened(dsn) as session:
        session.execute(statements.DROP_ATTEMPTS, (name, [it.attempt for it in staged]))


def rejects(
    dsn: str, name: str, staged: Sequence[Staged], most: int, *, take: bool = False
) -> list[Reject]:
    """Return the rows that cannot be published; with `take` they are also removed."""
    numbers = [it.attempt for it in staged]
    with (
        opened(dsn) as session,
        session.transaction(force_rollback=not take),
        session.cursor(row_factory=class_row(Reject)) as cursor,
    ):
        return cursor.execute(statements.LOAD_REJECTS, (name, numbers, most)).fetchall()


def stage(dsn: str, load: str, batches: Iterable[pa.RecordBatch]) -> Staged | None:
    """Copy batches as one attempt, all or nothing; None: there is no row.

    Columns are some of `COLUMNS`; without `position`, rows are numbered.
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
            # ADBC's reader would replace an error of `batches` by a line of text.
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
        self._batches = itertools.chain([first], batches)
        names = ["position", *(name for name in first.schema.names if name != "position")]
        self.schema = pa.schema(
            [("attempt", pa.int64()), *((name, COLUMNS[name]) for name in names)]
        )
        self.count = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from map(self._numbered, self._batches)
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
            [columns[name] for name in self.schema.names], schema=self.schema
        )
