"""Forget: rewrite the files of a lake that have messages of a key, or with a payload."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.spark import statements
from notifyq.spark.connection import connect, translated
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.lake import ARCHIVE, Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq.archive.forget import Wanted
    from notifyq.spark.connection import Session
    from notifyq.spark.lake.files import FileWriter, WrittenFile
    from notifyq.spark.lake.storage import Location

_ROWS = 16_384
_KEYS = ("key", "dedup_key")
_SAMPLED = ("archived_at", "queue", "status", "details")
"""The columns that samples of errors in roll-ups are found by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetSummary:
    """What was deleted from a lake, or would be."""

    rows: int
    files: int
    """Files with such rows: each was replaced by one without them."""
    unsearched: tuple[str, ...]
    """Tables that have payloads and no queue, where only one queue was searched."""


def forget(
    dsn: str,
    location: Location,
    wanted: Wanted,
    *,
    dry_run: bool = False,
) -> ForgetSummary:
    """Replace each file of a lake that has such messages, a day at a time.

    Each day is committed as it is done: a run that was stopped is started again. The old files stay
    until `tidy` deletes them. What PostgreSQL still has about these messages is deleted first: the
    next run finds them in the lake. Forget them in PostgreSQL before: else the next export would
    bring them back.
    """
    lake = Lake(dsn, location)
    tables = lake.tables()
    mirrors.check(lake, *tables)
    rows = files = 0
    unsearched = []
    with (
        closing(connect(dsn, name="notifyq forget")) as session,
        closing(connect(dsn, name="notifyq forget")) as erasing,
    ):
        run = _Run(lake, session, erasing, wanted, is_dry=dry_run)
        for table in tables:
            listed = lake.files(table)
            if not listed or "message" not in lake.schema(table, listed).names:
                continue
            if wanted.queue is not None and table != ARCHIVE:
                unsearched.append(table)
                continue
            for day in sorted({str(it.day) for it in listed}):
                with lake.held(session):
                    found = run.forget_day(table, day)
                rows += sum(found)
                files += len(found)
            if not dry_run:
                mirrors.follow(lake, table)
    return ForgetSummary(rows=rows, files=files, unsearched=tuple(unsearched))


@dataclass(frozen=True, slots=True)
class _Run:
    """What one call searches with."""

    lake: Lake
    session: Session
    erasing: Session
    """Beside the transaction of the lake: each statement is one of its own."""
    wanted: Wanted
    is_dry: bool

    def forget_day(self, table: str, day: str) -> list[int]:
        """Return how many rows were found, for each file that has some."""
        found: list[int] = []
        replaced: list[int] = []
        written: list[WrittenFile] = []
        queue = self.wanted.queue
        for file in self.lake.files(table):
            if str(file.day) != day or (queue is not None and file.queue != queue):
                continue
            if self.is_dry:
                if count := sum(map(_number, self._masks(table, file))):
                    found.append(count)
                continue
            masks = enumerate(self._masks(table, file))
            first = next((number for number, mask in masks if _number(mask)), None)
            del masks  # what it has read ahead
            if first is None:
                continue
            count, new = self._without(table, file, first)
            found.append(count)
            replaced.append(file.id)
            if new is not None:
                written.append(new)
        if replaced:
            self.lake.commit(self.session, written, dataset=table, removed=replaced)
        return found

    def _masks(self, table: str, file: LakeFile) -> Iterator[Any]:
        batches = _batches(self.lake, table, file)
        return (_mask(self.session, batch, self.wanted) for batch in batches)

    def _without(self, table: str, file: LakeFile, first: int) -> tuple[int, WrittenFile | None]:
        """Write a file anew without such rows, which its first batches do not have.

        Return how many they are, and the new file; None: no other row is left.
        """
        count = 0
        writer: FileWriter | None = None
        with ExitStack() as stack:
            for number, batch in enumerate(_batches(self.lake, table, file)):
                kept = batch
                if number >= first:
                    mask = _mask(self.session, batch, self.wanted)
                    count += _number(mask)
                    kept = batch.filter(pc.invert(mask))
                    if table == ARCHIVE:
                        _erase(self.erasing, batch.filter(mask))
                if kept.num_rows:
                    writer = writer or stack.enter_context(self.lake.writer(table, [file]))
                    writer.write(kept)
            return count, None if writer is None else writer.close()


def _number(mask: Any) -> int:
    return pc.sum(mask).as_py() or 0


def _batches(lake: Lake, table: str, file: LakeFile) -> Iterator[pa.RecordBatch]:
    scanner = lake.dataset(table, [file]).scanner(batch_size=_ROWS, use_threads=False)
    with lake.storage.reading(file.path):
        yield from scanner.to_batches()


def _mask(session: Session, batch: pa.RecordBatch, wanted: Wanted) -> Any:
    """Return for each row whether it is to be forgotten."""
    mask = pa.repeat(pa.scalar(value=True), batch.num_rows)
    if wanted.key is not None:
        keys = [
            pc.equal(batch.column(name), wanted.key) for name in _KEYS if name in batch.schema.names
        ]
        mask = pa.repeat(pa.scalar(value=False), batch.num_rows)
        for one in keys:
            mask = pc.or_(mask, pc.fill_null(one, fill_value=False))
    if wanted.filter is not None and pc.any(mask).as_py():
        payloads = batch.column("message").filter(mask).to_pylist()
        with translated():
            values = (payloads, wanted.filter)
            [[matched]] = session.execute(statements.MATCH_PAYLOADS, values).fetchall()
        mask = pc.replace_with_mask(mask, mask, pa.array(matched, pa.bool_()))
    return mask


def _erase(session: Session, batch: pa.RecordBatch) -> None:
    """Delete what PostgreSQL still has: days that were pruned are only in the lake.

    Each call is a transaction. That of the lake would keep the rows locked until its day is done.
    """
    if not batch.num_rows:
        return
    failed = batch.filter(pc.is_valid(batch.column("details")))
    with translated():
        if failed.num_rows:
            values = [failed.column(name).to_pylist() for name in _SAMPLED]
            session.execute(statements.FORGET_SAMPLES, values)
        session.execute(statements.FORGET_ARCHIVED, (batch.column("id").to_pylist(),))
