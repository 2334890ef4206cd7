"""The data source `notifyq`: what Spark asks for schemas, readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader


class NotifyqSource(DataSource):
    """Reads and writes messages and events. See docs/spark.md for its options."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "notifyq"

    def schema(self) -> str:
        """Give the columns of what the options name."""
        from notifyq.spark.source.options import read_options
        from notifyq.spark.source.schema import ddl

        options = read_options(self.options)
        return ddl(options.table, options.columns)

    def reader(self, schema: Any) -> DataSourceReader:
        """Give a reader of what the options name."""
        from notifyq.spark.source.options import read_options
        from notifyq.spark.source.reader import ArchiveReader

        return ArchiveReader(read_options(self.options), schema)
