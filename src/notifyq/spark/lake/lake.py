"""A lake: Parquet files in a folder or a store, and the list of its files in PostgreSQL.

Only listed files are part of the lake: the folder also has files of runs that failed. The list is
mirrored as tables of other formats for readers without PostgreSQL; see `mirrors`.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from socket import gethostname
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from psycopg.rows import class_row, namedtuple_row

from notifyq.errors import LakeError
from notifyq.spark import columns, statements
from notifyq.spark.connection import fetch, opened, translated
from notifyq.spark.lake import mark
from notifyq.spark.lake.files import FileWriter, WrittenFile
from notifyq.spark.lake.storage import Storage, storage_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from psycopg import Connection

    from notifyq.spark.lake.storage import Location

ARCHIVE = "archive"
"""The table of the lake that the archive is exported into."""
_TYPES = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}
ARCHIVE_SCHEMA = pa.schema(
    [(name, _TYPES[columns.kind(name)]) for name in columns.ARCHIVE if name != "queue"]
)
"""The columns in the files of the archive; day and queue are in the names of their folders."""
PARTITIONS = pa.schema([pa.field("day", pa.date32()), pa.field("queue", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile(WrittenFile):
    """A file that is part of a lake."""

    id: int
    dataset: str
    batch: int


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a table of a lake at two moments."""

    last: int
    """The number of its last batch; 0: there was none."""
    files: list[LakeFile]
    """All files with that batch."""
    before: list[LakeFile]
    """All files with an earlier batch, which was asked for."""


