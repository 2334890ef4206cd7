"""Tidy: small files of a lake are put together, and what no reader needs any more is deleted."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.errors import LakeError
from notifyq.spark import delta, statements
from notifyq.spark.connection import connect
from notifyq.spark.failures import translated
from notifyq.spark.files import FileWriter, WrittenFile
from notifyq.spark.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date
    from pathlib import Path

_SMALL = 32 * 1024 * 1024
_LARGEST = 128 * 1024 * 1024
_ROWS = 131_072
A_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TidySummary:
    """What was put together, and what was deleted."""

    replaced: int
    """Small files that larger ones have replaced."""
    written: int
    deleted: int
    """Files that had been replaced, or were of no batch."""


def tidy(
    dsn: str, lake: str | Path, *, least_files: int = 4, older_than: timedelta = A_DAY
) -> TidySummary:
    """Put small files of the archive together where a day and queue has some, and delete leftovers.

    Readers that have begun go on with the files that they know: a file is deleted `older_than`
    after it was replaced, or after a run that was killed has written it.
    """
    target = Lake(dsn, lake)
    replaced = written = 0
    with closing(connect(dsn, name="notifyq tidy")) as session:
        for day in sorted({file.day for file in target.files() if file.day is not None}):
            with target.held(session):
                for group in _groups(target.files(), day, least_files):
                    new = _together(target, group)
                    target.commit(session, [new], removed=[file.id for file in group])
                    replaced += len(group)
                    written += 1
    delta.mirror(target)
    return TidySummary(replaced=replaced, written=written, deleted=_delete(dsn, target, older_than))


def _groups(files: list[LakeFile], day: date, least_files: int) -> Iterator[list[LakeFile]]:
    """Give small files of each queue of a day, as many as make a large one."""
    by_queue: dict[str | None, list[LakeFile]] = {}
    for file in files:
        if file.day == day and file.bytes < _SMALL:
            by_queue.setdefault(file.queue, []).append(file)
    for small in by_queue.values():
        if len(small) < least_files:
            continue
        group: list[LakeFile] = []
        for file in small:
            if sum(it.bytes for it in group) + file.bytes > _LARGEST:
                yield group
                group = []
            group.append(file)
        if len(group) > 1:
            yield group


def _together(lake: Lake, group: list[LakeFile]) -> WrittenFile:
    rows = sum(file.rows for file in group)
    batches = lake.dataset(files=group).scanner(
        columns=ARCHIVE_SCHEMA.names, batch_size=_ROWS, use_threads=False
    )
    first = group[0]
    with FileWriter(lake.home, ARCHIVE, ARCHIVE_SCHEMA, day=first.day, queue=first.queue) as file:
        for batch in batches.to_batches():
            file.write(batch)
        if file.rows != rows:
            raise LakeError(
                f"{lake.root} has {file.rows} messages of {first.day} where {rows} were written: "
                "`notifyq spark export --verify` tells of which file"
            )
        return file.close()


def _delete(dsn: str, lake: Lake, older_than: timedelta) -> int:
    with closing(connect(dsn, name="notifyq tidy")) as session, translated():
        removed = session.execute(statements.LAKE_REMOVED, (older_than, lake.id)).fetchall()
    known = {path for _, path, _ in removed}
    # What was replaced is forgotten last: without its row it would be a file of no batch.
    leftovers = [(id_, path) for id_, path, is_old in removed if is_old]
    deleted = 0
    for _, path in leftovers:
        deleted += _unlink(lake.root / path)
    before = time.time() - older_than.total_seconds()
    for folder in (it for it in lake.root.iterdir() if it.is_dir()):
        found = [it for it in folder.rglob("part-*.parquet") if it.stat().st_mtime < before]
        current = {file.path for file in lake.files(folder.name)}
        for path in found:
            name = path.relative_to(lake.root).as_posix()
            if name not in current and name not in known:
                deleted += _unlink(path)
    with closing(connect(dsn, name="notifyq tidy")) as session, translated():
        session.execute(statements.FORGET_FILES, (lake.id, [id_ for id_, _ in leftovers]))
    return deleted


def _unlink(path: Path) -> int:
    try:
        path.unlink()
    except FileNotFoundError:
        return 0
    return 1
