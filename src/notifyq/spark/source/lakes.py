"""Reads of a lake by pyarrow: Spark needs no library of the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from notifyq.errors import ConfigurationError
from notifyq.spark.engine import groups_of
from notifyq.spark.lake.lake import ARCHIVE, Lake, LakeFile, dataset_of
from notifyq.spark.lake.storage import Storage, storage_at
from notifyq.spark.source.options import address, names, number, unknown
from notifyq.spark.source.rows import share_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from notifyq.spark.lake.mark import Root

_KNOWN = ("columns", "dsn", "dsn_file", "lake", "partitions", "table")
_STORAGE = "storage."
"""Begins the names of the options of the store."""
_ROWS = 65_536
_MOST_BYTES = 128 * 1024 * 1024
"""Bytes of a part, as Spark reads files."""
_OPERATORS: dict[type, Any] = {
    EqualTo: lambda column, value: column == value,
    GreaterThan: lambda column, value: column > value,
    GreaterThanOrEqual: lambda column, value: column >= value,
    LessThan: lambda column, value: column < value,
    LessThanOrEqual: lambda column, value: column <= value,
}


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The options of a read. Its repr has no DSN and no options of the store."""

    dsn: str = field(repr=False)
    storage: Storage
    table: str
    columns: tuple[str, ...] | None
    partitions: int | None


def lake_options(options: Mapping[str, str]) -> LakeOptions:
    """Check the options of a read of a lake."""
    store: dict[str, str] = {}
    for name, value in options.items():
        if name.lower().startswith(_STORAGE):
            store[name[len(_STORAGE) :]] = value
        elif name.lower() not in _KNOWN:
            raise unknown("a read of a lake has no option", name, _KNOWN)
    return LakeOptions(
        dsn=address(options),
        storage=storage_at(options["lake"], store),
        table=options.get("table", ARCHIVE),
        columns=names(options.get("columns")),
        partitions=number("partitions", options.get("partitions")),
    )


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
    """Reads the files that the lake has at planning."""

    def __init__(self, options: LakeOptions, schema: Any) -> None:
        """Keep the columns that Spark selects."""
        self._options = options
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self._filters: list[Any] = []

    def partitions(self) -> Sequence[InputPartition]:
        """Plan groups of files; those that cannot have a row are left out."""
        lake = Lake(self._options.dsn, self._options.storage)
        files = lake.files(self._options.table)
        schema = lake.schema(self._options.table, files)
        known = dataset_of(lake.storage, files, schema, is_bounded=self._options.table == ARCHIVE)
        paths = {it.path for it in known.get_fragments(_all(self._filters, schema))}
        kept = [file for file in files if lake.storage.key(file.path) in paths]
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
            filter=_all(self._filters, partition.schema),
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


class FilteringLakeReader(LakeReader):
    """Leaves out files and groups of rows. Spark refuses it where filter pushdown is off."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Return all filters: Spark applies them to the rows that are left."""
        self._filters = filters
        return filters


def _all(filters: Sequence[Any], schema: pa.Schema) -> Any:
    """Return the condition that comparisons with values mean; other filters are left to Spark."""
    condition = ds.scalar(value=True)
    for given in filters:
        if (one := _condition(given, schema)) is not None:
            condition &= one
    return condition


def _condition(given: Any, schema: pa.Schema) -> Any:
    if type(given) not in {*_OPERATORS, In} or len(given.attribute) != 1:
        return None
    name = given.attribute[0]
    if name not in schema.names:
        return None
    kind = schema.field(name).type
    if isinstance(getattr(given, "value", None), datetime) and given.value.tzinfo is None:
        return None
    try:
        if isinstance(given, In):
            return ds.field(name).isin(pa.array(given.value, kind))
        return _OPERATORS[type(given)](ds.field(name), pa.scalar(given.value, kind))
    except (pa.ArrowException, TypeError, ValueError):
        return None