class Lake:
    """An existing lake. Each call opens its own session: the object may be kept for a long time."""

    def __init__(
        self,
        dsn: str,
        location: Location,
    ) -> None:
        self.dsn = dsn
        self.storage = storage_at(location)
        self.location = self.storage.location
        token = mark.read(self.storage)
        if token is None:
            raise LakeError(f"{self.location} is not a lake: `notifyq spark export` creates one")
        for lake in _known(dsn):
            if str(lake.token) == token:
                self.id: int = lake.id
                self.token = token
                self.home = mark.Root(self.storage, token)
                return
        raise LakeError(
            f"{self.location} is a lake that this database does not list: it belongs to another "
            "database, or was forgotten here"
        )

    @classmethod
    def create(
        cls,
        dsn: str,
        location: Location,
    ) -> Self:
        """Open the lake of a location; create one where there is nothing."""
        storage = storage_at(location)
        try:
            is_new = mark.read(storage) is None
            is_free = is_new and storage.is_empty()
        except LakeError as error:
            for lake in _listed(dsn, storage.location):
                _note(dsn, lake.id, str(error))
            raise
        if is_new:
            _begin(dsn, storage, is_free=is_free)
        return cls(dsn, storage)

    def files(self, dataset: str = ARCHIVE) -> list[LakeFile]:
        """Return the files of a table of the lake."""
        return fetch(self.dsn, LakeFile, statements.LAKE_FILES, (self.id, dataset))

    def tables(self) -> list[str]:
        """Return the names of the tables of the lake."""
        with opened(self.dsn) as session:
            return [name for (name,) in session.execute(statements.LAKE_TABLES, (self.id,))]

    def listing(self, dataset: str, batch: int) -> Listing:
        """Return the files of a table of the lake, now and as they were with a batch."""
        with opened(self.dsn) as session:
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with session.transaction(), session.cursor(row_factory=class_row(LakeFile)) as cursor:
                [[last]] = session.execute(statements.LAKE_BATCHES, (self.id, dataset)).fetchall()
                files = cursor.execute(statements.LAKE_FILES, (self.id, dataset)).fetchall()
                values = (self.id, dataset, batch, batch)
                replaced = cursor.execute(statements.LAKE_REPLACED, values).fetchall()
        return Listing(last or 0, files, [it for it in files if it.batch <= batch] + replaced)

    def dataset(self, name: str = ARCHIVE, files: Sequence[LakeFile] | None = None) -> Any:
        """Return a table of the lake as a dataset of pyarrow; missing columns are null."""
        found = self.files(name) if files is None else files
        return dataset_of(self.storage, found, self.schema(name, found))

    def schema(self, name: str = ARCHIVE, files: Sequence[LakeFile] | None = None) -> Any:
        """Return the columns of a table of the lake, those of its folders last."""
        if name == ARCHIVE:
            return pa.unify_schemas([ARCHIVE_SCHEMA, PARTITIONS])
        found = self.files(name) if files is None else files
        own = [self._own_schema(file) for file in found]
        folders = [
            field
            for field in PARTITIONS
            if any(getattr(file, field.name) is not None for file in found)
        ]
        return pa.unify_schemas([*own, pa.schema(folders)])

    def _own_schema(self, file: LakeFile) -> Any:
        with self.storage.reading(file.path):
            files = self.storage.filesystem
            return pq.read_schema(self.storage.key(file.path), filesystem=files).remove_metadata()

    def writer(self, dataset: str, files: Sequence[LakeFile]) -> FileWriter:
        """Return the writer of a file with rows of these files, which are of one day and queue."""
        first = files[0]
        folders = {name for name in PARTITIONS.names if getattr(first, name) is not None}
        own = [field for field in self.schema(dataset, files) if field.name not in folders]
        return FileWriter(
            self.home,
            dataset,
            pa.schema(own),
            day=first.day,
            queue=first.queue,
            time_column="archived_at" if dataset == ARCHIVE else "created_at",
        )

    def frame(
        self, spark: Any, columns: Sequence[str] | None = None, *, dataset: str = ARCHIVE
    ) -> Any:
        """Return a table of the lake as a DataFrame of Spark.

        A local lake is read by Spark itself, one in a store by the data source `notifyq`.
        """
        if not self.storage.is_local:
            return self._remote_frame(spark, columns, dataset)
        from pyspark.sql.pandas.types import from_arrow_schema

        files = self.files(dataset)
        schema = from_arrow_schema(self.schema(dataset, files))
        if files:
            frame = (
                spark.read.schema(schema)
                # A file that an executor does not see is an error, whatever the session's settings.
                .options(ignoreMissingFiles="false", ignoreCorruptFiles="false")
                .option("basePath", f"file://{self.storage.name(dataset)}")
                .parquet(*(f"file://{self.storage.name(file.path)}" for file in files))
            )
        else:
            frame = spark.createDataFrame([], schema)
        return frame.select(*(columns or schema.names))

    def _remote_frame(self, spark: Any, columns: Sequence[str] | None, dataset: str) -> Any:
        options = {f"storage.{name}": value for name, value in self.storage.options}
        if columns:
            options["columns"] = ",".join(columns)
        given = {"dsn": self.dsn, "lake": self.location, "table": dataset, **options}
        return spark.read.format("notifyq").options(**given).load()

    def commit(
        self,
        session: Connection[Any],
        files: Sequence[WrittenFile],
        *,
        dataset: str = ARCHIVE,
        key: str | None = None,
        removed: Sequence[int] = (),
        position: str | None = None,
    ) -> int | None:
        """Make files part of the lake in the transaction of the session, see commit_lake().

        Return the number of the batch; None: the lake has a batch with this key, nothing was done.
        Raises LakeError unless this machine sees each file with the size that its writer reported.
        """
        self.home.check()
        if (fault := self._fault(files)) is not None:
            raise LakeError(
                f"{fault}, though a task wrote it: nothing was committed; {mark.SHARED}"
            )
        entries = json.dumps([asdict(file) for file in files], default=str)
        values = (self.id, dataset, entries, key, list(removed), position)
        with translated():
            row = session.execute(statements.COMMIT_LAKE, values).fetchone()
        return None if row is None else row[0]

    def check(self) -> None:
        """Raise LakeError unless this machine sees all files of days that PostgreSQL still has.

        The result is recorded: retention drops no day while a lake cannot be read.
        """
        with opened(self.dsn) as session:
            days = {row[0] for row in session.execute(statements.ARCHIVE_DAYS)}
        fault = self._fault([file for file in self.files() if file.day in days])
        _note(self.dsn, self.id, fault)
        if fault is not None:
            raise LakeError(
                f"{fault}: mount or restore the lake; no day of the archive is dropped before"
            )

    def _fault(self, files: Sequence[WrittenFile]) -> str | None:
        """Return what is wrong with a file by its size: it may be on another machine's disk."""
        sizes = self.storage.sizes([file.path for file in files])
        for file in files:
            size, name = sizes[file.path], self.storage.name(file.path)
            if isinstance(size, str):
                return f"{name} {size}"
            if size != file.bytes:
                return f"{name} has {size} bytes on {gethostname()}, not {file.bytes}"
        return None

    @contextmanager
    def held(self, session: Connection[Any]) -> Iterator[tuple[str, str]]:
        """Run a transaction that locks the lake against other writers.

        Gives how far the lake has been exported, as a position and as a snapshot.
        """
        with translated():
            session.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with session.transaction():
                session.execute(statements.KEEP_PARTITIONS)
                row = session.execute(statements.HOLD_LAKE, (self.id,)).fetchone()
                yield row or ("", "")


