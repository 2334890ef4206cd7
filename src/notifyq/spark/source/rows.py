"""The rows of a part: statements, whose results come as Arrow batches."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from notifyq.errors import NotifyqError
from notifyq.spark.connection import arrow_transaction, translated

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Read:
    """A statement that reads rows, and one that checks their table afterwards."""

    query: str
    unchanged: str | None = None
    """Returns whether the table is still the one that the read was planned with."""


@dataclass(frozen=True)
class Part(InputPartition):
    """The reads of one task, one after the other."""

    reads: tuple[Read, ...]
    settings: tuple[str, ...] = ()


def share_of(size: int, parts: int | None, most: int) -> int:
    """Return the size of a part of a read: as many as asked for, else `most` at most.

    Else there are two parts for each core of the driver or more: a planner of Spark does not know
    the cores of the executors.
    """
    share = -(-size // (parts or 2 * (os.cpu_count() or 1)))
    return max(1, share if parts else min(share, most))


def rows(dsn: str, part: Part, schema: Any) -> Iterator[pa.RecordBatch]:
    """Give the rows of a part, in the types that Spark expects."""
    with arrow_transaction(dsn) as run, translated():
        for setting in part.settings:
            run(setting).read_all()
        for read in part.reads:
            for batch in run(read.query):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            if read.unchanged is None:
                continue
            [answer] = run(read.unchanged).read_all().to_pylist()
            if not all(answer.values()):
                raise NotifyqError(
                    "a table was emptied, dropped or rewritten during the read: read it again"
                )
