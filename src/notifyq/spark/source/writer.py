"""Publishing a DataFrame or a stream of them: each name, and each batch of a stream, once.

Tasks stage their rows; the commit publishes those of the attempts that Spark says have won.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from notifyq.errors import ConfigurationError, DatabaseError, NotifyqError
from notifyq.spark import staging
from notifyq.spark.source.frames import Shape
from notifyq.spark.source.options import address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

_SHOWN = 3
"""Rows that cannot be published which an error names."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write asks for. Its text has no address: plans and errors may show it."""

    dsn: str = field(repr=False)
    name: str | None = None


def write_options(options: Mapping[str, str], *, is_overwrite: bool) -> WriteOptions:
    """Check the options of a write that are not about its columns."""
    if is_overwrite:
        raise ConfigurationError("messages are only ever added: write with mode append")
    return WriteOptions(dsn=address(options), name=options.get("load"))


@dataclass(frozen=True)
class Wrote(WriterCommitMessage):
    """What a task has staged, for which load."""

    staged: staging.Staged | None
    load: str | None = None
    refusal: str | None = None
    """Why its rows cannot be published, however often it is tried."""


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of `df.write` all together, once for each name."""

    def __init__(self, options: WriteOptions, shape: Shape) -> None:
        """Begin the load: what cannot work fails here, before any task."""
        if options.name is None:
            raise ConfigurationError(
                "option load is missing: a name for what is written, which is published once"
            )
        self._dsn = options.dsn
        self._load = options.name
        self._shape = shape
        staging.check_targets(self._dsn, shape.targets)
        self._is_done = not staging.begin(self._dsn, self._load).is_new

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        """Stage the rows of a task, unless all of it was published by an earlier run."""
        if self._is_done:
            return Wrote(None)
        return _write(self._dsn, self._load, self._shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks that count have staged."""
        report = _commit(self._dsn, self._load, messages)
        if not report.is_new:
            sys.stderr.write(
                f"notifyq: load {self._load!r} was published at {report.committed_at}, "
                "nothing was done\n"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give up what was staged."""
        with suppress(NotifyqError):  # the upkeep does it, later
            staging.abandon(self._dsn, self._load, _staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes each batch of `writeStream` once, also when it is run again after a crash."""

    def __init__(self, options: WriteOptions, shape: Shape) -> None:
        """Check what can be checked before there is a batch."""
        self._dsn = options.dsn
        self._load = options.name or "stream"
        self._shape = shape
        staging.check_targets(self._dsn, shape.targets)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        """Stage the rows of a task, for the query that Spark says it is of.

        The number of a query is kept in its checkpoint: with another one, batches count anew, and
        are published under another name.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise ConfigurationError("this version of Spark does not tell its tasks the query")
        load = f"{self._load}/{query}"
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not staging.begin(self._dsn, load, int(batch)).is_new:
            return Wrote(None, load)
        return _write(self._dsn, load, self._shape, iterator)

    # The name of the argument is Spark's.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks that count have staged for the batch."""
        load = next((it.load for it in messages if isinstance(it, Wrote) and it.load), None)
        if load is not None:
            _commit(self._dsn, load, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what was staged."""
        for one in messages:
            if isinstance(one, Wrote) and one.load and one.staged:
                with suppress(NotifyqError):
                    staging.abandon(self._dsn, one.load, [one.staged])


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[staging.Staged]:
    return [it.staged for it in messages if isinstance(it, Wrote) and it.staged is not None]


def _write(dsn: str, load: str, shape: Shape, batches: Iterator[pa.RecordBatch]) -> Wrote:
    try:
        return Wrote(staging.stage(dsn, load, _rows(dsn, shape, batches)), load)
    except (ConfigurationError, DatabaseError) as error:
        # Raised here, Spark would try the same rows again and show a traceback each time: the
        # commit raises it, once. All else, as a lost connection, may be another time.
        return Wrote(None, load, str(error))


def _rows(dsn: str, shape: Shape, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    known = set(shape.targets)
    for batch in batches:
        rows = shape.rows(batch)
        if not shape.targets:
            new = set(rows.column("queue").unique().to_pylist()) - known
            if new:
                # Now, and not when all is staged.
                staging.check_targets(dsn, sorted(new))
                known |= new
        yield rows


def _commit(
    dsn: str,
    load: str,
    messages: Sequence[WriterCommitMessage | None],
    epoch: int | None = None,
) -> staging.LoadReport:
    refusals = {it.refusal for it in messages if isinstance(it, Wrote) and it.refusal}
    if refusals:
        raise _nothing(sorted(refusals)[:_SHOWN])
    staged = _staged(messages)
    try:
        return staging.commit(dsn, load, staged, epoch)
    except (DatabaseError, NotifyqError) as error:
        found: list[staging.Reject] = []
        with suppress(NotifyqError):
            found = staging.rejects(dsn, load, staged, _SHOWN)
        if not found:
            raise
        raise _nothing(
            [f"{one.reason}, in queue {one.queue!r}: {one.message[:100]}" for one in found]
        ) from error


def _nothing(reasons: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(f"nothing was published, as of {'; '.join(reasons)}")