def dataset_of(storage: Storage, files: Sequence[LakeFile], schema: Any) -> Any:
    """Return files as a dataset of pyarrow."""
    return ds.FileSystemDataset.from_paths(
        [storage.key(file.path) for file in files],
        schema=schema,
        format=ds.ParquetFileFormat(),
        filesystem=storage.filesystem,
        partitions=[_partition(file) for file in files],
    )


def _partition(file: LakeFile) -> Any:
    condition = ds.scalar(value=True)
    for field in PARTITIONS:
        value = getattr(file, field.name)
        if value is not None:
            condition &= ds.field(field.name) == pa.scalar(value, field.type)
    return condition


def _known(dsn: str) -> list[Any]:
    with opened(dsn) as session, session.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(statements.LAKES).fetchall()


def _note(dsn: str, lake: int, fault: str | None) -> None:
    with opened(dsn) as session:
        session.execute(statements.NOTE_LAKE, (lake, fault))


def _listed(dsn: str, location: str) -> list[Any]:
    return [it for it in _known(dsn) if it.location == location]


def _begin(dsn: str, storage: Storage, *, is_free: bool) -> None:
    # One at a time for each location: who fails forgets only the lake that it has made itself.
    with opened(dsn) as session, session.transaction():
        session.execute(statements.BEGIN_LAKE, (storage.location,))
        if mark.read(storage) is None:  # else another one was first
            _make(dsn, storage, is_free=is_free)


def _make(dsn: str, storage: Storage, *, is_free: bool) -> None:
    if not is_free:
        raise LakeError(f"{storage.location} is not empty, and not a lake: use an empty folder")
    known = _listed(dsn, storage.location)
    for lake in known:
        if lake.files:
            fault = f"{storage.name(mark.NAME)} is not on {gethostname()}"
            _note(dsn, lake.id, fault)
            raise LakeError(
                f"{fault}, but lake {lake.id} with {lake.files} files is listed there: mount or "
                f"restore it, or give it up by select messages.forget_lake({lake.id}): the next "
                "export creates another"
            )
    # A lake that was listed before a crash, and whose folder has no mark yet, is used.
    if known:
        storage.write(mark.NAME, mark.content(str(known[-1].token)))
        return
    with opened(dsn) as session:
        [[number, token]] = session.execute(statements.CREATE_LAKE, (storage.location,)).fetchall()
        try:
            storage.write(mark.NAME, mark.content(str(token)))
        except (OSError, LakeError):
            # Retention would wait for a lake without a mark; the write may have made it.
            if mark.read(storage) is None:
                session.execute(statements.FORGET_LAKE, (number,))
            raise
