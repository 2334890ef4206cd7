"""Prune: drop days from PostgreSQL once the files of a lake are proved to have all their rows."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

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
            found = _compared(lake, session, day, files)
            rows = len(found)
            why = _drop(session, lake, day, rows, sum(found.values()))
        if why is None:
            summary.dropped.append(DroppedDay(day=day, rows=rows))
            return
    summary.kept[day] = why


def _drop(session: Session, lake: Lake, day: date, rows: int, checksum: int) -> str | None:
    with translated():
        values = (lake.id, day, rows, checksum)
        [[why]] = session.execute(statements.PRUNE_DAY, values).fetchall()
    return None if why is None else str(why)


def _compared(lake: Lake, session: Session, day: date, files: list[LakeFile]) -> dict[int, int]:
    """Return the hashes of the day's rows in PostgreSQL; the lake must have each exactly once."""
    with translated():
        here: dict[int, int] = dict(session.execute(statements.ARCHIVE_HASHES, (day,)).fetchall())
    there: dict[int, int] = {}
    for hashes in _hashes(lake, files):
        for id_, hash_ in hashes:
            if id_ in there:
                raise LakeError(f"{lake.location} has message {id_} of {day} twice: {day} was kept")
            there[id_] = hash_
    if wrong := sorted(id_ for id_, hash_ in here.items() if there.get(id_) != hash_):
        raise LakeError(
            f"{lake.location} does not have {len(wrong)} messages of {day} as they are in "
            f"PostgreSQL, the first is message {wrong[0]}: {day} was kept"
        )
    return here


def _hashes(lake: Lake, files: Iterable[LakeFile]) -> Iterator[list[tuple[int, int]]]:
    """Give id and hash of each row, a list for each batch of a file."""
    for file in files:
        with lake.storage.reading(file.path):
            scanner = lake.dataset(files=[file]).scanner(
                columns=_HASHED, batch_size=_ROWS, use_threads=False
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
