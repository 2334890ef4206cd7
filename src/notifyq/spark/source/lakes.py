"""Reads of a lake by pyarrow: Spark needs no library of the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from notifyq.errors import ConfigurationError
from notifyq.spark.engine import groups_of
from notifyq.spark.lake.lake import ARCHIVE, Lake, LakeFile, dataset_of
from notifyq.spark.lake.storage import Storage, storage_at
from notifyq.spark.source.options import address, names, number, span, unknown
from notifyq.spark.source.rows import share_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from notifyq.spark.lake.mark import Root

_KNOWN = ("columns", "dsn", "dsn_file", "lake", "partitions", "queue", "since", "table", "until")
_STORAGE = "storage."
"""Begins the names of the options of the store."""
_ROWS = 65_536
_MOST_BYTES = 128 * 1024 * 1024
"""Bytes of a part, as Spark reads files."""


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The options of a read. Its repr has no DSN and no options of the store."""

    dsn: str = field(repr=False)
    storage: Storage
    table: str
    columns: tuple[str, ...] | None
    partitions: int | None
    queue: str | None
    since: date | None
    until: date | None

    def has(self, file: LakeFile) -> bool:
        """Return whether a file has chosen rows."""
        return (
            (self.queue is None or file.queue == self.queue)
            and (self.since is None or (file.day is not None and file.day >= self.since))
            and (self.until is None or (file.day is not None and file.day < self.until))
        )


def lake_options(options: Mapping[str, str]) -> LakeOptions:
    """Check the options of a read of a lake."""
    store: dict[str, str] = {}
    for name, value in options.items():
        if name.lower().startswith(_STORAGE):
            store[name[len(_STORAGE) :]] = value
        elif name.lower() not in _KNOWN:
            raise unknown("a read of a lake has no option", name, _KNOWN)
    table, queue = options.get("table", ARCHIVE), options.get("queue")
    if queue is not None and table != ARCHIVE:
        raise ConfigurationError(
            f"option queue: only the files of the archive have one, not {table}"
        )
    since, until = span(options)
    return LakeOptions(
        dsn=address(options),
        storage=storage_at(options["lake"], store),
        table=table,
        columns=names(options.get("columns")),
        partitions=number("partitions", options.get("partitions")),
        queue=queue,
        since=_day("since", since),
        until=_day("until", until),
    )


def _day(name: str, found: datetime | None) -> date | None:
    if found is None:
        return None
    if found.time() != time():
        raise ConfigurationError(f"option {name}: a lake has files of days in UTC, give a day")
    return found.date()


def lake_struct(options: LakeOptions) -> Any:
    """Return the columns of the table as a schema of Spark."""
    schema = Lake(options.dsn, options.storage).schema(options.table)
    for name in options.columns or ():
        if name not in schema.names:
            raise ConfigurationError(
                f"{options.table} has no column {name!r}; it has {', '.join(schema.names)}"
            )
    return from_arrow_schema(
        pa.schema([schema.field(it) for it in options.columns or schema.names])
    )


@dataclass
class LakePart(InputPartition):
    """The files of a task, with their schema: an executor needs no database."""

    home: Root
    files: tuple[LakeFile, ...]
    schema: Any


class LakeReader(DataSourceReader):
    """Reads the files that the lake has at planning.

    It takes no filters: Spark uses those of the last plan for all reads of a DataFrame.
    """

    def __init__(self, options: LakeOptions, schema: Any) -> None:
        """Keep the columns that Spark selects."""
        self._options = options
        self._wanted = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Plan groups of files."""
        lake = Lake(self._options.dsn, self._options.storage)
        files = lake.files(self._options.table)
        schema = lake.schema(self._options.table, files)
        kept = [file for file in files if self._options.has(file)]
        size = sum(file.bytes for file in kept)
        share = share_of(size, self._options.partitions, _MOST_BYTES)
        groups = groups_of([(file.bytes, file) for file in kept], share)
        return [LakePart(lake.home, tuple(group), schema) for group in groups] or [
            LakePart(lake.home, (), schema)
        ]

    def read(self, partition: LakePart) -> Iterator[pa.RecordBatch]:
        """Give the rows of a part."""
        if not partition.files:
            return
        storage = partition.home.check()
        found = dataset_of(storage, partition.files, partition.schema)
        scanner = found.scanner(
            columns=self._wanted.names,
            batch_size=_ROWS,
            use_threads=False,
        )
        with storage.reading(partition.files[0].path):
            for batch in scanner.to_batches():
                if batch.num_rows:
                    yield pa.RecordBatch.from_arrays(
                        [
                            column.cast(kind)
                            for column, kind in zip(batch.columns, self._wanted.types, strict=True)
                        ],
                        schema=self._wanted,
                    )
