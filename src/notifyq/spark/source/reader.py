"""Reading a table once: parts of equal size, all of them as of the same moment."""

from __future__ import annotations

import os
import re
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from notifyq.spark import statements
from notifyq.spark.connection import connect, connect_arrow
from notifyq.spark.source.schema import check, expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from notifyq.spark.source.options import ReadOptions

_DAY = re.compile(r"message_archive_(\d{8})")


@dataclass(frozen=True)
class Part(InputPartition):
    """One task's share of a read: the statement that gives its rows."""

    query: str


class ArchiveReader(DataSourceReader):
    """Reads the archive, or the dead messages in it, as of the moment when the read is planned."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        """Take what to read, and the columns to give."""
        self._options = options
        self._chosen = check(options.table, schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Split the pages of each day; what is in no day's table is a part of its own."""
        with closing(connect(self._options.dsn)) as session:
            [[snapshot]] = session.execute(statements.SNAPSHOT).fetchall()
            tables = session.execute(statements.ARCHIVE_TABLES).fetchall()
        days = [(_day(name), pages) for name, pages in tables if _DAY.fullmatch(name)]
        wanted = self._options.partitions or 2 * (os.cpu_count() or 1)
        share = max(1, -(-sum(pages for _, pages in days) // wanted))
        common = self._common(snapshot)
        return [
            Part(self._query([*common, *condition]))
            for condition in [*_shares(days, share), [_outside([day for day, _ in days])]]
        ]

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        with closing(connect_arrow(self._options.dsn)) as session, session.cursor() as cursor:
            cursor.execute(partition.query)
            for batch in cursor.fetch_record_batch():
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _common(self, snapshot: str) -> list[sql.Composable]:
        # The two comparisons decide for nearly all rows, and cost less.
        xmin, xmax, _ = snapshot.split(":")
        conditions: list[sql.Composable] = [
            sql.SQL(
                "r.xid < {}::xid8 and (r.xid < {}::xid8 or pg_visible_in_snapshot(r.xid, {}))"
            ).format(sql.Literal(xmax), sql.Literal(xmin), sql.Literal(snapshot))
        ]
        if self._options.table == "dead":
            conditions.append(sql.SQL("r.status <> 'success'"))
        if self._options.queue is not None:
            conditions.append(sql.SQL("r.queue = {}").format(sql.Literal(self._options.queue)))
        return conditions

    def _query(self, conditions: Sequence[sql.Composable]) -> str:
        return (
            sql.SQL(statements.READ_ARCHIVE)
            .format(
                columns=sql.SQL(", ".join(map(expression, self._chosen)) or "null"),
                condition=sql.SQL(" and ").join(conditions),
            )
            .as_string(None)
        )


def _day(name: str) -> datetime:
    return datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)


def _shares(days: Sequence[tuple[datetime, int]], share: int) -> Iterator[list[sql.Composable]]:
    """Give parts of at most `share` pages.

    The last one of a day has no end: what comes later it leaves out by its transaction.
    """
    for day, pages in days:
        for first in range(0, pages, share):
            condition: list[sql.Composable] = [_within(day)]
            if first > 0:
                condition.append(sql.SQL("r.ctid >= {}").format(sql.Literal(f"({first},0)")))
            if first + share < pages:
                condition.append(sql.SQL("r.ctid < {}").format(sql.Literal(f"({first + share},0)")))
            yield condition


def _within(day: datetime) -> sql.Composable:
    return sql.SQL("r.archived_at >= {} and r.archived_at < {}").format(
        sql.Literal(day.isoformat()), sql.Literal((day + timedelta(days=1)).isoformat())
    )


def _outside(days: Sequence[datetime]) -> sql.Composable:
    """Tell rows that were of no day at planning: by time, as they may be moved to one meanwhile."""
    if not days:
        return sql.SQL("true")
    return sql.SQL("not ({})").format(
        sql.SQL(" or ").join(sql.SQL("({})").format(_within(day)) for day in days)
    )
