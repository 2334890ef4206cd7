"""Batch reads: parts of equal size, all of them under one snapshot."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from psycopg import sql
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from notifyq.spark import statements
from notifyq.spark.connection import opened
from notifyq.spark.engine import groups_of
from notifyq.spark.source import cuts, tables
from notifyq.spark.source.rows import Part, Read, rows, share_of
from notifyq.spark.source.schema import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from notifyq.spark.connection import Session
    from notifyq.spark.source.options import ReadOptions

_MOST_PAGES = 16_384
"""Pages of a part: 128 MiB, as Spark reads files."""
_DAY = re.compile(r"message_archive_(\d{8})")


@dataclass(frozen=True, slots=True)
class _File:
    """A table whose rows never move, and the condition that selects them."""

    name: str
    node: int
    pages: int
    rows: sql.Composable


class TableReader(DataSourceReader):
    """Reads the table of the options under the snapshot of its planning.

    It takes no filters: Spark uses those of the last plan for all reads of a DataFrame.
    """

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        """Check the columns."""
        self._options = options
        self._columns = check(options.table, schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the parts of the read."""
        with opened(self._options.dsn) as session:
            if self._options.table == "messages":
                return [Part((read,)) for read in self._of_messages(session)]
            [[position]] = session.execute(statements.POSITION).fetchall()
            common = [*tables.chosen(self._options), _seen(cuts.snapshot(position))]
            if self._options.stream is not None:
                return self._of_files(common, _segments(session, self._options.stream))
            days = _days(session)
        wanted = [day for day in days if self._is_selected(_date(day.name))]
        rest = _outside([_date(day.name) for day in days])
        return self._of_files(common, wanted, self._read([*common, rest]))

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        return rows(self._options.dsn, partition, self._schema)

    def _read(self, conditions: Sequence[sql.Composable], file: _File | None = None) -> Read:
        unchanged = file and sql.SQL(statements.UNCHANGED).format(
            table=sql.Literal(f"notifyq.{file.name}"), node=sql.Literal(file.node)
        ).as_string(None)
        return Read(tables.query(self._options, self._columns, conditions), unchanged or None)

    def _is_selected(self, day: datetime) -> bool:
        since, until = self._options.since, self._options.until
        return (since is None or day + timedelta(days=1) > since) and (until is None or day < until)

    def _of_files(
        self, common: Sequence[sql.Composable], files: Sequence[_File], *rest: Read
    ) -> list[InputPartition]:
        """Split large files and group small ones; an empty read has one empty part."""
        size = sum(file.pages for file in files)
        share = share_of(size, self._options.partitions, _MOST_PAGES)
        sized = []
        for file in files:
            for first in range(0, file.pages, share):
                end = min(first + share, file.pages)
                pages = _pages(first, end if end < file.pages else None)
                sized.append((end - first, self._read([file.rows, *pages, *common], file)))
        sized += [(0, read) for read in rest]
        return [Part(tuple(reads)) for reads in groups_of(sized, share)] or [Part(())]

    def _of_messages(self, session: Session) -> Iterator[Read]:
        """Split by id: live messages move within their table. Each part has its own snapshot."""
        wanted = self._options.partitions or 1
        common = tables.chosen(self._options)
        [[first, last]] = session.execute(statements.MESSAGE_BOUNDS).fetchall()
        if wanted == 1 or first is None:
            yield self._read(common)
            return
        share = -(-(last - first + 1) // wanted)
        bounds = [None, *range(first + share, last + 1, share), None]
        for low, high in itertools.pairwise(bounds):
            yield self._read([*common, *_range("r.id", low, high)])


def _seen(snapshot: str) -> sql.Composable:
    # The comparisons decide for nearly all rows, and are cheaper.
    xmin, xmax, _ = snapshot.split(":")
    return sql.SQL(
        "r.xid < {}::xid8 and (r.xid < {}::xid8 or pg_visible_in_snapshot(r.xid, {}))"
    ).format(sql.Literal(xmax), sql.Literal(xmin), sql.Literal(snapshot))


def _pages(first: int, end: int | None) -> list[sql.Composable]:
    # The last part has no end: the snapshot leaves out rows that are added later.
    return _range("r.ctid", f"({first},0)" if first else None, end and f"({end},0)")


def _range(column: str, low: int | str | None, high: int | str | None) -> list[sql.Composable]:
    return [
        sql.SQL("{} {} {}").format(sql.SQL(column), sql.SQL(operator), sql.Literal(bound))
        for operator, bound in ((">=", low), ("<", high))
        if bound is not None
    ]


def _segments(session: Session, stream: str) -> list[_File]:
    return [
        _File(f"event_{number}", node, pages, tables.of_segments([number]))
        for number, node, pages in tables.segments(session, stream)
    ]


def _days(session: Session) -> list[_File]:
    return [
        _File(name, node, pages, _within(_date(name)))
        for name, node, pages in session.execute(statements.ARCHIVE_TABLES).fetchall()
        if _DAY.fullmatch(name)
    ]


def _date(name: str) -> datetime:
    return datetime.strptime(name[-8:], "%Y%m%d").replace(tzinfo=UTC)


def _within(day: datetime) -> sql.Composable:
    return sql.SQL("r.archived_at >= {} and r.archived_at < {}").format(
        sql.Literal(day.isoformat()), sql.Literal((day + timedelta(days=1)).isoformat())
    )


def _outside(days: Sequence[datetime]) -> sql.Composable:
    """Return the condition of rows without a day at planning: they may be moved to one later."""
    if not days:
        return sql.SQL("true")
    return sql.SQL("not ({})").format(sql.SQL(" or ").join(map(_within, days)))
