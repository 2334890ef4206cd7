"""A lake: a folder of Parquet files, and in PostgreSQL the list of those that are part of it.

What the list has is the lake: a reader that looks into the folder sees files of runs that failed.
The list is mirrored as a Delta table, for readers without PostgreSQL; see `delta`.
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
from notifyq.spark import mark, statements
from notifyq.spark.connection import connect
from notifyq.spark.failures import translated
from notifyq.spark.files import WrittenFile, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from psycopg import Connection

ARCHIVE = "archive"
"""The table of the lake that the archive is exported into."""
_TIME = pa.timestamp("us", "UTC")

ARCHIVE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("type", pa.string()),
        pa.field("status", pa.string()),
        pa.field("priority", pa.int32()),
        pa.field("attempts", pa.int32()),
        pa.field("max_attempts", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("dedup_key", pa.string()),
        pa.field("created_at", _TIME),
        pa.field("available_at", _TIME),
        pa.field("locked_at", _TIME),
        pa.field("archived_at", _TIME),
        pa.field("lock_token", pa.int64()),
        pa.field("xid", pa.int64()),
        pa.field("handled_by", pa.string()),
        pa.field("subscriber", pa.string()),
        pa.field("event_id", pa.int64()),
        pa.field("message", pa.string()),
        pa.field("headers", pa.string()),
        pa.field("details", pa.string()),
        pa.field("result", pa.string()),
    ]
)
"""What the files of the archive have; their day and queue are those of their folders."""
PARTITIONS = pa.schema([pa.field("day", pa.date32()), pa.field("queue", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile(WrittenFile):
    """A file that is part of a lake."""

    id: int
    dataset: str
    batch: int


def folder(location: str | Path) -> Path:
    """Return the folder of a lake; raise ConfigurationError for a URI such as `s3://bucket`."""
    return local_path(location).resolve()


class Lake:
    """A lake that is there. Every call is a session of its own, so that it can be kept for long."""

    def __init__(self, dsn: str, location: str | Path) -> None:
        self._dsn = dsn
        self.root = folder(location)
        token = mark.read(self.root)
        if token is None:
            raise LakeError(f"{self.root} is no lake: `notifyq spark export` makes one")
        for lake in _known(dsn):
            if str(lake.token) == token:
                self.id: int = lake.id
                self.token = token
                self.home = mark.Root(str(self.root), token)
                return
        raise LakeError(
            f"{self.root} is the lake of another database, or of this one before it was forgotten"
        )

    @classmethod
    def create(cls, dsn: str, location: str | Path) -> Self:
        """Open the lake of a folder; make one of a folder that is empty or missing."""
        root = folder(location)
        if mark.read(root) is None:
            _begin(dsn, root)
        return cls(dsn, root)

    def files(self, dataset: str = ARCHIVE) -> list[LakeFile]:
        """The files of a table of the lake: of batches that were committed, and not replaced."""
        with (
            translated(),
            connect(self._dsn) as session,
            session.cursor(row_factory=class_row(LakeFile)) as cursor,
        ):
            return cursor.execute(statements.LAKE_FILES, (self.id, dataset)).fetchall()

    def last_batch(self, dataset: str = ARCHIVE) -> int:
        """The number of the last change of a table of the lake; 0 if there was none."""
        with translated(), connect(self._dsn) as session:
            found = session.execute(statements.LAKE_BATCHES, (self.id, dataset)).fetchone()
        return 0 if found is None else found[0] or 0

    def dataset(self, name: str = ARCHIVE, files: Sequence[LakeFile] | None = None) -> Any:
        """A table of the lake as a dataset of pyarrow; columns that a file lacks are null in it."""
        found = self.files(name) if files is None else files
        schema = self.schema(name, found)
        return ds.FileSystemDataset.from_paths(
            [str(self.root / file.path) for file in found],
            schema=schema,
            format=ds.ParquetFileFormat(),
            filesystem=pa.fs.LocalFileSystem(),
            partitions=[_partition(file) for file in found],
        )

    def schema(self, name: str = ARCHIVE, files: Sequence[LakeFile] | None = None) -> Any:
        """The columns of a table of the lake, those of its folders last."""
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

    def frame(
        self, spark: Any, columns: Sequence[str] | None = None, *, dataset: str = ARCHIVE
    ) -> Any:
        """A table of the lake as a DataFrame of Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        files = self.files(dataset)
        schema = from_arrow_schema(self.schema(dataset, files))
        if files:
            frame = (
                spark.read.schema(schema)
                # A file that an executor does not see is an error, whatever the session says.
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
        place: str | None = None,
    ) -> int | None:
        """Make files part of the lake in the transaction of the session, see commit_lake().

        Return the number of the batch; None if one of this key was there, so that nothing is done.
        Raises LakeError unless this machine sees each file as its writer wrote it.
        """
        self.home.check()
        for file in files:
            self._check(file)
        entries = json.dumps([asdict(file) for file in files], default=str)
        values = (self.id, dataset, entries, key, list(removed), place)
        with translated():
            row = session.execute(statements.COMMIT_LAKE, values).fetchone()
        return None if row is None else row[0]

    def look(self) -> None:
        """Raise LakeError unless this machine sees all files of days that PostgreSQL still has.

        What is found is noted: retention drops no day while a lake cannot be read.
        """
        with translated(), connect(self._dsn) as session:
            days = {row[0] for row in session.execute(statements.ARCHIVE_DAYS)}
        found = (self._fault(file) for file in self.files() if file.day in days)
        fault = next((one for one in found if one is not None), None)
        _note(self._dsn, self.id, fault)
        if fault is not None:
            raise LakeError(
                f"{fault}: mount or restore the lake; no day of the archive is dropped before"
            )

    def _check(self, file: WrittenFile) -> None:
        if (fault := self._fault(file)) is not None:
            raise LakeError(
                f"{fault}, though a task wrote it: nothing was committed; {mark.SHARED}"
            )

    def _fault(self, file: WrittenFile) -> str | None:
        """Tell what is wrong with a file, by its size: it may be on a disk of another machine."""
        path = self.root / file.path
        try:
            size = path.stat().st_size
        except OSError as error:
            return f"{path} cannot be read on {gethostname()}: {error.strerror}"
        if size != file.bytes:
            return f"{path} has {size} bytes on {gethostname()} and not {file.bytes}"
        return None

    @contextmanager
    def held(self, session: Connection[Any]) -> Iterator[tuple[str, str]]:
        """Begin a transaction that no other writer of the lake runs beside.

        Gives how far the lake has been exported, as a place and as a snapshot.
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
    with (
        translated(),
        connect(dsn) as session,
        session.cursor(row_factory=namedtuple_row) as cursor,
    ):
        return cursor.execute(statements.LAKES).fetchall()


def _note(dsn: str, lake: int, fault: str | None) -> None:
    with translated(), connect(dsn) as session:
        session.execute(statements.NOTE_LAKE, (lake, fault))


def _begin(dsn: str, root: Path) -> None:
    if root.exists() and any(root.iterdir()):
        raise LakeError(f"{root} is not empty, and no lake: give a folder of its own")
    known = [it for it in _known(dsn) if it.location == str(root)]
    for lake in known:
        if lake.files:
            fault = f"{root / mark.NAME} is not on {gethostname()}"
            _note(dsn, lake.id, fault)
            raise LakeError(
                f"{fault}, and lake {lake.id} with {lake.files} files was there: mount or restore "
                f"it; select messages.forget_lake({lake.id}) gives it up, and the next export "
                "begins another"
            )
    # One that was begun, and whose folder was never marked, goes on here.
    tokens = [it.token for it in known]
    if not tokens:
        with translated(), connect(dsn) as session:
            row = session.execute(statements.CREATE_LAKE, (str(root),)).fetchone()
        tokens = [] if row is None else [row[1]]
    root.mkdir(parents=True, exist_ok=True)
    write_whole(root / mark.NAME, mark.content(str(tokens[-1])))
