"""The events of a stream, carried into a table of a lake, each exactly once.

What is carried is a window between two positions of the stream, see source/cuts.py. The files of a
batch and the new position of the table are committed in one transaction of PostgreSQL. A run that
ends before that leaves files that are not listed, and the next one carries the same events.
"""

from __future__ import annotations

import json
import threading
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.errors import ConfigurationError, StreamNotFoundError
from notifyq.spark import statements
from notifyq.spark.connection import opened
from notifyq.spark.engine import Engine, LocalEngine
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.files import FileWriter, WrittenFile, remove
from notifyq.spark.lake.lake import ARCHIVE, Lake
from notifyq.spark.lake.storage import storage_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import date

    from notifyq.spark.lake.mark import Root
    from notifyq.spark.lake.storage import Location
    from notifyq.spark.source.rows import Part

_NAME = "notifyq spark stream"
_DAY = "created_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """What one run carried into the lake."""

    stream: str
    table: str
    rows: int
    files: int
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTask:
    """The work of one task: a part of a batch."""

    dsn: str = field(repr=False)
    home: Root
    table: str
    part: Part
    schema: pa.Schema


def stream_to_lake(
    dsn: str,
    location: Location,
    stream: str,
    *,
    table: str | None = None,
    engine: Engine | None = None,
    once: bool = False,
    every: float = 1.0,
    rows: int = 100_000,
    on_batch: Callable[[int, int], None] | None = None,
    stop: threading.Event | None = None,
) -> StreamSummary:
    """Carry the events of a stream into a table of a lake; create the lake if it is missing.

    The default of `table` is `events_` and the stream's name; the table is partitioned by the day
    of created_at in UTC. It continues where the last run ended, and then looks for new events
    `every` so many seconds, until `stop` is set. `once`: only the events so far. A batch has up to
    `rows` events; `on_batch` gets its number in this run, and how many they are. Raises
    LakeChangedError where another run carries into the same table.
    """
    name = table or table_of(stream)
    if name == ARCHIVE:
        raise ConfigurationError(
            "the table archive belongs to `notifyq spark export`: choose another name"
        )
    storage = storage_at(location)
    check_stream(dsn, stream)
    lake = Lake.create(dsn, storage)
    used: Engine = engine or LocalEngine()
    ended = stop or threading.Event()
    summary = StreamSummary(stream=stream, table=name, rows=0, files=0, batches=0)
    with closing(_Run(dsn, lake, stream, name, used, rows)) as run:
        run.begin(once=once)
        while not ended.is_set():
            files = run.step()
            if files is None:
                if once:
                    break
                ended.wait(every)
                continue
            number = sum(file.rows for file in files)
            summary = StreamSummary(
                stream=stream,
                table=name,
                rows=summary.rows + number,
                files=summary.files + len(files),
                batches=summary.batches + 1,
            )
            if on_batch is not None:
                on_batch(summary.batches, number)
    return summary


def check_stream(dsn: str, stream: str) -> None:
    """Raise StreamNotFoundError if there is no such stream."""
    with opened(dsn) as session:
        if not session.execute(statements.STREAM_TABLES, (stream,)).fetchall():
            raise StreamNotFoundError(f"there is no stream {stream!r}")


def table_of(stream: str) -> str:
    """Return the table of the lake for a stream: its name in the characters of table names."""
    kept = "".join(c if c.isascii() and c.isalnum() else "_" for c in stream.lower())
    return f"events_{kept}"[:63]


class _Run:
    """One run: it reads windows of the stream and commits each with its files."""

    def __init__(
        self, dsn: str, lake: Lake, stream: str, table: str, engine: Engine, rows: int
    ) -> None:
        # Imported here: only a run needs pyspark, whose interface for streams this reader has.
        from notifyq.spark.source.options import stream_options
        from notifyq.spark.source.schema import struct
        from notifyq.spark.source.stream_reader import TableStreamReader

        options = {
            "dsn": dsn,
            "stream": stream,
            "maxRowsPerBatch": str(rows),
            "partitions": str(2 * engine.slots),
        }
        self._reader = TableStreamReader(stream_options(options), struct("events"))
        self._dsn, self._lake, self._engine = dsn, lake, engine
        self._stream, self._table = stream, table
        self._before: dict[str, Any] | None = None
        self._offset: dict[str, Any] = {}

    def begin(self, *, once: bool) -> None:
        with opened(self._dsn, name=_NAME) as session:
            values = (self._lake.id, self._table)
            found = session.execute(statements.LAKE_STREAM, values).fetchone()
        if found is None and self._table in self._lake.tables():
            raise ConfigurationError(
                f"table {self._table} was not written by `notifyq spark stream`: choose another"
            )
        if found is not None and found[0] != self._stream:
            raise ConfigurationError(
                f"table {self._table} has the events of stream {found[0]!r}: choose another table"
            )
        self._before = None if found is None else found[1]
        self._offset = self._before or self._reader.initialOffset()
        if once:
            self._reader.prepareForTriggerAvailableNow()
        # Also after a run that was killed before it updated the mirror.
        mirrors.follow(self._lake, self._table)

    def step(self) -> list[WrittenFile] | None:
        """Carry the next batch and return its files; None: there is nothing to carry."""
        end = self._reader.latestOffset(self._offset, self._reader.getDefaultReadLimit())
        if end == self._offset:
            return None
        files: list[WrittenFile] = []
        try:
            self._engine.run(self._tasks(end), write_part, on_done=files.extend)
        except BaseException:
            remove(self._lake.storage, files)
            raise
        self._commit(files, end)
        self._offset = self._before = end
        mirrors.follow(self._lake, self._table)
        return files

    def _tasks(self, end: dict[str, Any]) -> list[StreamTask]:
        return [
            StreamTask(
                dsn=self._dsn,
                home=self._lake.home,
                table=self._table,
                part=part,
                schema=self._reader.arrow_schema,
            )
            for part in self._reader.partitions(self._offset, end)
        ]

    def _commit(self, files: list[WrittenFile], end: dict[str, Any]) -> None:
        before = None if self._before is None else json.dumps(self._before)
        values = (self._lake.id, self._table, self._stream, before, json.dumps(end))
        with opened(self._dsn, name=_NAME) as session, session.transaction():
            # Inside: once COMMIT is sent, the files may be listed, also where it fails.
            try:
                # First: of two runs the second one waits here, and is refused.
                session.execute(statements.ADVANCE_LAKE, values)
                if files:
                    self._lake.commit(session, files, dataset=self._table)
            except BaseException:
                remove(self._lake.storage, files)
                raise

    def close(self) -> None:
        self._reader.stop()


def write_part(task: StreamTask) -> list[WrittenFile]:
    """Read the events of a part, and write them into a file for each day."""
    from notifyq.spark.source.rows import rows

    return write_days(task.home, task.table, rows(task.dsn, task.part, task.schema))


def write_days(home: Root, table: str, batches: Iterable[pa.RecordBatch]) -> list[WrittenFile]:
    """Write Arrow batches into a file for each day."""
    writers: dict[date, FileWriter] = {}
    try:
        for batch in batches:
            days = pc.cast(batch.column(_DAY), pa.timestamp("us", "UTC")).cast(pa.date32())
            for day in pc.unique(days).to_pylist():
                if day not in writers:
                    writers[day] = FileWriter(
                        home, table, batch.schema.remove_metadata(), day=day, time_column=_DAY
                    )
                writers[day].write(batch.filter(pc.equal(days, pa.scalar(day, pa.date32()))))
        return [writer.close() for writer in writers.values()]
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
