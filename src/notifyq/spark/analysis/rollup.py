"""`rollup`: count the new messages of a lake, each exactly once, also after a crash.

Tasks count files and the driver adds up their counts. One transaction commits the counts together
with the number of the last batch: before it nothing is visible, after it nothing is counted again.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.rows import class_row, dict_row, namedtuple_row

from notifyq.errors import LakeError
from notifyq.spark import statements
from notifyq.spark.analysis.counts import COLUMNS, Counts, count, merge, records, rollup_table
from notifyq.spark.connection import connect, demand, translated
from notifyq.spark.engine import LocalEngine, groups_of
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.files import FileWriter, remove
from notifyq.spark.lake.lake import ARCHIVE, ARCHIVE_SCHEMA, Lake, LakeFile
from notifyq.spark.lake.stores import reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import date

    from notifyq.spark.connection import Session
    from notifyq.spark.engine import Engine
    from notifyq.spark.lake.files import WrittenFile
    from notifyq.spark.lake.lake import Listing
    from notifyq.spark.lake.mark import Root
    from notifyq.spark.lake.storage import Location, Storage

ROLLUP = "rollup"
"""The table of the lake with the rows of notifyq.rollup."""

_MOST_AT_ONCE = 20_000_000
"""Messages in one transaction: their counts must fit into memory."""
_ROWS = 500_000
"""Messages that a task holds at once."""
_CHUNK = 2000
"""Rows of a roll-up in one statement."""
_GONE = (
    "replaced files are kept for a day; run `notifyq spark rollup --rebuild` to count the whole "
    "lake again"
)

_SCHEMA = pa.schema(
    [
        ("span", pa.string()), ("bucket_at", pa.timestamp("us", "UTC")), ("queue", pa.string()),
        ("type", pa.string()), ("status", pa.string()),
        ("finished", pa.int64()), ("dead", pa.int64()), ("retried", pa.int64()),
        ("attempts", pa.int64()),
        ("waited", pa.int64()), ("wait_total_us", pa.int64()), ("wait_max_us", pa.int64()),
        ("wait_bins", pa.list_(pa.int32())), ("wait_counts", pa.list_(pa.int64())),
        ("ran", pa.int64()), ("run_total_us", pa.int64()), ("run_max_us", pa.int64()),
        ("run_bins", pa.list_(pa.int32())), ("run_counts", pa.list_(pa.int64())),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class RollupResult:
    """The result of a roll-up."""

    lake: int
    batches: int
    files: int
    messages: int
    groups: int
    """Rows of notifyq.rollup that were added or updated."""
    seconds: float
    is_behind: bool = False
    """Whether this one stopped since another session rolled up the same lake."""


_Group: TypeAlias = "tuple[Sequence[Any], Sequence[Any], int]"
"""Batches that are counted together, their files, and the last batch that is counted then."""


@dataclass(frozen=True)
class _Part:
    """Files that one task counts."""

    home: Root
    files: tuple[tuple[str, str | None, int], ...]
    """Path, queue and number of rows of each."""


def rollup(
    dsn: str,
    location: Location,
    *,
    engine: Engine | None = None,
    rebuild: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> RollupResult:
    """Count the messages that were added to a lake since the last roll-up.

    The counts go to notifyq.rollup, rollup_error and rollup_worker, and to the table `rollup` of
    the lake. `rebuild` forgets earlier counts first. `on_progress` gets the number of counted
    messages, and of all.
    """
    engine = engine or LocalEngine()
    lake = Lake(dsn, location)
    mirrors.check(lake, ROLLUP)
    began = time.monotonic()
    done = RollupResult(lake.id, 0, 0, 0, 0, 0.0)
    with connect(dsn, name="notifyq spark rollup") as session:
        demand(session, statements.ROLLING_UP)
        if rebuild:
            with translated():
                session.execute(statements.FORGET_ROLLUP, (lake.id,))
        after, batches = _pending(session, lake)
        groups: Iterable[_Group]
        if not after and (whole := _whole(lake, batches)):
            # One commit: the next run could not tell which of the files were counted.
            groups = [(batches, whole.files, whole.last)]
            total = sum(file.rows for file in whole.files)
        else:
            groups = _groups(session, lake, batches)
            total = sum(batch.rows for batch in batches if not batch.removed)
        counted = 0

        def report(counts: Counts | None) -> None:
            nonlocal counted
            counted += counts.messages if counts else 0
            if on_progress is not None:
                on_progress(counted, total)

        for chosen, files, upto in groups:
            parts = _parts(lake.home, files, engine.slots)
            found = merge(it for it in engine.run(parts, _count, on_done=report) if it is not None)
            added = _commit(session, lake, found, after, upto)
            if added is None:
                return replace(done, seconds=time.monotonic() - began, is_behind=True)
            done = replace(
                done,
                batches=done.batches + len(chosen),
                files=done.files + len(files),
                messages=done.messages + (found.messages if found else 0),
                groups=done.groups + added,
            )
            after = upto
    # Always: a run that was killed may not have updated the mirror.
    mirrors.follow(lake, ROLLUP)
    return replace(done, seconds=time.monotonic() - began)


def _pending(session: Session, lake: Lake) -> tuple[int, list[Any]]:
    """Return the last batch that is rolled up, and the batches after it."""
    with translated(), session.cursor(row_factory=namedtuple_row) as cursor:
        row = session.execute(statements.ROLLED_UP, (lake.id,)).fetchone()
        after = 0 if row is None else int(row[0])
        return after, cursor.execute(statements.ROLLUP_BATCHES, (lake.id, after)).fetchall()


def _whole(lake: Lake, batches: Sequence[Any]) -> Listing | None:
    """Return the files of now where some were replaced: those of early batches may be deleted."""
    listing = lake.listing(ARCHIVE, 0)
    has_grown_only = not any(it.removed for it in batches) and (
        sum(it.rows for it in batches) == sum(it.rows for it in listing.files)
    )
    return None if has_grown_only else listing


def _groups(session: Session, lake: Lake, batches: Sequence[Any]) -> Iterator[_Group]:
    for chosen in groups_of([(batch.rows, batch) for batch in batches], _MOST_AT_ONCE):
        yield chosen, _files(session, lake, chosen), chosen[-1].id


def _files(session: Session, lake: Lake, batches: Sequence[Any]) -> list[Any]:
    # A batch that replaced files added no message.
    grown = [batch for batch in batches if not batch.removed]
    with translated(), session.cursor(row_factory=namedtuple_row) as cursor:
        values = ([batch.id for batch in grown],)
        files: list[Any] = cursor.execute(statements.ROLLUP_FILES, values).fetchall()
    if (lost := sum(batch.rows for batch in grown) - sum(file.rows for file in files)) > 0:
        raise LakeError(f"files of {lake.location} with {lost} messages are gone: {_GONE}")
    return files


def _parts(home: Root, files: Sequence[Any], slots: int) -> list[_Part]:
    """Divide files into parts of about equal size."""
    number = min(len(files), max(slots * 2, sum(it.rows for it in files) // (4 * _ROWS)))
    parts: list[list[tuple[str, str | None, int]]] = [[] for _ in range(number)]
    sizes = [0] * number
    for file in sorted(files, key=lambda it: -it.rows):
        smallest = sizes.index(min(sizes))
        parts[smallest].append((file.path, file.queue, file.rows))
        sizes[smallest] += max(1, file.rows)
    return [_Part(home, tuple(part)) for part in parts]


def _count(part: _Part) -> Counts | None:
    """Count the messages of some files: the work of a task."""
    storage = part.home.check()
    return merge(
        count(table) for path, queue, rows in part.files
        for table in _tables(storage, path, queue, rows)
    )  # fmt: skip


def _tables(storage: Storage, file: str, queue: str | None, rows: int) -> Iterator[Any]:
    path = storage.name(file)
    try:
        with pq.ParquetFile(storage.key(file), filesystem=storage.filesystem) as opened:
            known = set(opened.schema_arrow.names)
            if opened.metadata.num_rows != rows:
                raise LakeError(f"{path} has {opened.metadata.num_rows} rows, not {rows}")
            wanted = [name for name in COLUMNS if name in known]
            for batch in opened.iter_batches(_ROWS, columns=wanted):
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
        raise LakeError(f"{path} is gone: {_GONE}") from None
    except (OSError, pa.ArrowException) as error:
        raise LakeError(f"{path} cannot be read: {reason(error)}") from None


def _commit(
    session: Session, lake: Lake, found: Counts | None, after: int, upto: int
) -> int | None:
    """Commit the counts and return how many rows they have; None: another session was first."""
    with translated(), session.transaction():
        row = session.execute(statements.ROLL_UP, (lake.id, after, upto)).fetchone()
        if row is None or not row[0]:
            return None
        if found is None:
            _publish(session, lake, [], after)
            return 0
        rows = rollup_table(found)
        for chunk in _chunks(rows):
            session.execute(statements.ADD_ROLLUP, (lake.id, chunk, "[]", "[]"))
        # In the order of buckets: only the most frequent of each are kept.
        for chunk in _chunks(found.errors.sort_by(_order("bucket_at", "queue", "status"))):
            session.execute(statements.ADD_ROLLUP, (lake.id, "[]", chunk, "[]"))
        for chunk in _chunks(found.workers.sort_by(_order("bucket_at", "queue")), 10 * _CHUNK):
            session.execute(statements.ADD_ROLLUP, (lake.id, "[]", "[]", chunk))
        _publish(session, lake, found.days, after)
        return len(rows)


def _order(*names: str) -> list[tuple[str, str]]:
    return [(name, "ascending") for name in names]


def _chunks(table: Any, size: int = _CHUNK) -> Iterator[str]:
    for start in range(0, len(table), size):
        yield json.dumps(records(table.slice(start, size)), separators=(",", ":"))


def _publish(session: Session, lake: Lake, days: Sequence[date], after: int) -> None:
    """Write the changed days to the lake; their new files replace the old ones.

    Where nothing was counted before, as with `rebuild`, the files of other days are old, too.
    """
    files: list[WrittenFile] = []
    for day in days:
        with session.cursor(row_factory=dict_row) as cursor:
            rows = cursor.execute(statements.ROLLUP_DAY, (lake.id, day, day)).fetchall()
        try:
            with FileWriter(
                lake.home, ROLLUP, _SCHEMA, day=day, id_column=None, time_column="bucket_at"
            ) as writer:
                writer.write(pa.Table.from_pylist(rows, _SCHEMA))
                files.append(writer.close())
        except (OSError, LakeError):
            remove(lake.storage, files)
            raise
    with session.cursor(row_factory=class_row(LakeFile)) as cursor:
        old = cursor.execute(statements.LAKE_FILES, (lake.id, ROLLUP)).fetchall()
    replaced = [it.id for it in old if not after or it.day in set(days)]
    if files or replaced:
        lake.commit(session, files, dataset=ROLLUP, removed=replaced)
