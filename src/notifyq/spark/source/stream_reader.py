"""Streaming reads: micro-batches of a stream or of the archive, each row in exactly one."""

from __future__ import annotations

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
from notifyq.spark.connection import connect, translated
from notifyq.spark.source import cuts, tables
from notifyq.spark.source.rows import Part, Read, rows, share_of
from notifyq.spark.source.schema import check

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition

    from notifyq.spark.connection import Session
    from notifyq.spark.source.cuts import Cut, Interval, Position
    from notifyq.spark.source.options import ReadOptions

_SMALL = 5_000
"""Rows of a part: with fewer, another task would cost more than it gains."""
_MOST = 10
"""Such shares of a part, at most."""
_FAR = 50_000
"""Transactions without a row after which the position moves on: they must not be scanned again."""


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream or the archive. See cuts.py for what its offsets mean."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        """Check the columns."""
        self._options = options
        self._columns = check(options.table, schema)
        self.arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._target: str | None = None
        self._kept: Session | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return the position of option `from`: the first row, the current one, or a given one."""
        with self._session() as session:
            first = here = self._position(session)
            if self._options.start == "start":
                first = cuts.beginning(here)
            elif self._options.start != "now":
                first = self._options.start
            self._snapshot(session, first)
            mark = self._mark(session, first, is_old=first != here)
            return cuts.Position(first, first, mark=mark).offset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return option `maxRowsPerBatch`."""
        return ReadMaxRows(self._options.rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the current position: later rows are left to the next run."""
        with self._session() as session:
            self._target = self._position(session)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the position after the next batch, or the same one if there are no rows."""
        position = cuts.Position.parse(start)
        with self._session() as session:
            if not position.is_within:
                until = self._target or self._position(session)
                position = cuts.Position(position.seen, until, mark=position.mark)
            self._check_mark(session, position)
            window = self._window(session, position)
            most = None if isinstance(limit, ReadAllAvailable) else _most(limit)
            if most is not None and (last := self._walk(session, window, position.cut, most, most)):
                # A full batch: later rows are for the next one.
                return position.at(last[0]).offset()
            return self._after(session, position, window).offset()

    def _after(self, session: Session, position: Position, window: Sequence[Interval]) -> Position:
        """Return the end of the window if there is a reason to move there, else its beginning."""
        mark = self._mark(session, position.until)
        if (
            position.is_within
            or mark != position.mark
            or sum(high - low for low, high in window) > _FAR
            or self._walk(session, window, position.cut, 1, 1)
        ):
            return position.done(mark)
        return cuts.Position(position.seen, position.seen, mark=position.mark)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Split a batch into parts of equal size."""
        first, last = cuts.Position.parse(start), cuts.Position.parse(end)
        upto = last.cut if last.is_within else None
        batch = cuts.Position(first.seen, last.until, first.cut, first.mark)
        with self._session() as session:
            self._check_mark(session, batch)
            window = self._window(session, batch)
            return list(self._parts(session, window, batch.cut, upto))

    def read(self, partition: Part) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        return rows(self._options.dsn, partition, self.arrow_schema)

    def stop(self) -> None:
        """Close the session of the driver."""
        if self._kept is not None:
            self._kept.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the session: tasks have their own."""
        return {**self.__dict__, "_kept": None}

    @contextmanager
    def _session(self) -> Iterator[Session]:
        """Give the session of the driver; reopen it if the server has ended it."""
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

    def _position(self, session: Session) -> str:
        [[position]] = session.execute(statements.POSITION).fetchall()
        return str(position)

    def _snapshot(self, session: Session, position: str) -> str:
        """Return the snapshot of a position; it must be a position of this database."""
        [[snapshot]] = session.execute(statements.SNAPSHOT_OF, (position,)).fetchall()
        return str(snapshot)

    def _window(self, session: Session, position: Position) -> list[Interval]:
        return cuts.intervals(
            self._snapshot(session, position.seen), self._snapshot(session, position.until)
        )

    def _mark(self, session: Session, position: str, *, is_old: bool = False) -> str:
        if self._options.stream is None:
            found = session.execute(statements.ARCHIVE_MARK, (is_old,)).fetchone()
        else:
            found = session.execute(
                statements.STREAM_MARK, (self._options.stream, cuts.snapshot(position))
            ).fetchone()
            if found is None:
                raise StreamNotFoundError(f"there is no stream {self._options.stream!r}")
        return str(found[0]) if found else ""

    def _check_mark(self, session: Session, position: Position) -> None:
        if not self._options.is_strict or not position.mark:
            return
        if self._options.stream is None:
            answer = session.execute(statements.HAS_ARCHIVE_MARK, (position.mark,))
        else:
            answer = session.execute(
                statements.HAS_STREAM_MARK, (self._options.stream, position.mark)
            )
        [[is_there]] = answer.fetchall()
        if not is_there:
            raise NotifyqError(
                "rows that this query had not read yet may have been dropped by retention: set "
                "option failOnDataLoss=false to continue without them, or start again with another "
                "checkpoint, or another table of a lake"
            )

    def _conditions(self, session: Session) -> list[sql.Composable]:
        conditions = tables.chosen(self._options)
        if self._options.stream is not None:
            found = tables.segments(session, self._options.stream)
            conditions.append(tables.of_segments([number for number, _, _ in found]))
        return conditions

    def _walk(
        self,
        session: Session,
        window: Sequence[Interval],
        after: Cut,
        share: int,
        quantity: int | None,
        upto: Cut | None = None,
    ) -> list[Cut]:
        """Return the last row of each share of the next rows, `quantity` at most."""
        found = cuts.between(window, after, upto)
        statement = sql.SQL(statements.WALK).format(
            lows=sql.Literal([str(low) for low, _ in found]),
            highs=sql.Literal([str(high) for _, high in found]),
            table=tables.table(self._options),
            condition=sql.SQL(" and ").join(
                [*self._conditions(session), *cuts.within_cuts(after, upto)]
            ),
            quantity=sql.Literal(quantity),
            share=sql.Literal(share),
        )
        return [(xid, number) for _, xid, number in session.execute(statement).fetchall()]

    def _parts(
        self,
        session: Session,
        window: Sequence[Interval],
        after: Cut,
        upto: Cut | None,
    ) -> Iterator[InputPartition]:
        if not cuts.between(window, after, upto):
            return
        ends = self._walk(session, window, after, _SMALL, None, upto)
        step = share_of(len(ends), self._options.partitions, _MOST)
        # The last part ends with the batch: there may be rows after the last full share.
        inner = ends[step - 1 : -1 : step]
        for low, high in zip([after, *inner], [*inner, upto], strict=True):
            conditions = [
                *self._conditions(session),
                cuts.in_intervals(cuts.between(window, low, high)),
                *cuts.within_cuts(low, high),
            ]
            query = tables.query(self._options, self._columns, conditions)
            yield Part((Read(query),), settings=statements.BY_INDEX)


def _most(limit: ReadLimit) -> int:
    return int(limit.max_rows) if isinstance(limit, ReadMaxRows) else 1_000_000
