"""Prune: days leave PostgreSQL once the lake, as it is read back, has every row of them."""

from __future__ import annotations

import hashlib
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.errors import LakeError
from notifyq.spark import statements
from notifyq.spark.connection import connect
from notifyq.spark.failures import translated
from notifyq.spark.lake import ARCHIVE, Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from psycopg import Connection

_SEPARATOR = "\x1f"
_ABSENT = "~"
# As notifyq.archive_hashes() puts them together, and what stands for null.
_HASHED = {
    "id": None,
    "type": _ABSENT,
    "status": None,
    "priority": None,
    "attempts": None,
    "max_attempts": "-1",
    "key": _ABSENT,
    "dedup_key": _ABSENT,
    "created_at": None,
    "available_at": None,
    "locked_at": "-1",
    "archived_at": None,
    "lock_token": None,
    "xid": None,
    "handled_by": _ABSENT,
    "subscriber": _ABSENT,
    "event_id": "-1",
    "message": None,
    "headers": None,
    "details": _ABSENT,
    "result": _ABSENT,
    "queue": None,
}
_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedDay:
    """A day that PostgreSQL no longer has."""

    day: date
    rows: int


@dataclass(slots=True, kw_only=True)
class PruneSummary:
    """What was dropped, and what was kept and why."""

    dropped: list[DroppedDay] = field(default_factory=list)
    kept: dict[date, str] = field(default_factory=dict)


def verify(dsn: str, lake: str | Path, *, dataset: str = ARCHIVE) -> int:
    """Read all files of a table of a lake and return how many are as they were written.

    Raises LakeError for the first that is not.
    """
    target = Lake(dsn, lake)
    files = target.files(dataset)
    for file in files:
        with _reading(target, file):
            digest = hashlib.sha256()
            with (target.root / file.path).open("rb") as opened:
                while chunk := opened.read(1 << 20):
                    digest.update(chunk)
        if digest.hexdigest() != file.checksum:
            raise LakeError(f"{target.root / file.path} is not as it was written: restore it")
    return len(files)


def prune(dsn: str, lake: str | Path, *, keep_days: int = 1) -> PruneSummary:
    """Drop days of the archive that are over, and that the lake has all of.

    The files are read back, and compared row by row with what PostgreSQL has, before each day goes.
    Today and `keep_days` days before stay. Raises LakeError where the lake lacks a row or has
    another in its place; that day stays.
    """
    target = Lake(dsn, lake)
    summary = PruneSummary()
    until = datetime.now(UTC).date() - timedelta(days=keep_days)
    by_day: dict[date | None, list[LakeFile]] = {}
    for file in target.files():
        by_day.setdefault(file.day, []).append(file)
    with closing(connect(dsn, name="notifyq prune")) as session:
        with translated():
            days = [row[0] for row in session.execute(statements.ARCHIVE_DAYS)]
        for day in days:
            if day < until:
                _prune_day(target, session, day, by_day.get(day, []), summary)
    return summary


def _prune_day(
    lake: Lake, session: Connection[Any], day: date, files: list[LakeFile], summary: PruneSummary
) -> None:
    with translated():
        [[why]] = session.execute(statements.PRUNE_OBSTACLE, (lake.id, day)).fetchall()
    if why is None:
        rows = checksum = 0
        for hashes in _hashes(lake, files):
            rows += len(hashes)
            checksum += sum(hash_ for _, hash_ in hashes)
        why = _drop(session, lake, day, rows, checksum)
        if why is not None:
            # Dead messages that were deleted since are in the lake still: this is told by the rows.
            found = _compared(lake, session, day, files)
            rows = len(found)
            why = _drop(session, lake, day, rows, sum(found.values()))
        if why is None:
            summary.dropped.append(DroppedDay(day=day, rows=rows))
            return
    summary.kept[day] = why


def _drop(session: Connection[Any], lake: Lake, day: date, rows: int, checksum: int) -> str | None:
    with translated():
        values = (lake.id, day, rows, checksum)
        [[why]] = session.execute(statements.PRUNE_DAY, values).fetchall()
    return None if why is None else str(why)


def _compared(
    lake: Lake, session: Connection[Any], day: date, files: list[LakeFile]
) -> dict[int, int]:
    """The rows of the day in PostgreSQL, all of which the lake must have, and once."""
    with translated():
        here = dict(session.execute(statements.ARCHIVE_HASHES, (day,)).fetchall())
    there: dict[int, int] = {}
    for hashes in _hashes(lake, files):
        for id_, hash_ in hashes:
            if id_ in there:
                raise LakeError(f"{lake.root} has message {id_} of {day} twice: {day} was kept")
            there[id_] = hash_
    if wrong := sorted(id_ for id_, hash_ in here.items() if there.get(id_) != hash_):
        raise LakeError(
            f"{lake.root} does not have {len(wrong)} messages of {day} as they are here, the first "
            f"is message {wrong[0]}: {day} was kept"
        )
    return here


def _hashes(lake: Lake, files: Iterable[LakeFile]) -> Iterator[list[tuple[int, int]]]:
    """The id and the hash of each row of the files."""
    for file in files:
        with _reading(lake, file):
            scanner = lake.dataset(files=[file]).scanner(
                columns=list(_HASHED), batch_size=_ROWS, use_threads=False
            )
            found = [pair for batch in scanner.to_batches() for pair in _hashed(batch)]
        yield found


def _hashed(batch: pa.RecordBatch) -> list[tuple[int, int]]:
    columns = []
    for name, absent in _HASHED.items():
        column = batch.column(name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        column = column.cast(pa.string())
        columns.append(column if absent is None else column.fill_null(absent))
    joined = pc.binary_join_element_wise(*columns, _SEPARATOR, null_handling="skip")
    hashes = (
        hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8]
        for text in joined.to_pylist()
    )
    numbers = (int.from_bytes(digest, "big", signed=True) for digest in hashes)
    return list(zip(batch.column("id").to_pylist(), numbers, strict=True))


class _reading:  # noqa: N801  reads as a phrase
    """Tells of a file that cannot be read by its name."""

    def __init__(self, lake: Lake, file: LakeFile) -> None:
        self._path = lake.root / file.path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowException):
            reason = str(error).partition("\n")[0]
            raise LakeError(f"{self._path} cannot be read: {reason}") from None
