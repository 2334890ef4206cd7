"""`replay`: archived messages again, from a lake or from the archive, each once for each name."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg.rows import class_row

from notifyq.errors import ConfigurationError
from notifyq.spark import staging, statements
from notifyq.spark.connection import connect
from notifyq.spark.engine import LocalEngine
from notifyq.spark.failures import translated
from notifyq.spark.history import STEP, Choice, Count, chosen, counts, files, lake_counts
from notifyq.spark.lake import Lake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from notifyq.spark.engine import Engine
    from notifyq.spark.lake import LakeFile
    from notifyq.spark.mark import Root


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """What a replay has done; `known` are messages that it, or another in their place, had done."""

    name: str
    published: int
    known: int
    total: int
    due_at: datetime | None
    counts: tuple[Count, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    published: int
    known: int
    total: int
    due_at: datetime | None
    last_at: datetime | None
    last_id: int | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What each step of a replay needs."""

    dsn: str = field(repr=False)
    name: str
    target: str | None
    is_stream: bool
    choice: Choice
    rate: float | None
    redrive: bool

    @property
    def step(self) -> int:
        """Events have no due time: they are published a second's worth at once."""
        paced = self.is_stream and self.rate is not None
        return max(1, min(STEP, int(self.rate or 1))) if paced else STEP

    def pause(self, published: int, since: float) -> None:
        """Wait until this many events are due at the rate."""
        if self.is_stream and self.rate is not None:
            time.sleep(max(0.0, since + published / self.rate - time.monotonic()))


def replay(
    dsn: str,
    name: str,
    choice: Choice | None = None,
    *,
    lake: str | Path | None = None,
    to: str | None = None,
    rate: float | None = None,
    redrive: bool = False,
    dry_run: bool = False,
    engine: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ReplaySummary:
    """Publish archived messages again: of a lake, or else of the archive of the database.

    They go into the queue or stream `to`, else each into the queue that it was of. However often a
    replay of a name runs, and wherever it is killed, each message is published once; messages that
    came into the history since are published by the next run. `rate` is how many of a queue become
    due a second, and how many are published into a stream. `redrive`: these take the place of dead
    messages, of which those are left out that were published again already.
    """
    since = time.monotonic()
    wanted = choice or Choice()
    if redrive and (to is not None or wanted.statuses is None or "success" in wanted.statuses):
        raise ConfigurationError(
            "only dead messages are published again in their place, into the queues they were of"
        )
    if rate is not None and rate <= 0:
        raise ConfigurationError(f"a rate is larger than zero, not {rate}")
    if dry_run:
        found = (
            counts(dsn, name, wanted, redrive=redrive)
            if lake is None
            else lake_counts(dsn, lake, wanted)
        )
        return ReplaySummary(
            name=name, published=0, known=0, total=0, due_at=None, counts=tuple(found),
            seconds=time.monotonic() - since,
        )  # fmt: skip
    source = None if lake is None else Lake(dsn, lake)
    with translated(), connect(dsn) as session:
        row = session.execute(statements.IS_STREAM, (to,)).fetchone()
        session.execute(statements.BEGIN_REPLAY, (name, to))
    plan = _Plan(dsn, name, to, bool(row and row[0]), wanted, rate, redrive)
    if source is None:
        steps = list(_from_archive(plan, on_progress))
    else:
        steps = _from_lake(plan, source, engine, on_progress)
    due = [step.due_at for step in steps if step.due_at is not None]
    return ReplaySummary(
        name=name,
        published=sum(step.published for step in steps),
        known=sum(step.known for step in steps),
        total=max((step.total for step in steps), default=0),
        due_at=max(due, default=None),
        seconds=time.monotonic() - since,
    )


def _from_archive(plan: _Plan, on_progress: Callable[[int], None] | None) -> Iterator[_Step]:
    after = published = 0
    since = time.monotonic()
    with translated(), connect(plan.dsn) as session:
        cursor = session.cursor(row_factory=class_row(_Step))
        while True:
            values = {
                "name": plan.name,
                "quantity": plan.step,
                "after_id": after,
                "rate": None if plan.is_stream else plan.rate,
                "redrive": plan.redrive,
                **plan.choice.parameters(),
            }
            step = cursor.execute(statements.REPLAY_ARCHIVE, values).fetchone()
            assert step is not None  # noqa: S101 - a function returns one row
            yield step
            if step.last_id is None:
                return
            if on_progress is not None:
                on_progress(step.published + step.known)
            after = step.last_id
            published += step.published
            plan.pause(published, since)


def _from_lake(
    plan: _Plan, lake: Lake, engine: Engine | None, on_progress: Callable[[int], None] | None
) -> list[_Step]:
    found = files(lake, plan.choice)
    # One after the other where the rate is kept by waiting.
    paced = plan.is_stream and plan.rate is not None
    runner = LocalEngine(1) if paced else engine or LocalEngine()
    tasks = [(lake.home, [file]) for file in found]

    def tell(steps: list[_Step]) -> None:
        if on_progress is not None:
            on_progress(sum(step.published + step.known for step in steps))

    done = runner.run(tasks, _LakeWork(plan), on_done=tell)
    return [step for steps in done for step in steps]


@dataclass(frozen=True, slots=True)
class _LakeWork:
    """What a task does with its file: stage, and publish what the replay has not yet."""

    plan: _Plan

    def __call__(self, task: tuple[Root, list[LakeFile]]) -> list[_Step]:
        home, chosen_files = task
        plan = self.plan
        root = home.check()
        steps: list[_Step] = []
        since = time.monotonic()
        for batch in _rows(Lake(plan.dsn, root), chosen_files, plan):
            for first in range(0, batch.num_rows, plan.step):
                steps.append(self._publish(batch.slice(first, plan.step)))
                plan.pause(sum(step.published for step in steps), since)
        return steps

    def _publish(self, batch: pa.RecordBatch) -> _Step:
        plan = self.plan
        staged = staging.stage(plan.dsn, f"replay {plan.name}", [batch])
        assert staged is not None  # noqa: S101 - a slice has rows
        rate = None if plan.is_stream else plan.rate
        values = (plan.name, staged.attempt, staged.rows, rate, plan.redrive)
        with (
            translated(),
            connect(plan.dsn) as session,
            session.cursor(row_factory=class_row(_Step)) as cursor,
        ):
            step = cursor.execute(statements.REPLAY_ROWS, values).fetchone()
            assert step is not None  # noqa: S101 - a function returns one row
            return step


def _rows(lake: Lake, found: Sequence[LakeFile], plan: _Plan) -> Iterator[pa.RecordBatch]:
    """Give the chosen rows of files as they are staged."""
    names = ["origin_id", "queue", "message", "type", "key", "headers"]
    if not plan.is_stream:
        names += ["priority", "max_attempts"]
    schema = pa.schema([(name, staging.COLUMNS[name]) for name in names])
    for rows in chosen(lake, found, plan.choice):
        staged = [
            {
                **row,
                "origin_id": row["id"],
                "queue": plan.target or row["queue"],
                "headers": _marked(row["headers"], plan.name, row["id"]),
            }
            for row in rows
            # A dead event was of one subscriber, and one that was skipped has no message.
            if row["subscriber"] is None
            or (plan.target is not None and row["event_id"] is not None)
        ]
        if staged:
            yield pa.RecordBatch.from_pylist(staged, schema=schema)


def _marked(headers: str, name: str, archive_id: int) -> str:
    return json.dumps({**json.loads(headers), "replay": name, "replay_of": archive_id})
