"""`rollup`: count what came into a lake since the last time, exactly once, wherever it is ended.

Tasks count files, the driver adds up what they found, and one transaction takes it over with the
note of how far it came: until then nothing is visible, and from then on it is not repeated.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import class_row, dict_row, namedtuple_row

from notifyq.errors import LakeError
from notifyq.spark import statements
from notifyq.spark.connection import connect
from notifyq.spark.counts import COLUMNS, Counts, count, merge, records, rollup_table
from notifyq.spark.delta import mirror
from notifyq.spark.engine import LocalEngine
from notifyq.spark.failures import demand, translated
from notifyq.spark.files import FileWriter, remove
from notifyq.spark.lake import ARCHIVE_SCHEMA, Lake, LakeFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import date

    from psycopg import Connection

    from notifyq.spark.engine import Engine
    from notifyq.spark.files import WrittenFile
    from notifyq.spark.mark import Root

ROLLUP = "rollup"
"""The table of the lake that has the counts, as notifyq.rollup has them."""

_MOST_AT_ONCE = 20_000_000
"""Messages in one transaction: what was counted has to fit into memory."""
_ROWS = 500_000
"""Messages that a task holds at a time."""
_CHUNK = 2000
"""Rows of a roll-up in one statement."""

_SCHEMA = pa.schema(
    [
        pa.field("span", pa.string()),
        pa.field("bucket_at", pa.timestamp("us", "UTC")),
        pa.field("queue", pa.string()),
        pa.field("type", pa.string()),
        pa.field("status", pa.string()),
        *(
            pa.field(name, pa.int64())
            for name in (
                "finished", "retried", "attempts", "waited", "wait_total_us", "wait_max_us",
            )
        ),
        pa.field("wait_bins", pa.list_(pa.int32())),
        pa.field("wait_counts", pa.list_(pa.int64())),
        *(pa.field(name, pa.int64()) for name in ("ran", "run_total_us", "run_max_us")),
        pa.field("run_bins", pa.list_(pa.int32())),
        pa.field("run_counts", pa.list_(pa.int64())),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class RollupResult:
    """What a roll-up did."""

    lake: int
    batches: int
    files: int
    messages: int
    groups: int
    """Rows of notifyq.rollup that the messages went into."""
    seconds: float
    is_behind: bool = False
    """Whether somebody else rolled up the same lake meanwhile, so that this one stopped."""


@dataclass(frozen=True)
class _Part:
    """Files that one task counts."""

    home: Root
    files: tuple[tuple[str, str | None, int], ...]
    """Of each its path, its queue, and how many rows it has."""


def rollup(
    dsn: str,
    location: str | Path,
    *,
    engine: Engine | None = None,
    rebuild: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> RollupResult:
    """Count the messages that came into a lake since the last roll-up.

    The counts go to notifyq.rollup, rollup_error and rollup_worker, and to the table `rollup` of
    the lake. `rebuild` forgets those that are there first. `on_progress` hears how many messages
    are counted, and of how many.
    """
    engine = engine or LocalEngine()
    lake = Lake(dsn, location)
    began = time.monotonic()
    done = RollupResult(lake.id, 0, 0, 0, 0, 0.0)
    with connect(dsn, name="notifyq spark rollup") as session:
        demand(session, statements.ROLLING_UP)
        if rebuild:
            with translated():
                session.execute(statements.FORGET_ROLLUP, (lake.id,))
        after, batches = _pending(session, lake)
        total = sum(batch.rows for batch in batches if not batch.removed)
        for chosen in _sets(batches):
            files = _files(session, chosen)
            before = done.messages

            def tell(counts: Counts | None) -> None:
                nonlocal before
                before += counts.messages if counts else 0
                if on_progress is not None:
                    on_progress(before, total)

            parts = _parts(lake.home, files, engine.slots)
            found = merge(it for it in engine.run(parts, _count, on_done=tell) if it is not None)
            upto = chosen[-1].id
            groups = _commit(session, lake, found, after, upto)
            if groups is None:
                return replace(done, seconds=time.monotonic() - began, is_behind=True)
            done = replace(
                done,
                batches=done.batches + len(chosen),
                files=done.files + len(files),
                messages=done.messages + (found.messages if found else 0),
                groups=done.groups + groups,
            )
            after = upto
    # Also what a run that was killed has left to do.
    mirror(lake, ROLLUP)
    return replace(done, seconds=time.monotonic() - began)


def _pending(session: Connection[Any], lake: Lake) -> tuple[int, list[Any]]:
    """How far the lake is rolled up, and the batches behind that."""
    with translated(), session.cursor(row_factory=namedtuple_row) as cursor:
        row = session.execute(statements.ROLLED_UP, (lake.id,)).fetchone()
        after = 0 if row is None else int(row[0])
        return after, cursor.execute(statements.ROLLUP_BATCHES, (lake.id, after)).fetchall()


def _sets(batches: Sequence[Any]) -> Iterator[list[Any]]:
    """Batches that are taken over together."""
    chosen: list[Any] = []
    for batch in batches:
        if chosen and sum(it.rows for it in chosen) + batch.rows > _MOST_AT_ONCE:
            yield chosen
            chosen = []
        chosen.append(batch)
    if chosen:
        yield chosen


def _files(session: Connection[Any], batches: Sequence[Any]) -> list[Any]:
    # A batch that replaced files brought no message that was not there.
    grown = [batch.id for batch in batches if not batch.removed]
    with translated(), session.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(statements.ROLLUP_FILES, (grown,)).fetchall()


def _parts(home: Root, files: Sequence[Any], slots: int) -> list[_Part]:
    """Files in parts of about the same size, the largest first."""
    count_ = min(len(files), max(slots * 2, sum(it.rows for it in files) // (4 * _ROWS)))
    parts: list[list[tuple[str, str | None, int]]] = [[] for _ in range(count_)]
    sizes = [0] * count_
    for file in sorted(files, key=lambda it: -it.rows):
        place = sizes.index(min(sizes))
        parts[place].append((file.path, file.queue, file.rows))
        sizes[place] += max(1, file.rows)
    return [_Part(home, tuple(part)) for part in parts]


def _count(part: _Part) -> Counts | None:
    """Count the messages of some files: the task of both engines."""
    root = part.home.check()
    return merge(
        count(table) for path, queue, rows in part.files
        for table in _tables(root / path, queue, rows)
    )  # fmt: skip


def _tables(path: Path, queue: str | None, rows: int) -> Iterator[Any]:
    try:
        with pq.ParquetFile(path) as file:
            known = set(file.schema_arrow.names)
            if file.metadata.num_rows != rows:
                raise LakeError(f"{path} has {file.metadata.num_rows} rows and not {rows}")
            wanted = [name for name in COLUMNS if name in known]
            for batch in file.iter_batches(_ROWS, columns=wanted):
                table = pa.Table.from_batches([batch])
                for name in set(COLUMNS) - known:
                    value = (
                        pa.repeat(pa.scalar(queue, pa.string()), len(table))
                        if name == "queue"
                        else pa.nulls(len(table), ARCHIVE_SCHEMA.field(name).type)
                    )
                    table = table.append_column(name, value)
                yield table
    except FileNotFoundError:
        raise LakeError(
            f"{path} is gone: files that were replaced are kept for a day; count all of the lake "
            "anew with --rebuild"
        ) from None
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {error}") from None


def _commit(
    session: Connection[Any], lake: Lake, found: Counts | None, after: int, upto: int
) -> int | None:
    """Take over what was counted; None if somebody else did."""
    with translated(), session.transaction():
        row = session.execute(statements.ROLL_UP, (lake.id, after, upto)).fetchone()
        if row is None or not row[0]:
            return None
        if found is None:
            return 0
        rows = rollup_table(found)
        for chunk in _chunks(rows):
            session.execute(statements.ADD_ROLLUP, (lake.id, chunk, "[]", "[]"))
        # What belongs together, together: of each bucket the most frequent are kept.
        for chunk in _chunks(found.errors.sort_by(_order("bucket_at", "queue", "status"))):
            session.execute(statements.ADD_ROLLUP, (lake.id, "[]", chunk, "[]"))
        for chunk in _chunks(found.workers.sort_by(_order("bucket_at", "queue")), 10 * _CHUNK):
            session.execute(statements.ADD_ROLLUP, (lake.id, "[]", "[]", chunk))
        _publish(session, lake, found.days)
        return len(rows)


def _order(*names: str) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in names]


def _chunks(table: Any, size: int = _CHUNK) -> Iterator[str]:
    for start in range(0, len(table), size):
        yield json.dumps(records(table.slice(start, size)), separators=(",", ":"))


def _publish(session: Connection[Any], lake: Lake, days: Iterable[date]) -> None:
    """Write the days that changed to the lake, in place of what it had of them."""
    files: list[WrittenFile] = []
    chosen = list(days)
    for day in chosen:
        with session.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(statements.ROLLUP_DAY, (lake.id, day, day)).fetchall()
        try:
            with FileWriter(
                lake.home, ROLLUP, _SCHEMA, day=day, id_column=None, time_column="bucket_at"
            ) as writer:
                writer.write(pa.Table.from_pylist(rows, _SCHEMA))
                files.append(writer.close())
        except OSError:
            remove(lake.root, files)
            raise
    with session.cursor(row_factory=class_row(LakeFile)) as cursor:
        old = cursor.execute(statements.LAKE_FILES, (lake.id, ROLLUP)).fetchall()
    replaced = [it.id for it in old if it.day in set(chosen)]
    lake.commit(session, files, dataset=ROLLUP, removed=replaced)
