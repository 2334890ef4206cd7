"""Data files of a lake: written whole and to the disk before anybody hears of them."""

from __future__ import annotations

import hashlib
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date, datetime
    from pathlib import Path

    from notifyq.spark.mark import Root

_LONGEST = 200
"""Characters of the name of a folder; file systems take 255, and a file's name may follow."""
_BUFFER = 1024 * 1024
_UNLIKE = {
    *("id", "message", "dedup_key", "lock_token", "xid", "event_id"),
    *("created_at", "available_at", "locked_at", "archived_at"),
}
"""Columns whose values rarely repeat: a dictionary of them would be made, and thrown away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file as its writer tells of it; it is part of no lake yet."""

    path: str
    """From the folder of the lake on."""
    day: date | None
    queue: str | None
    rows: int
    bytes: int
    checksum: str
    first_id: int | None = None
    last_id: int | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None


def folder_of(dataset: str, day: date | None = None, queue: str | None = None) -> str:
    """The folder, within a lake, of the files of a day and a queue."""
    parts = [dataset]
    if day is not None:
        parts.append(f"day={day.isoformat()}")
    if queue is not None:
        parts.append(f"queue={encoded(queue)}")
    return "/".join(parts)


def encoded(queue: str) -> str:
    """A queue's name as a part of a path; one that would be too long is cut and told apart."""
    name = quote(queue, safe="").replace("~", "%7E")
    if name.startswith("__"):
        name = "%5F" + name[1:]  # Spark takes __HIVE_DEFAULT_PARTITION__ for null
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(queue.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST - 20].rsplit('%', 1)[0]}~{digest}"


class FileWriter:
    """Writes one Parquet file of a lake; what `close()` did not return does not count."""

    def __init__(
        self,
        home: Root,
        dataset: str,
        schema: pa.Schema,
        *,
        day: date | None = None,
        queue: str | None = None,
        id_column: str | None = "id",
        time_column: str | None = "archived_at",
    ) -> None:
        # A task that does not see the lake would make a folder of its own.
        self._root = home.check()
        self._day, self._queue = day, queue
        folder = folder_of(dataset, day, queue)
        self._path = f"{folder}/part-{secrets.token_hex(16)}.parquet"
        (self._root / folder).mkdir(parents=True, exist_ok=True)
        self._schema = schema
        names = set(schema.names)
        self._ranges = {name: _Range() for name in (id_column, time_column) if name in names}
        self._id, self._time = id_column, time_column
        self._sink = _Sink(self._root / self._path)
        # Small writes are gathered: each is a call that waits for the interpreter's lock.
        self._stream = pa.output_stream(pa.PythonFile(self._sink, mode="w"), buffer_size=_BUFFER)
        try:
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in schema.names if name not in _UNLIKE],
            )
        except BaseException:
            self._sink.abandon()
            raise
        self.rows = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add rows; their columns are those of the schema, in any order."""
        batch = batch.select(self._schema.names)
        if not batch.schema.equals(self._schema, check_metadata=False):
            batch = batch.cast(self._schema)
        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch.replace_schema_metadata(None)])
        for name, found in self._ranges.items():
            found.add(batch.column(name))
        self._writer.write_table(batch)
        self.rows += batch.num_rows

    def close(self) -> WrittenFile:
        """Write what is left, to the disk, and tell of the file."""
        self._writer.close()
        self._stream.close()
        self._sink.sync()
        _sync_folder((self._root / self._path).parent)
        ids = self._ranges.get(self._id or "", _Range())
        times = self._ranges.get(self._time or "", _Range())
        return WrittenFile(
            path=self._path,
            day=self._day,
            queue=self._queue,
            rows=self.rows,
            bytes=self._sink.size,
            checksum=self._sink.checksum,
            first_id=ids.first,
            last_id=ids.last,
            first_at=times.first,
            last_at=times.last,
        )

    def abandon(self) -> None:
        """Delete what was written, if that can be done."""
        with suppress(Exception):
            self._writer.close()
        with suppress(OSError):
            self._sink.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        if kind is not None:
            self.abandon()


class _Range:
    """The smallest and the largest value seen."""

    def __init__(self) -> None:
        self.first: Any = None
        self.last: Any = None

    def add(self, column: Any) -> None:
        import pyarrow.compute as pc

        low, high = (found.as_py() for found in pc.min_max(column).values())
        if low is not None:
            self.first = low if self.first is None else min(self.first, low)
            self.last = high if self.last is None else max(self.last, high)


class _Sink:
    """A file that knows the checksum of what was meant to be in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._digest = hashlib.sha256()
        self.size = 0
        self.closed = False

    @property
    def checksum(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if self._file.closed:
            return len(view)  # abandoned, and Arrow empties its buffer
        self._digest.update(view)
        written = 0
        try:
            while written < len(view):
                written += self._file.write(view[written:])
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None
        self.size += written
        return written

    def flush(self) -> None:
        """Nothing is kept back here."""

    def close(self) -> None:
        """Leave the file open: it is yet to be synced."""

    def tell(self) -> int:
        return self.size

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def sync(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(root: Path, files: Iterable[WrittenFile]) -> None:
    """Delete files that are part of nothing: a disk may be full of them."""
    for file in files:
        with suppress(OSError):
            (root / file.path).unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that it is there with all of its content, or not at all."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    finally:
        draft.unlink(missing_ok=True)
