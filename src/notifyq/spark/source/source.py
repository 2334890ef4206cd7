"""The data source `notifyq`: what Spark asks for schemas, readers and writers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
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
