"""`load`: publish files of rows, all or nothing, once for each name; bad rows go to a file."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from notifyq.errors import (
    AccessDeniedError,
    ConfigurationError,
    LoadNotFoundError,
    NotifyqError,
    QueueFullError,
    StagedRowsLostError,
)
from notifyq.paths import local_path
from notifyq.spark.engine import LocalEngine
from notifyq.spark.publish import staging
from notifyq.spark.publish.datasets import BadRow, Chunk, chunks, read
from notifyq.spark.publish.mapping import BadValueError, Mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from notifyq.spark.engine import Engine
    from notifyq.spark.publish.datasets import Row

_BATCH = 10_000
"""Rows that a task holds in memory."""
_NOT_BY_ROWS = (AccessDeniedError, LoadNotFoundError, QueueFullError, StagedRowsLostError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSummary:
    """The result of a load; `is_new` is false where an earlier run has published it."""

    name: str
    is_new: bool
    published: int
    merged: int
    rejected: int
    queues: dict[str, int]
    rejects: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class _Done:
    chunk: Chunk
    staged: staging.Staged | None
    queues: Counter[str]
    bad: list[dict[str, Any]]

    @property
    def rows(self) -> int:
        return self.queues.total() + len(self.bad)


@dataclass(frozen=True, slots=True)
class _Work:
    """The work of a task on its chunk."""

    dsn: str = field(repr=False)
    load: str
    mapping: Mapping
    most: int
    is_dry: bool

    def __call__(self, chunk: Chunk) -> _Done:
        queues: Counter[str] = Counter()
        bad: list[dict[str, Any]] = []
        batches = self._batches(chunk, queues, bad)
        staged = None
        if self.is_dry:
            for _ in batches:
                pass
        else:
            staged = staging.stage(self.dsn, self.load, batches)
        return _Done(chunk, staged, queues, bad)

    def _batches(
        self, chunk: Chunk, queues: Counter[str], bad: list[dict[str, Any]]
    ) -> Iterator[pa.RecordBatch]:
        names = ["position", "queue", "message", *(name for name, _ in self.mapping.columns)]
        schema = pa.schema([(name, staging.COLUMNS[name]) for name in dict.fromkeys(names)])
        rows: list[dict[str, Any]] = []
        with closing(read(chunk)) as given:  # type: ignore[type-var]
            for row in given:
                found = self._staged(row)
                if isinstance(found, BadRow):
                    bad.append(_reject(chunk, found.position, found.reason, found.text))
                    _check_number(bad, self.most)
                    continue
                rows.append(found)
                queues[found["queue"]] += 1
                if len(rows) == _BATCH:
                    yield pa.RecordBatch.from_pylist(rows, schema=schema)
                    rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    def _staged(self, row: Row | BadRow) -> dict[str, Any] | BadRow:
        if isinstance(row, BadRow):
            return row
        try:
            return self.mapping.staged(row)
        except BadValueError as error:
            return BadRow(row.position, row.encode(None), str(error))


def load(
    dsn: str,
    name: str,
    files: Sequence[str | Path],
    mapping: Mapping,
    *,
    format: str | None = None,
    rejects: str | Path | None = None,
    most_rejects: int = 10_000,
    dry_run: bool = False,
    engine: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> LoadSummary:
    """Publish the rows of files into a queue or a stream, all or nothing, once for each name.

    `mapping` maps columns to the queue, the key, the payload and so on. Rows that cannot be
    published are written to the file `rejects` with the reason; without that file, the first of
    them fails the load. After a crash at any moment the load can run again; a name that was
    published is not published again.
    """
    since = time.monotonic()
    most = most_rejects if rejects is not None else 0
    target = None if rejects is None else local_path(rejects)
    tasks = chunks(files, format)
    staging.check_targets(dsn, [] if mapping.queue is None else [mapping.queue])
    report = None if dry_run else staging.begin(dsn, name)
    if report is not None and not report.is_new:
        return _summary(report, Counter(), 0, None, since)
    done: list[_Done] = (engine or LocalEngine()).run(
        tasks,
        _Work(dsn, name, mapping, most, dry_run),
        on_done=None if on_progress is None else lambda one: on_progress(one.rows),
    )
    queues = sum((one.queues for one in done), Counter[str]())
    bad = [reject for one in done for reject in one.bad]
    _check_number(bad, most)
    if dry_run:
        # An unknown queue is one error, not a reject for each of its rows.
        staging.check_targets(dsn, sorted(queues))
        return LoadSummary(
            name=name, is_new=False, published=0, merged=0, rejected=len(bad), queues=dict(queues),
            rejects=_write(target, bad), seconds=time.monotonic() - since,
        )  # fmt: skip
    written = _write(target, bad)
    staged = [one.staged for one in done if one.staged is not None]
    try:
        report = staging.commit(dsn, name, staged)
    except NotifyqError as error:
        if isinstance(error, _NOT_BY_ROWS):
            raise
        more = _refused(dsn, name, done, staged, most)
        if not more:
            raise
        bad += more
        _check_number(bad, most)
        # Before the commit: a run after a crash in between writes the same file again.
        written = _write(target, bad)
        taken = Counter(one["attempt"] for one in more)
        for one in more:
            queues[one["queue"]] -= 1
        left = [staging.Staged(it.attempt, it.rows - taken[it.attempt]) for it in staged]
        report = staging.commit(dsn, name, left)
    return _summary(report, queues, len(bad), written, since)


def _refused(
    dsn: str, name: str, done: Sequence[_Done], staged: Sequence[staging.Staged], most: int
) -> list[dict[str, Any]]:
    """Remove the staged rows that the database does not publish; return them as rejects."""
    found = staging.rejects(dsn, name, staged, most + 1, take=most > 0)
    origin = {one.staged.attempt: one.chunk for one in done if one.staged is not None}
    return [
        {
            **_reject(origin[one.attempt], one.position, one.reason, one.message),
            "queue": one.queue,
            "attempt": one.attempt,
        }
        for one in found
    ]


def _reject(chunk: Chunk, position: int, reason: str, text: str) -> dict[str, Any]:
    unit = "offset" if chunk.kind == "jsonl" else "row"
    return {"file": chunk.path, unit: position, "reason": reason, "data": text}


def _check_number(bad: Sequence[dict[str, Any]], most: int) -> None:
    if len(bad) <= most:
        return
    first = bad[0]
    unit = "offset" if "offset" in first else "row"
    shown = f"{first['file']}, {unit} {first[unit]}: {first['reason']}"
    if most == 0:
        raise ConfigurationError(
            f"nothing was published: {shown}; with a file for rejects, the other rows would be"
        )
    raise ConfigurationError(
        f"nothing was published: more than {most} rows were rejected, the first is {shown}"
    )


def _write(whole: Path | None, bad: Sequence[dict[str, Any]]) -> str | None:
    """Write the rejects atomically."""
    if whole is None or not bad:
        return None
    part = Path(f"{whole}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for one in bad:
                shown = {key: value for key, value in one.items() if key != "attempt"}
                file.write(json.dumps(shown, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
    except OSError as error:
        part.unlink(missing_ok=True)
        # The error of a write does not name the file.
        raise OSError(error.errno, error.strerror, str(whole)) from None
    return str(whole)


def _summary(
    report: staging.LoadReport,
    queues: Counter[str],
    rejected: int,
    written: str | None,
    since: float,
) -> LoadSummary:
    return LoadSummary(
        name=report.name,
        is_new=report.is_new,
        published=report.published,
        merged=report.merged,
        rejected=rejected,
        queues={name: count for name, count in sorted(queues.items()) if count},
        rejects=written,
        seconds=time.monotonic() - since,
    )
