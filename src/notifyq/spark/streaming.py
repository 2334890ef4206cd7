"""Structured Streaming from a stream of events into a table of the lake, each event once."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError, StreamNotFoundError
from notifyq.paths import is_uri, local_path
from notifyq.spark import statements
from notifyq.spark.connection import connect
from notifyq.spark.failures import translated
from notifyq.spark.files import FileWriter, WrittenFile
from notifyq.spark.lake import ARCHIVE, Lake, folder
from notifyq.spark.session import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from notifyq.spark.mark import Root

_QUERY = "sql.streaming.queryId"
"""The local property by which Spark names the query of a micro-batch; its checkpoint keeps it."""
_DAY = "created_at"


def stream_to_lake(
    spark: Any,
    dsn: str,
    location: str | Path,
    stream: str,
    *,
    table: str | None = None,
    checkpoint: str | Path | None = None,
    once: bool = False,
    every: str = "1 second",
    rows: int = 100_000,
    on_batch: Callable[[int, int], None] | None = None,
) -> Any:
    """Start a query that carries the events of a stream into a table of the lake; return it.

    The table is `events_` and the stream's name unless `table` says otherwise, parted by the day
    of created_at in UTC. The query goes on where its `checkpoint` (a folder in the lake) is,
    after kill -9 as well: files of a micro-batch become part of the lake in one transaction with
    its name, so that what is written twice counts once. `once`: carry what is there, and end.
    """
    name = table or table_of(stream)
    if name == ARCHIVE:
        raise ConfigurationError("the table archive is that of `notifyq spark export`")
    root = folder(location)
    progress = _checkpoint(root / "_checkpoints" / name if checkpoint is None else checkpoint)
    _check_stream(dsn, stream)
    lake = Lake.create(dsn, root)
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
        .foreachBatch(_carrying(dsn, lake, name, on_batch))
    )
    started = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)
    return started.start()


def _checkpoint(given: str | Path) -> str:
    """Return what Spark calls a folder; any file system of its will do."""
    return str(given) if is_uri(str(given)) else local_path(given).as_uri()


def _check_stream(dsn: str, stream: str) -> None:
    # The query would tell it as well, in a page of text.
    with translated(), closing(connect(dsn)) as session:
        if not session.execute(statements.STREAM_TABLES, (stream,)).fetchall():
            raise StreamNotFoundError(f"there is no stream {stream!r}")


def table_of(stream: str) -> str:
    """The table of the lake for a stream: its name, as far as names of tables go."""
    kept = "".join(c if c.isascii() and c.isalnum() else "_" for c in stream.lower())
    return f"events_{kept}"[:63]


def _carrying(
    dsn: str, lake: Lake, table: str, on_batch: Callable[[int, int], None] | None
) -> Callable[[Any, int], None]:
    home = lake.home

    def carry(batch: Any, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(_QUERY)
        if not query:
            raise ConfigurationError("Spark names no query: foreachBatch runs in a query only")

        def write(found: Iterator[Any]) -> Iterator[Any]:
            yield from write_days(home, table, found)

        told = [row.file for row in batch.mapInArrow(write, "file string").collect()]
        files = [_file(json.loads(text)) for text in told]
        with connect(dsn, name="notifyq spark stream") as session:
            known = lake.commit(session, files, dataset=table, key=f"{query}/{number}") is None
        if known:
            # The micro-batch was run again after its commit: these are copies.
            for file in files:
                (lake.root / file.path).unlink(missing_ok=True)
        elif on_batch is not None:
            on_batch(number, sum(file.rows for file in files))

    return carry


def write_days(home: Root, table: str, batches: Iterator[Any]) -> Iterator[Any]:
    """Write Arrow batches into a file for each day; give a batch that tells of the files."""
    import pyarrow as pa
    import pyarrow.compute as pc

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


def _file(told: dict[str, Any]) -> WrittenFile:
    times = {name: told[name] and datetime.fromisoformat(told[name]) for name in _TIMES}
    return WrittenFile(**{**told, **times, "day": date.fromisoformat(told["day"])})


_TIMES = ("first_at", "last_at")
