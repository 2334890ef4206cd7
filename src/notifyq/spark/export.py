"""Export: what was archived since the last time, from PostgreSQL into a lake, each message once.

One transaction at `repeatable read` holds the lake and the window: from what the lake has to what
the transaction sees. Tasks read it under the same snapshot, each a part of one day, and write files
of their own. The list of files and the new place of the lake are what the transaction writes. Ended
anywhere before, it leaves files that nobody knows, and is done again from where the lake is.
"""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.spark import delta, statements
from notifyq.spark.connection import arrow_transaction, connect
from notifyq.spark.engine import Engine, LocalEngine
from notifyq.spark.failures import translated
from notifyq.spark.files import FileWriter, WrittenFile, remove
from notifyq.spark.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake
from notifyq.spark.shares import together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from notifyq.spark.mark import Root

_FEW = 50_000
"""Rows of a day that are looked up by their index; of more, whole blocks of its table are read."""
_LEAST_BLOCKS, _MOST_BLOCKS = 2_048, 131_072
"""Blocks that a task reads: 16 MiB to 1 GiB."""
_GATHERED = 64 * 1024 * 1024
"""Bytes of rows that a task holds before it writes them, as groups of some size."""
_OPEN = 64
"""Files that a task writes at the same time, one for each queue."""
_COLUMNS = (*ARCHIVE_SCHEMA.names, "queue")
_READ_SCHEMA = ARCHIVE_SCHEMA.append(pa.field("queue", pa.string()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """What one export did."""

    lake: str
    batch: int | None
    """None: nothing had been archived since the last time."""
    rows: int
    files: int
    bytes: int
    days: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTask:
    """What one task reads and writes: some days, or some blocks of one."""

    dsn: str = field(repr=False)
    home: Root
    snapshot: str
    by_block: bool
    queries: tuple[tuple[date, str], ...]


def export(
    dsn: str,
    lake: str | Path,
    *,
    engine: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ExportSummary:
    """Export what was archived since the last time into the lake of a folder, which it may make.

    `on_progress` hears how many rows are written so far. Whatever ends this, the lake is as it was
    before, or has all of it: call it again. Raises LakeError where a file is not seen.
    """
    since = time.monotonic()
    used: Engine = engine or LocalEngine()
    target = Lake.create(dsn, lake)
    delta.check(target)
    target.look()
    written: list[WrittenFile] = []
    told: list[WrittenFile] = []
    done = 0

    def count(files: Sequence[WrittenFile]) -> None:
        nonlocal done
        told.extend(files)
        done += sum(file.rows for file in files)
        if on_progress is not None:
            on_progress(done)

    with closing(connect(dsn, name="notifyq export")) as session, target.held(session) as held:
        place, low = held
        with translated():
            row = session.execute(statements.HERE).fetchone()
            place, high, snapshot = row or ("", "", "")
            parts = session.execute(statements.ARCHIVE_PARTS, (low, high, _FEW)).fetchall()
        tasks = list(_tasks(parts, low, high, used.slots, dsn, target.home, snapshot))
        try:
            for files in used.run(tasks, write_task, on_done=count):
                written.extend(files)
        except BaseException:
            remove(target.root, told)
            raise
        # Without a row the place stays: it would only make the list of batches longer.
        batch = target.commit(session, written, place=place) if written else None
    delta.mirror(target)
    return ExportSummary(
        lake=str(target.root),
        batch=batch,
        rows=done,
        files=len(written),
        bytes=sum(file.bytes for file in written),
        days=len({file.day for file in written}),
        seconds=time.monotonic() - since,
    )


def _tasks(
    parts: Sequence[tuple[Any, ...]],
    low: str,
    high: str,
    slots: int,
    dsn: str,
    home: Root,
    snapshot: str,
) -> Iterator[ExportTask]:
    """Share the parts out: large days are split, small ones put together, the largest go first."""
    large = [(day, first, until) for day, rows, first, until in parts if rows is None]
    total = sum(until - first for _, first, until in large)
    share = min(max(-(-total // (2 * slots)), _LEAST_BLOCKS), _MOST_BLOCKS)
    pieces = [
        (until - first, (day, statements.archive_rows(_COLUMNS, low, high, day, (first, until))))
        for day, begin, end in sorted(large, key=lambda part: part[1] - part[2])
        for first, until in _pieces(begin, end, share)
    ]
    few = [
        (rows, (day, statements.archive_rows(_COLUMNS, low, high, day)))
        for day, rows, _, _ in parts
        if rows is not None
    ]
    for by_block, sized, most in ((True, pieces, share), (False, few, _FEW)):
        for queries in together(sized, most):
            yield ExportTask(
                dsn=dsn, home=home, snapshot=snapshot, by_block=by_block, queries=tuple(queries)
            )


def _pieces(first: int, until: int, share: int) -> Iterator[tuple[int, int]]:
    number = -(-(until - first) // share)
    edges = [first + (until - first) * piece // number for piece in range(number + 1)]
    return itertools.pairwise(edges)


def write_task(task: ExportTask) -> list[WrittenFile]:
    """Read the rows of a task and write them into files of this attempt."""
    with (
        translated(),
        arrow_transaction(task.dsn, name="notifyq export") as run,
        _Files(task.home) as files,
    ):
        for statement in statements.under(task.snapshot, by_block=task.by_block):
            run(statement)
        for day, query in task.queries:
            gathered: list[pa.RecordBatch] = []
            for batch in run(query):
                gathered.append(pa.RecordBatch.from_arrays(batch.columns, schema=_READ_SCHEMA))
                if sum(it.nbytes for it in gathered) >= _GATHERED:
                    files.write(day, gathered)
                    gathered = []
            files.write(day, gathered)
        return files.close()


class _Files:
    """The files of one attempt, one for each day and queue; few of them are open at a time."""

    def __init__(self, home: Root) -> None:
        self._home = home
        self._open: dict[tuple[date, str], FileWriter] = {}
        self._written: list[WrittenFile] = []

    def write(self, day: date, batches: Sequence[pa.RecordBatch]) -> None:
        if not sum(batch.num_rows for batch in batches):
            return
        table = pa.Table.from_batches(batches)
        queues = table.column("queue").combine_chunks().dictionary_encode()
        table = table.drop_columns(["queue"])
        if len(queues.dictionary) == 1:
            self._file(day, queues.dictionary[0].as_py()).write(table)
            return
        order = pc.sort_indices(queues.indices)
        counts = {it["values"]: it["counts"] for it in pc.value_counts(queues.indices).to_pylist()}
        ordered = table.take(order)
        first = 0
        for code in sorted(counts):
            queue = queues.dictionary[code].as_py()
            self._file(day, queue).write(ordered.slice(first, counts[code]))
            first += counts[code]

    def _file(self, day: date, queue: str) -> FileWriter:
        key = (day, queue)
        file = self._open.pop(key, None)
        if file is None:
            if len(self._open) >= _OPEN:
                oldest = next(iter(self._open))
                self._written.append(self._open.pop(oldest).close())
            file = FileWriter(self._home, ARCHIVE, ARCHIVE_SCHEMA, day=day, queue=queue)
        self._open[key] = file  # the last one now
        return file

    def close(self) -> list[WrittenFile]:
        while self._open:
            key = next(iter(self._open))
            self._written.append(self._open[key].close())
            del self._open[key]
        return self._written

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        for file in self._open.values():
            file.abandon()
        if kind is not None:
            remove(Path(self._home.path), self._written)
