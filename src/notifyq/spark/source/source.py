"""The data source `notifyq`: it gives Spark schemas, readers and writers."""

from __future__ import annotations

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


class NotifyqSource(DataSource):
    """Reads and writes messages and events. docs/reference/options.md lists its options."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "notifyq"

    def schema(self) -> StructType:
        """Return the columns of the table of the options."""
        if "lake" in self.options:
            from notifyq.spark.source.lakes import lake_options, lake_struct

            return lake_struct(lake_options(self.options))
        from notifyq.spark.source.options import described
        from notifyq.spark.source.schema import struct

        options = described(self.options)
        return struct(options.table, options.columns)

    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a batch."""
        if "lake" in self.options:
            from notifyq.spark.source.lakes import LakeReader, lake_options

            return LakeReader(lake_options(self.options), schema)
        from notifyq.spark.source.options import read_options
        from notifyq.spark.source.reader import TableReader

        return TableReader(read_options(self.options), schema)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream."""
        from notifyq.spark.source.options import stream_options
        from notifyq.spark.source.stream_reader import TableStreamReader

        return TableStreamReader(stream_options(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:  # noqa: FBT001
        """Return the writer that publishes the rows once for each name."""
        from notifyq.spark.source.frames import shape
        from notifyq.spark.source.writer import BatchWriter, write_options

        return BatchWriter(
            write_options(self.options, is_overwrite=overwrite), shape(schema, self.options)
        )

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: FBT001, N802
        """Return the writer that publishes each batch of a query once."""
        from notifyq.spark.source.frames import shape
        from notifyq.spark.source.writer import StreamWriter, write_options

        return StreamWriter(
            write_options(self.options, is_overwrite=overwrite), shape(schema, self.options)
        )


def register(spark: Any) -> None:
    """Register the data source `notifyq` unless the session has found it.

    Spark searches data sources once, in a Python worker. If that worker is killed, the session
    raises DATA_SOURCE_NOT_FOUND until its end.
    """
    java = getattr(spark, "_jsparkSession", None)  # Spark Connect has none
    if java is None or not java.sessionState().dataSourceManager().dataSourceExists(
        NotifyqSource.name()
    ):
        spark.dataSource.register(NotifyqSource)
