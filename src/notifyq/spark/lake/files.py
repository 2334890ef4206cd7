"""Data files of a lake: each is complete before it is listed."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from notifyq.errors import LakeError
from notifyq.spark.lake.storage import DATA

if TYPE_CHECKING:
    from notifyq.spark.lake.mark import Root
    from notifyq.spark.lake.storage import Storage

_LONGEST = 200
"""Characters in the name of a folder; file systems allow 255."""
_BUFFER = 1024 * 1024
_NO_DICTIONARY = {
    *("id", "message", "dedup_key", "lock_token", "xid", "event_id"),
    *("created_at", "available_at", "locked_at", "archived_at"),
}
"""Columns whose values rarely repeat: a dictionary of them would be built and discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file as its writer reports it; it is not part of a lake yet."""

    path: str
    """Relative to the folder of the lake."""
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
    """Return the folder in a lake for the files of a day and a queue."""
    parts = [dataset]
    if day is not None:
        parts.append(f"day={day.isoformat()}")
    if queue is not None:
        parts.append(f"queue={encoded(queue)}")
    return "/".join(parts)


def encoded(queue: str) -> str:
    """Return a queue's name as a part of a path; a long one is truncated and gets a hash."""
    name = quote(queue, safe="").replace("~", "%7E")
    if name.startswith("__"):
        name = "%5F" + name[1:]  # Spark reads __HIVE_DEFAULT_PARTITION__ as null
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.sha256(queue.encode()).hexdigest()[:16]
    return f"{name[: _LONGEST - 20].rsplit('%', 1)[0]}~{digest}"


class FileWriter:
    """Writes one Parquet file of a lake; it counts only once `close()` has returned it."""

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
        # Without the check, a task that does not see the lake would create a folder of its own.
        storage = home.check()
        self._day, self._queue = day, queue
        folder = folder_of(dataset, day, queue)
        self._path = f"{folder}/{DATA}{secrets.token_hex(16)}.parquet"
        self._schema = schema
        self.columns = schema.names
        self._id, self._time = id_column or "", time_column or ""
        self._bounds: dict[str, list[Any]] = {
            name: [] for name in (self._id, self._time) if name in schema.names
        }
        self._output = storage.create(self._path)
        # Small writes are buffered: each is a call that waits for the interpreter's lock.
        self._stream = pa.output_stream(pa.PythonFile(self._output, mode="w"), buffer_size=_BUFFER)
        try:
            self._writer = pq.ParquetWriter(
                self._stream,
                schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in schema.names if name not in _NO_DICTIONARY],
            )
        except BaseException:
            self._output.discard()
            raise
        self.rows = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add rows with the columns of the schema, in any order."""
        batch = batch.select(self._schema.names)
        if not batch.schema.equals(self._schema, check_metadata=False):
            batch = batch.cast(self._schema)
        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch.replace_schema_metadata(None)])
        for name, bounds in self._bounds.items():
            found = pc.min_max(batch.column(name)).as_py().values()
            bounds += [value for value in found if value is not None]
        self._writer.write_table(batch)
        self.rows += batch.num_rows

    def close(self) -> WrittenFile:
        """Complete the file and return its description."""
        self._writer.close()
        self._stream.close()
        self._output.close()
        ids, times = (self._bounds.get(name, []) for name in (self._id, self._time))
        return WrittenFile(
            path=self._path,
            day=self._day,
            queue=self._queue,
            rows=self.rows,
            bytes=self._output.size,
            checksum=self._output.checksum,
            first_id=min(ids, default=None),
            last_id=max(ids, default=None),
            first_at=min(times, default=None),
            last_at=max(times, default=None),
        )

    def abandon(self) -> None:
        """Delete what was written; errors are ignored."""
        with suppress(Exception):
            self._writer.close()
        with suppress(OSError, LakeError):
            self._output.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        if kind is not None:
            self.abandon()


def remove(storage: Storage, files: Iterable[WrittenFile]) -> None:
    """Delete files that are not part of a lake: they may fill the disk.

    Where one cannot be deleted, `tidy` deletes the others later: each may wait for a store that
    does not answer.
    """
    with suppress(OSError, LakeError):
        for file in files:
            storage.delete(file.path)
