"""Publish a DataFrame once for each name, or each batch of a stream once.

Tasks stage their rows; the commit publishes those of the attempts that Spark has chosen.
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
from notifyq.spark.publish import staging
from notifyq.spark.source.frames import Shape
from notifyq.spark.source.options import address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

_SHOWN = 3
"""Rows that an error names, at most."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write. Its repr has no DSN: plans and errors may show it."""

    dsn: str = field(repr=False)
    name: str | None = None


def write_options(options: Mapping[str, str], *, is_overwrite: bool) -> WriteOptions:
    """Check the options of a write, except those of its columns."""
    if is_overwrite:
        raise ConfigurationError("messages can only be added: write with mode append")
    return WriteOptions(dsn=address(options), name=options.get("load"))


@dataclass(frozen=True)
class Wrote(WriterCommitMessage):
    """The rows that a task has staged, and their load."""

    staged: staging.Staged | None
    load: str | None = None
    refusal: str | None = None
    """Why its rows can never be published."""


class BatchWriter(DataSourceArrowWriter):
    """Publishes the rows of `df.write` all together, once for each name."""

    def __init__(self, options: WriteOptions, shape: Shape) -> None:
        """Begin the load; most errors are raised here, before any task."""
        if options.name is None:
            raise ConfigurationError(
                "option load is missing: a name for this write, which is published once"
            )
        self._dsn = options.dsn
        self._load = options.name
        self._shape = shape
        staging.check_targets(self._dsn, shape.targets)
        self._is_done = not staging.begin(self._dsn, self._load).is_new

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        """Stage the rows of a task, unless an earlier run has published the load."""
        if self._is_done:
            return Wrote(None)
        return _write(self._dsn, self._load, self._shape, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the rows that the chosen attempts have staged."""
        report = _commit(self._dsn, self._load, messages)
        if not report.is_new:
            sys.stderr.write(
                f"notifyq: load {self._load!r} was published at {report.committed_at}: "
                "nothing was done\n"
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give up the staged rows."""
        with suppress(NotifyqError):  # maintenance removes them later
            staging.abandon(self._dsn, self._load, _staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Publishes each batch of `writeStream` once, also when it runs again after a crash."""

    def __init__(self, options: WriteOptions, shape: Shape) -> None:
        """Check the targets before the first batch."""
        self._dsn = options.dsn
        self._load = options.name or "stream"
        self._shape = shape
        staging.check_targets(self._dsn, shape.targets)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Wrote:
        """Stage the rows of a task for its query and batch.

        The id of a query is stored in its checkpoint: with another checkpoint, batches are numbered
        from 0 again, and are published under another name.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise ConfigurationError("this version of Spark gives tasks no id of their query")
        load = f"{self._load}/{query}"
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not staging.begin(self._dsn, load, int(batch)).is_new:
            return Wrote(None, load)
        return _write(self._dsn, load, self._shape, iterator)

    # The name of the argument is Spark's.
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the rows that the chosen attempts have staged for the batch."""
        load = next((it.load for it in messages if isinstance(it, Wrote) and it.load), None)
        if load is not None:
            _commit(self._dsn, load, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up the staged rows."""
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
        # Raised here, Spark would retry the same rows and show a traceback each time: the commit
        # raises it, once. A retry may help after other errors, such as a lost connection.
        return Wrote(None, load, str(error))


def _rows(dsn: str, shape: Shape, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    known = set(shape.targets)
    for batch in batches:
        rows = shape.rows(batch)
        if new := set(rows.column("queue").unique().to_pylist()) - known:
            staging.check_targets(dsn, sorted(new))  # before all rows are staged
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
    except NotifyqError as error:
        found: list[staging.Reject] = []
        with suppress(NotifyqError):
            found = staging.rejects(dsn, load, staged, _SHOWN)
        if not found:
            raise
        raise _nothing(
            [f"{one.reason}, in queue {one.queue!r}: {one.message[:100]}" for one in found]
        ) from error


def _nothing(reasons: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(f"nothing was published: {'; '.join(reasons)}")
