"""Structured Streaming from a stream of events into a table of a lake, each event exactly once."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.errors import ConfigurationError, StreamNotFoundError
from notifyq.paths import is_uri, local_path
from notifyq.spark import statements
from notifyq.spark.connection import connect, opened
from notifyq.spark.lake.files import FileWriter, WrittenFile, remove
from notifyq.spark.lake.lake import ARCHIVE, Lake
from notifyq.spark.lake.storage import storage_at
from notifyq.spark.source.source import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from notifyq.spark.lake.mark import Root
    from notifyq.spark.lake.storage import Location

_QUERY = "sql.streaming.queryId"
"""The local property with the id of a micro-batch's query, which its checkpoint keeps."""
_DAY = "created_at"
_TIMES = ("first_at", "last_at")


def stream_to_lake(
    spark: Any,
    dsn: str,
    location: Location,
    stream: str,
    *,
    table: str | None = None,
    checkpoint: str | Path | None = None,
    once: bool = False,
    every: str = "1 second",
    rows: int = 100_000,
    on_batch: Callable[[int, int], None] | None = None,
) -> Any:
    """Start a query that writes the events of a stream into a table of the lake; return it.

    The default of `table` is `events_` and the stream's name; the table is partitioned by the day
    of created_at in UTC. The query continues from its `checkpoint` (by default a folder in the
    lake), also after a crash: the files of a micro-batch are committed together with its id, and a
    micro-batch that is written twice counts once. `once`: write the events so far, and end.
    """
    name = table or table_of(stream)
    if name == ARCHIVE:
        raise ConfigurationError(
            "the table archive belongs to `notifyq spark export`: choose another name"
        )
    storage = storage_at(location)
    if checkpoint is None and not storage.is_local:
        raise ConfigurationError(
            f"a checkpoint in {storage.location} would need Spark's own file systems: give a "
            "folder that the driver keeps"
        )
    progress = _checkpoint(checkpoint or storage.name(f"_checkpoints/{name}"))
    _check_stream(dsn, stream)
    lake = Lake.create(dsn, storage)
    register(spark)
    events = (
        spark.readStream.format("notifyq")
        .option("dsn", dsn)
        .option("stream", stream)
        .option("maxRowsPerBatch", str(rows))
        .load()
    )
    writer = (
        events.writeStream.queryName(f"notifyq {name}")
        .option("checkpointLocation", progress)
        .foreachBatch(_writer(dsn, lake, name, on_batch))
    )
    started = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
    return started.start()


def _checkpoint(given: str | Path) -> str:
    """Return the URI of a folder in any file system of Spark."""
    return str(given) if is_uri(str(given)) else local_path(given).as_uri()


def _check_stream(dsn: str, stream: str) -> None:
    # Inside the query, the same error would be a page of text.
    with opened(dsn) as session:
        if not session.execute(statements.STREAM_TABLES, (stream,)).fetchall():
            raise StreamNotFoundError(f"there is no stream {stream!r}")


def table_of(stream: str) -> str:
    """Return the table of the lake for a stream: its name in the characters of table names."""
    kept = "".join(c if c.isascii() and c.isalnum() else "_" for c in stream.lower())
    return f"events_{kept}"[:63]


def _writer(
    dsn: str, lake: Lake, table: str, on_batch: Callable[[int, int], None] | None
) -> Callable[[Any, int], None]:
    home = lake.home

    def write_batch(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY)
        if not query:
            raise ConfigurationError("Spark gives no query id: foreachBatch must run in a query")

        def write(found: Iterator[Any]) -> Iterator[Any]:
            yield from write_days(home, table, found)

        rows = batch.mapInArrow(write, "file string").collect()
        files = [_file(json.loads(row.file)) for row in rows]
        with connect(dsn, name="notifyq spark stream") as session:
            known = lake.commit(session, files, dataset=table, key=f"{query}/{number}") is None
        if known:
            # The micro-batch ran again after its commit: these are copies.
            remove(lake.storage, files)
        elif on_batch is not None:
            on_batch(number, sum(file.rows for file in files))

    return write_batch


def write_days(home: Root, table: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Write Arrow batches into a file for each day; give a batch that describes the files."""
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
        files = [json.dumps(asdict(writer.close()), default=str) for writer in writers.values()]
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        raise
    yield pa.RecordBatch.from_pydict({"file": pa.array(files, pa.string())})


def _file(given: dict[str, Any]) -> WrittenFile:
    times = {name: given[name] and datetime.fromisoformat(given[name]) for name in _TIMES}
    return WrittenFile(**{**given, **times, "day": date.fromisoformat(given["day"])})
