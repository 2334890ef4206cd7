"""Export: newly archived messages, from PostgreSQL into a lake, each exactly once.

One transaction at `repeatable read` locks the lake and fixes the window: from the snapshot of the
lake to its own. Tasks read the window under the same snapshot, each a part of one day, and write
files. The transaction then commits the list of files and the new position. A crash before that
leaves unlisted files, and the next export starts from the same position.
"""

from __future__ import annotations

import itertools
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from notifyq.spark import statements
from notifyq.spark.connection import arrow_transaction, connect, translated
from notifyq.spark.engine import Engine, LocalEngine, groups_of
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.files import FileWriter, WrittenFile, remove
from notifyq.spark.lake.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import date

    from notifyq.spark.lake.mark import Root
    from notifyq.spark.lake.storage import Location

_FEW = 50_000
"""Up to so many rows of a day are read by an index; for more, blocks of its table are read."""
_LEAST_BLOCKS, _MOST_BLOCKS = 2_048, 131_072
"""Blocks that a task reads: 16 MiB to 1 GiB."""
_BUFFER = 64 * 1024 * 1024
"""Bytes of rows that a task buffers: row groups must not be small."""
_OPEN = 64
"""Files that a task has open at once, one for each queue."""
_COLUMNS = (*ARCHIVE_SCHEMA.names, "queue")
_READ_SCHEMA = ARCHIVE_SCHEMA.append(pa.field("queue", pa.string()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSummary:
    """The result of one export."""

    lake: str
    batch: int | None
    """None: there were no new messages."""
    rows: int
    files: int
    bytes: int
    days: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTask:
    """The work of one task: some days, or some blocks of one."""

    dsn: str = field(repr=False)
    home: Root
    snapshot: str
    by_block: bool
    queries: tuple[tuple[date, str], ...]


def export(
    dsn: str,
    lake: Location,
    *,
    engine: Engine | None = None,
    iceberg: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> ExportSummary:
    """Export newly archived messages into a lake; create the lake if it is missing.

    With `iceberg` the lake has Iceberg tables from then on, as it always has Delta tables.
    `on_progress` gets the number of rows written so far. After a crash the lake is unchanged or
    complete, and the export can run again. Raises LakeError where a file of the lake is missing.
    """
    since = time.monotonic()
    used: Engine = engine or LocalEngine()
    target = Lake.create(dsn, lake)
    if iceberg:
        mirrors.keep_iceberg(target)
    mirrors.check(target, ARCHIVE)
    target.check()
    reported: list[WrittenFile] = []

    def count(files: Sequence[WrittenFile]) -> None:
        reported.extend(files)
        if on_progress is not None:
            on_progress(sum(file.rows for file in reported))

    with closing(connect(dsn, name="notifyq export")) as session, target.held(session) as held:
        _, low = held
        with translated():
            row = session.execute(statements.HERE).fetchone()
            position, high, snapshot = row or ("", "", "")
            parts = session.execute(statements.ARCHIVE_PARTS, (low, high, _FEW)).fetchall()
        tasks = list(_tasks(parts, low, high, used.slots, dsn, target.home, snapshot))
        try:
            done = used.run(tasks, write_task, on_done=count)
        except BaseException:
            remove(target.storage, reported)
            raise
        written = [file for files in done for file in files]
        # Without rows the position stays: a batch without files would only lengthen the list.
        batch = target.commit(session, written, position=position) if written else None
    mirrors.follow(target)
    return ExportSummary(
        lake=target.location,
        batch=batch,
        rows=sum(file.rows for file in written),
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
    """Split large days into tasks and group small ones, the largest first."""
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
        for queries in groups_of(sized, most):
            yield ExportTask(
                dsn=dsn, home=home, snapshot=snapshot, by_block=by_block, queries=tuple(queries)
            )


def _pieces(first: int, until: int, share: int) -> Iterator[tuple[int, int]]:
    number = -(-(until - first) // share)
    edges = [first + (until - first) * piece // number for piece in range(number + 1)]
    return itertools.pairwise(edges)


def write_task(task: ExportTask) -> list[WrittenFile]:
    """Read the rows of a task and write them into new files."""
    with (
        translated(),
        arrow_transaction(task.dsn, name="notifyq export") as run,
        _Files(task.home) as files,
    ):
        for statement in statements.under(task.snapshot, by_block=task.by_block):
            run(statement)
        for day, query in task.queries:
            batches: list[pa.RecordBatch] = []
            for batch in run(query):
                batches.append(pa.RecordBatch.from_arrays(batch.columns, schema=_READ_SCHEMA))
                if sum(it.nbytes for it in batches) >= _BUFFER:
                    files.write(day, batches)
                    batches = []
            files.write(day, batches)
        return files.close()


class _Files:
    """The files of one attempt, one for each day and queue; few of them are open at once."""

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
                self._close_oldest()
            file = FileWriter(self._home, ARCHIVE, ARCHIVE_SCHEMA, day=day, queue=queue)
        self._open[key] = file  # now the latest
        return file

    def _close_oldest(self) -> None:
        key = next(iter(self._open))
        self._written.append(self._open[key].close())
        del self._open[key]

    def close(self) -> list[WrittenFile]:
        while self._open:
            self._close_oldest()
        return self._written

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        for file in self._open.values():
            file.abandon()
        if kind is not None:
            remove(self._home.storage, self._written)
