"""Tidy: merge small files of a lake, and delete files that no reader needs any more."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.errors import LakeError
from notifyq.spark import statements
from notifyq.spark.connection import connect, opened
from notifyq.spark.engine import groups_of
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.lake import Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    import pyarrow as pa

    from notifyq.spark.lake.files import WrittenFile
    from notifyq.spark.lake.storage import Location

_SMALL = 32 * 1024 * 1024
_LARGEST = 128 * 1024 * 1024
_ROWS = 131_072
A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TidySummary:
    """What was merged and deleted."""

    replaced: int
    """Small files that were replaced by larger ones."""
    written: int
    deleted: int
    """Files that had been replaced before, or are not listed."""


def tidy(
    dsn: str,
    lake: Location,
    *,
    least_files: int = 4,
    older_than: timedelta = A_DAY,
) -> TidySummary:
    """Merge small files of each day and queue of all tables, and delete leftovers.

    Running readers continue with the files that they know: a file is deleted `older_than` after it
    was replaced, or after a run that was killed wrote it.
    """
    target = Lake(dsn, lake)
    tables = target.tables()
    mirrors.check(target, *tables)
    replaced = written = 0
    with closing(connect(dsn, name="notifyq tidy")) as session:
        for table in tables:
            for day in sorted({file.day for file in target.files(table) if file.day is not None}):
                with target.held(session):
                    groups = list(_groups(target.files(table), day, least_files))
                    new = [_merged(target, table, group) for group in groups]
                    old = [file.id for group in groups for file in group]
                    if new:
                        # Last: other writers of the lake wait until the transaction ends.
                        target.commit(session, new, dataset=table, removed=old)
                replaced += len(old)
                written += len(new)
            mirrors.follow(target, table)
    mirrors.tidy(target)
    return TidySummary(replaced=replaced, written=written, deleted=_delete(dsn, target, older_than))


def _groups(files: list[LakeFile], day: date, least_files: int) -> Iterator[list[LakeFile]]:
    """Give groups of small files of one queue and day, each enough for a large file."""
    by_queue: dict[str | None, list[tuple[int, LakeFile]]] = defaultdict(list)
    for file in files:
        if file.day == day and file.bytes < _SMALL:
            by_queue[file.queue].append((file.bytes, file))
    for small in by_queue.values():
        if len(small) < least_files:
            continue
        yield from (group for group in groups_of(small, _LARGEST) if len(group) > 1)


def _merged(lake: Lake, table: str, group: list[LakeFile]) -> WrittenFile:
    rows = sum(file.rows for file in group)
    with lake.writer(table, group) as file:
        for batch in _batches(lake, table, group, file.columns):
            file.write(batch)
        if file.rows != rows:
            raise LakeError(
                f"{lake.location} has {file.rows} rows of {group[0].day} where {rows} were "
                "written: `notifyq spark export --verify` finds the damaged file"
            )
        return file.close()


def _batches(
    lake: Lake, table: str, group: list[LakeFile], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    scanner = lake.dataset(table, group).scanner(
        columns=columns, batch_size=_ROWS, use_threads=False
    )
    with lake.storage.reading(group[0].path):
        yield from scanner.to_batches()


def _delete(dsn: str, lake: Lake, older_than: timedelta) -> int:
    removed = _removed(dsn, lake, older_than)
    leftovers = [(id_, path) for id_, path, is_old in removed if is_old]
    deleted = sum(lake.storage.delete(path) for _, path in leftovers)
    before = time.time() - older_than.total_seconds()
    for table in lake.storage.tables():
        found = [name for name, modified in lake.storage.data(table) if modified < before]
        if not found:
            continue
        # In this order: a file that is replaced between the two is in the first one.
        known = {file.path for file in lake.files(table)}
        known |= {path for _, path, _ in _removed(dsn, lake, older_than)}
        deleted += sum(lake.storage.delete(name) for name in found if name not in known)
    # Last: without its row, a replaced file would count as one that was never listed.
    with opened(dsn, name="notifyq tidy") as session:
        session.execute(statements.FORGET_FILES, (lake.id, [id_ for id_, _ in leftovers]))
    return deleted


def _removed(dsn: str, lake: Lake, older_than: timedelta) -> list[tuple[int, str, bool]]:
    """Return number and path of each replaced file, and whether no reader needs it any more."""
    with opened(dsn, name="notifyq tidy") as session:
        return session.execute(statements.LAKE_REMOVED, (older_than, lake.id)).fetchall()
