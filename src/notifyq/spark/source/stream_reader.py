"""Reading as it grows: micro-batches of a stream, or of the archive, each row in exactly one."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from notifyq.errors import NotifyqError, StreamNotFoundError
from notifyq.spark import statements
from notifyq.spark.connection import connect
from notifyq.spark.failures import translated
from notifyq.spark.source import cuts, tables
from notifyq.spark.source.rows import Part, Read, rows
from notifyq.spark.source.schema import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from psycopg import Connection
    from pyspark.sql.datasource import InputPartition

    from notifyq.spark.source.cuts import Cut, Interval, Place
    from notifyq.spark.source.options import ReadOptions

_SMALL = 5_000
"""Rows for which a second task costs more than it gains."""
_FAR = 50_000
"""Transactions without a row, after which the place is moved on all the same: they would be looked
through again each time."""


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream or the archive. See cuts.py for what its offsets mean."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        """Take what to read, and the columns to give."""
        self._options = options
        self._columns = check(options.table, schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._target: str | None = None
        self._kept: Connection[tuple[Any, ...]] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Begin where option `from` says: with what is kept, with what comes, or at a position."""
        with self._session() as session:
            first = here = self._position(session)
            if self._options.start == "start":
                first = cuts.beginning(here)
            elif self._options.start != "now":
                first = self._options.start
            self._snapshot(session, first)
            mark = self._mark(session, first, is_old=first != here)
            return cuts.Place(first, first, mark=mark).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Give option `maxRowsPerBatch`."""
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what is there now: what comes later is left to the next run."""
        with self._session() as session:
            self._target = self._position(session)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Give the place behind the next batch, or the same one where there is nothing to read."""
        place = cuts.Place.parse(start)
        with self._session() as session:
            if not place.is_within:
                until = self._target or self._position(session)
                place = cuts.Place(place.seen, until, mark=place.mark)
            self._check_mark(session, place)
            window = self._window(session, place)
            most = None if isinstance(limit, ReadAllAvailable) else _most(limit)
            if most is not None and (last := self._walk(session, window, place.cut, most, most)):
                # A full batch: what follows, if anything, is for the next one.
                return place.at(last[0]).offset()
            return self._behind(session, place, window).offset()

    def _behind(
        self, session: Connection[tuple[Any, ...]], place: Place, window: Sequence[Interval]
    ) -> Place:
        """Give the end of the window if there is a reason to go there, else its beginning."""
        mark = self._mark(session, place.until)
        if (
            place.is_within
            or mark != place.mark
            or sum(high - low for low, high in window) > _FAR
            or self._walk(session, window, place.cut, 1, 1)
        ):
            return place.done(mark)
        return cuts.Place(place.seen, place.seen, mark=place.mark)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split a batch into parts of as many rows."""
        first, last = cuts.Place.parse(start), cuts.Place.parse(end)
        upto = last.cut if last.is_within else None
        batch = cuts.Place(first.seen, last.until, first.cut, first.mark)
        with self._session() as session:
            self._check_mark(session, batch)
            window = self._window(session, batch)
            return list(self._parts(session, window, batch.cut, upto))

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        return rows(self._options.dsn, partition, self._schema)

    def stop(self) -> None:
        """Close the session of the driver."""
        if self._kept is not None:
            self._kept.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the session where it is: tasks have their own."""
        return {**self.__dict__, "_kept": None}

    @contextmanager
    def _session(self) -> Iterator[Connection[tuple[Any, ...]]]:
        """Give the session of the driver, a new one where the server has ended it."""
        if self._kept is not None:
            try:
                self._kept.execute("")
            except psycopg.Error:
                self._kept.close()
                self._kept = None
        if self._kept is None:
            self._kept = connect(self._options.dsn)
        with translated(), self._kept.transaction():
            for setting in statements.IN_ORDER:
                self._kept.execute(setting)
            yield self._kept

    def _position(self, session: Connection[tuple[Any, ...]]) -> str:
        [[position]] = session.execute(statements.POSITION).fetchall()
        return str(position)

    def _snapshot(self, session: Connection[tuple[Any, ...]], position: str) -> str:
        """Give the snapshot of a position, which has to be of this database."""
        [[snapshot]] = session.execute(statements.SNAPSHOT_OF, (position,)).fetchall()
        return str(snapshot)

    def _window(self, session: Connection[tuple[Any, ...]], place: Place) -> list[Interval]:
        return cuts.intervals(
            self._snapshot(session, place.seen), self._snapshot(session, place.until)
        )

    def _mark(
        self, session: Connection[tuple[Any, ...]], position: str, *, is_old: bool = False
    ) -> str:
        if self._options.stream is None:
            found = session.execute(statements.ARCHIVE_MARK, (is_old,)).fetchone()
        else:
            found = session.execute(
                statements.STREAM_MARK, (self._options.stream, cuts.snapshot(position))
            ).fetchone()
            if found is None:
                raise StreamNotFoundError(f"there is no stream {self._options.stream!r}")
        return str(found[0]) if found else ""

    def _check_mark(self, session: Connection[tuple[Any, ...]], place: Place) -> None:
        if not self._options.is_strict or not place.mark:
            return
        if self._options.stream is None:
            answer = session.execute(statements.HAS_ARCHIVE_MARK, (place.mark,))
        else:
            answer = session.execute(statements.HAS_STREAM_MARK, (self._options.stream, place.mark))
        [[is_there]] = answer.fetchall()
        if not is_there:
            raise NotifyqError(
                "what this query had yet to read may have been dropped, as it was older than the "
                "retention: go on without it by option failOnDataLoss=false, or begin anew with "
                "another checkpoint"
            )

    def _conditions(self, session: Connection[tuple[Any, ...]]) -> list[sql.Composable]:
        conditions = tables.chosen(self._options)
        if self._options.stream is not None:
            found = tables.segments(session, self._options.stream)
            conditions.append(tables.of_segments([number for number, _, _ in found]))
        return conditions

    def _walk(
        self,
        session: Connection[tuple[Any, ...]],
        window: Sequence[Interval],
        after: Cut,
        share: int,
        quantity: int | None,
        upto: Cut | None = None,
    ) -> list[Cut]:
        """Give the rows that end each share of the next rows, of which there may be many."""
        found = cuts.between(window, after, upto)
        statement = sql.SQL(statements.WALK).format(
            lows=sql.Literal([str(low) for low, _ in found]),
            highs=sql.Literal([str(high) for _, high in found]),
            table=tables.table(self._options),
            condition=sql.SQL(" and ").join(
                [*self._conditions(session), *cuts.behind(after, upto)]
            ),
            quantity=sql.Literal(quantity),
            share=sql.Literal(share),
        )
        return [(xid, number) for _, xid, number in session.execute(statement).fetchall()]

    def _parts(
        self,
        session: Connection[tuple[Any, ...]],
        window: Sequence[Interval],
        after: Cut,
        upto: Cut | None,
    ) -> Iterator[InputPartition]:
        if not cuts.between(window, after, upto):
            return
        ends = self._walk(session, window, after, _SMALL, None, upto)
        most = self._options.partitions or 2 * (os.cpu_count() or 1)
        step = max(1, -(-len(ends) // most))
        # The last part ends where the batch does: there may be rows behind the last full share.
        inner = ends[step - 1 : -1 : step]
        for low, high in zip([after, *inner], [*inner, upto], strict=True):
            conditions = [
                *self._conditions(session),
                cuts.of(cuts.between(window, low, high)),
                *cuts.behind(low, high),
            ]
            query = tables.query(self._options, self._columns, conditions)
            yield Part((Read(query),), settings=statements.BY_INDEX)


def _most(limit: ReadLimit) -> int:
    return int(limit.max_rows) if isinstance(limit, ReadMaxRows) else 1_000_000
