"""A lake: a folder of Parquet files, and the list of its files in PostgreSQL.

Only listed files are part of the lake: the folder also has files of runs that failed. The list is
mirrored as a Delta table for readers without PostgreSQL; see `delta`.
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
import pyarrow.fs
import pyarrow.parquet as pq
from psycopg.rows import class_row, namedtuple_row

from notifyq.errors import LakeError
from notifyq.paths import local_path
from notifyq.spark import columns, statements
from notifyq.spark.connection import fetch, opened, translated
from notifyq.spark.lake import mark
from notifyq.spark.lake.files import FileWriter, WrittenFile, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from psycopg import Connection

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


def folder(location: str | Path) -> Path:
    """Return the folder of a lake; raise ConfigurationError for a URI such as `s3://bucket`."""
    return local_path(location).resolve()


class Lake:
    """An existing lake. Each call opens its own session: the object may be kept for a long time."""

    def __init__(self, dsn: str, location: str | Path) -> None:
        self._dsn = dsn
        self.root = folder(location)
        token = mark.read(self.root)
        if token is None:
            raise LakeError(f"{self.root} is not a lake: `notifyq spark export` creates one")
        for lake in _known(dsn):
            if str(lake.token) == token:
                self.id: int = lake.id
                self.token = token
                self.home = mark.Root(str(self.root), token)
                return
        raise LakeError(
            f"{self.root} is a lake that this database does not list: it belongs to another "
            "database, or was forgotten here"
        )

    @classmethod
    def create(cls, dsn: str, location: str | Path) -> Self:
        """Open the lake of a folder; create one in a folder that is empty or missing."""
        root = folder(location)
        if mark.read(root) is None:
            _begin(dsn, root)
        return cls(dsn, root)

    def files(self, dataset: str = ARCHIVE) -> list[LakeFile]:
        """Return the files of a table of the lake."""
        return fetch(self._dsn, LakeFile, statements.LAKE_FILES, (self.id, dataset))

    def tables(self) -> list[str]:
        """Return the names of the tables of the lake."""
        with opened(self._dsn) as session:
            return [name for (name,) in session.execute(statements.LAKE_TABLES, (self.id,))]

    def listing(self, dataset: str, batch: int) -> Listing:
        """Return the files of a table of the lake, now and as they were with a batch."""
        with opened(self._dsn) as session:
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
        return ds.FileSystemDataset.from_paths(
            [str(self.root / file.path) for file in found],
            schema=self.schema(name, found),
            format=ds.ParquetFileFormat(),
            filesystem=pa.fs.LocalFileSystem(),
            partitions=[_partition(file) for file in found],
        )

    def schema(self, name: str = ARCHIVE, files: Sequence[LakeFile] | None = None) -> Any:
        """Return the columns of a table of the lake, those of its folders last."""
        if name == ARCHIVE:
            return pa.unify_schemas([ARCHIVE_SCHEMA, PARTITIONS])
        found = self.files(name) if files is None else files
        own = [pq.read_schema(self.root / file.path).remove_metadata() for file in found]
        folders = [
            field
            for field in PARTITIONS
            if any(getattr(file, field.name) is not None for file in found)
        ]
        return pa.unify_schemas([*own, pa.schema(folders)])

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
        """Return a table of the lake as a DataFrame of Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        files = self.files(dataset)
        schema = from_arrow_schema(self.schema(dataset, files))
        if files:
            frame = (
                spark.read.schema(schema)
                # A file that an executor does not see is an error, whatever the session's settings.
                .options(ignoreMissingFiles="false", ignoreCorruptFiles="false")
                .option("basePath", f"file://{self.root / dataset}")
                .parquet(*(f"file://{self.root / file.path}" for file in files))
            )
        else:
            frame = spark.createDataFrame([], schema)
        return frame.select(*(columns or schema.names))

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
        for file in files:
            if (fault := self._fault(file)) is not None:
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
        with opened(self._dsn) as session:
            days = {row[0] for row in session.execute(statements.ARCHIVE_DAYS)}
        found = (self._fault(file) for file in self.files() if file.day in days)
        fault = next((one for one in found if one is not None), None)
        _note(self._dsn, self.id, fault)
        if fault is not None:
            raise LakeError(
                f"{fault}: mount or restore the lake; no day of the archive is dropped before"
            )

    def _fault(self, file: WrittenFile) -> str | None:
        """Return what is wrong with a file by its size: it may be on another machine's disk."""
        path = self.root / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            return f"{path} cannot be read on {gethostname()}: {error.strerror}"
        if size != file.bytes:
            return f"{path} has {size} bytes on {gethostname()}, not {file.bytes}"
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


def _begin(dsn: str, root: Path) -> None:
    if root.exists() and any(root.iterdir()):
        raise LakeError(f"{root} is not empty, and not a lake: use an empty folder")
    known = [it for it in _known(dsn) if it.location == str(root)]
    for lake in known:
        if lake.files:
            fault = f"{root / mark.NAME} is not on {gethostname()}"
            _note(dsn, lake.id, fault)
            raise LakeError(
                f"{fault}, but lake {lake.id} with {lake.files} files is listed there: mount or "
                f"restore it, or give it up by select messages.forget_lake({lake.id}): the next "
                "export creates another"
            )
    # A lake that was listed before a crash, and whose folder has no mark yet, is used.
    tokens = [it.token for it in known]
    if not tokens:
        with opened(dsn) as session:
            row = session.execute(statements.CREATE_LAKE, (str(root),)).fetchone()
        tokens = [] if row is None else [row[1]]
    root.mkdir(parents=True, exist_ok=True)
    write_whole(root / mark.NAME, mark.content(str(tokens[-1])))
