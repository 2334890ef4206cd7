"""The data source `notifyq`: what Spark asks for schemas, readers and writers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

_PUSHDOWN = "pyspark.sql.worker.data_source_pushdown_filters"


class NotifyqSource(DataSource):
    """Reads and writes messages and events. See docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "notifyq"

    def schema(self) -> StructType:
        """Give the columns of what the options name."""
        from notifyq.spark.source.options import described
        from notifyq.spark.source.schema import struct

        options = described(self.options)
        return struct(options.table, options.columns)

    def reader(self, schema: Any) -> DataSourceReader:
        """Give a reader of what is there."""
        from notifyq.spark.source.options import read_options
        from notifyq.spark.source.reader import FilteringReader, TableReader

        # Spark runs another program where filters are on, and refuses their reader where they
        # are off.
        chosen = FilteringReader if _PUSHDOWN in sys.modules else TableReader
        return chosen(read_options(self.options), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Give a reader of what comes."""
        from notifyq.spark.source.options import stream_options
        from notifyq.spark.source.stream_reader import TableStreamReader

        return TableStreamReader(stream_options(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Give a writer that publishes the rows once for each name."""
        from notifyq.spark.source.frames import shape
        from notifyq.spark.source.writer import BatchWriter, write_options

        return BatchWriter(
            write_options(self.options, is_overwrite=overwrite), shape(schema, self.options)
        )

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        """Give a writer that publishes each batch of a query once."""
        from notifyq.spark.source.frames import shape
        from notifyq.spark.source.writer import StreamWriter, write_options

        return StreamWriter(
            write_options(self.options, is_overwrite=overwrite), shape(schema, self.options)
        )
