"""The rows of a part: one statement, whose result comes as Arrow batches."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from notifyq.errors import NotifyqError
from notifyq.spark.connection import connect_arrow
from notifyq.spark.failures import translated

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Part(InputPartition):
    """One task's share of a read."""

    query: str
    unchanged: str | None = None
    """A question, asked afterwards: whether the table is still the one that was planned with."""
    settings: tuple[str, ...] = ()


def rows(dsn: str, part: Part, schema: Any) -> Iterator[pa.RecordBatch]:
    """Give the rows of a part, in the types that Spark expects."""
    with closing(connect_arrow(dsn)) as session, session.cursor() as cursor, translated():
        for setting in part.settings:
            cursor.execute(setting)
        cursor.execute(part.query)
        for batch in cursor.fetch_record_batch():
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        if part.unchanged is None:
            return
        cursor.execute(part.unchanged)
        [[is_unchanged]] = cursor.fetchall()
        if not is_unchanged:
            raise NotifyqError(
                "a table was emptied, dropped or rewritten while it was read: read it again"
            )
