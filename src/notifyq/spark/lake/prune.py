"""Prune: drop days from PostgreSQL once the files of a lake are proved to have all their rows."""

from __future__ import annotations

import hashlib
import itertools
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.errors import LakeError
from notifyq.spark import statements
from notifyq.spark.connection import connect, translated
from notifyq.spark.lake.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from notifyq.spark.connection import Session
    from notifyq.spark.lake.storage import Location

_HASHED = [*ARCHIVE_SCHEMA.names, "queue"]
"""The columns in the order of notifyq.archive_hashes()."""
_SEPARATOR = "\x1f"
_ROWS = 65_536
_HELD = 200_000
"""Rows of PostgreSQL that are held at once where they are compared one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedDay:
    """A day that PostgreSQL no longer has."""

    day: date
    rows: int


@dataclass(slots=True, kw_only=True)
class PruneSummary:
    """Which days were dropped, and which were kept and why."""

    dropped: list[DroppedDay] = field(default_factory=list)
    kept: dict[date, str] = field(default_factory=dict)


def verify(
    dsn: str,
    lake: Location,
    *,
    dataset: str = ARCHIVE,
) -> int:
    """Compare all files of a table of a lake with their checksums; return how many they are.

    Raises LakeError for the first file that differs.
    """
    target = Lake(dsn, lake)
    files = target.files(dataset)
    for file in files:
        with target.storage.reading(file.path), target.storage.open(file.path) as opened:
            digest = hashlib.file_digest(opened, "sha256")
        if digest.hexdigest() != file.checksum:
            raise LakeError(
                f"{target.storage.name(file.path)} is not as it was written: restore it"
            )
    return len(files)


def prune(
    dsn: str,
    lake: Location,
    *,
    keep_days: int = 1,
) -> PruneSummary:
    """Drop past days of the archive that the lake has completely.

    Before a day is dropped, its files are read back and compared with PostgreSQL row by row. Today
    and `keep_days` days before stay. Raises LakeError where the lake lacks a row or has a different
    one; that day stays.
    """
    target = Lake(dsn, lake)
    summary = PruneSummary()
    until = datetime.now(UTC).date() - timedelta(days=keep_days)
    with closing(connect(dsn, name="notifyq prune")) as session:
        with translated():
            days = [row[0] for row in session.execute(statements.ARCHIVE_DAYS)]
        for day in days:
            if day < until:
                _prune_day(target, session, day, summary)
    return summary


def _prune_day(lake: Lake, session: Session, day: date, summary: PruneSummary) -> None:
    with translated():
        [[why]] = session.execute(statements.PRUNE_OBSTACLE, (lake.id, day)).fetchall()
    if why is None:
        # After that: the days before may take hours, and an export adds files meanwhile.
        files = [file for file in lake.files() if file.day == day]
        rows = checksum = 0
        for hashes in _hashes(lake, files):
            rows += len(hashes)
            checksum += sum(hash_ for _, hash_ in hashes)
        why = _drop(session, lake, day, rows, checksum)
        if why is not None:
            # The lake still has dead messages that were deleted since: only the rows show that.
            rows, checksum = _compared(lake, session, day, files)
            why = _drop(session, lake, day, rows, checksum)
        if why is None:
            summary.dropped.append(DroppedDay(day=day, rows=rows))
            return
    summary.kept[day] = why


def _drop(session: Session, lake: Lake, day: date, rows: int, checksum: int) -> str | None:
    with translated():
        values = (lake.id, day, rows, checksum)
        [[why]] = session.execute(statements.PRUNE_DAY, values).fetchall()
    return None if why is None else str(why)


def _compared(lake: Lake, session: Session, day: date, files: list[LakeFile]) -> tuple[int, int]:
    """Return number and sum of the hashes in PostgreSQL; the lake must have each row exactly once.

    Rows are held for a range of ids at a time: a day may have more than fit into memory.
    """
    rows = checksum = wrong = 0
    first: int | None = None
    here: dict[int, int]
    with translated(), session.transaction(), session.cursor(name="hashes") as cursor:
        cursor.itersize = _ROWS
        hashes = iter(cursor.execute(statements.ARCHIVE_HASHES, (day,)))
        while here := dict(itertools.islice(hashes, _HELD)):
            rows += len(here)
            checksum += sum(here.values())
            if lacking := _lacking(lake, day, files, here):
                wrong += len(lacking)
                first = lacking[0] if first is None else first
    if wrong:
        raise LakeError(
            f"{lake.location} does not have {wrong} messages of {day} as they are in "
            f"PostgreSQL, the first is message {first}: {day} was kept"
        )
    return rows, checksum


def _lacking(lake: Lake, day: date, files: list[LakeFile], here: dict[int, int]) -> list[int]:
    """Return the ids, in their order, whose hash the lake does not have."""
    is_right: dict[int, bool] = {}
    ids = pc.field("id")
    for hashes in _hashes(lake, files, (ids >= min(here)) & (ids <= max(here))):
        for id_, hash_ in hashes:
            if id_ in is_right:
                raise LakeError(f"{lake.location} has message {id_} of {day} twice: {day} was kept")
            if id_ in here:  # else it was deleted: there may be many
                is_right[id_] = hash_ == here[id_]
    return [id_ for id_ in here if not is_right.get(id_)]


def _hashes(
    lake: Lake, files: Iterable[LakeFile], condition: Any = None
) -> Iterator[list[tuple[int, int]]]:
    """Give id and hash of each row that meets a condition, a list for each batch of a file."""
    for file in files:
        with lake.storage.reading(file.path):
            scanner = lake.dataset(files=[file]).scanner(
                columns=_HASHED, filter=condition, batch_size=_ROWS, use_threads=False
            )
            yield from map(_hashed, scanner.to_batches())


def _hashed(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    columns = []
    for name in _HASHED:
        column = batch.column(name)
        absent = "~" if pa.types.is_string(column.type) else "-1"
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        columns.append(column.cast(pa.string()).fill_null(absent))
    joined = pc.binary_join_element_wise(*columns, _SEPARATOR)
    hashes = (
        hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8]
        for text in joined.to_pylist()
    )
    numbers = (int.from_bytes(digest, "big", signed=True) for digest in hashes)
    return list(zip(batch.column("id").to_pylist(), numbers, strict=True))
