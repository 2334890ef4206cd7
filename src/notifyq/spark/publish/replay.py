"""`replay`: publish archived messages again, from a lake or the archive, once for each name."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg.rows import class_row

from notifyq.errors import ConfigurationError
from notifyq.spark import statements
from notifyq.spark.connection import fetch, opened
from notifyq.spark.engine import LocalEngine
from notifyq.spark.lake.lake import Lake
from notifyq.spark.publish import staging
from notifyq.spark.publish.history import STEP, Choice, Count, chosen, counts, files, lake_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from notifyq.spark.engine import Engine
    from notifyq.spark.lake.lake import LakeFile
    from notifyq.spark.lake.mark import Root
    from notifyq.spark.lake.storage import Location


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """The result of a replay.

    `known` messages were published before, by it or as a redrive. `refused` ones were not, by their
    queue or stream; the next run tries them again. `reason`: why the first one.
    """

    name: str
    published: int
    known: int
    total: int
    due_at: datetime | None
    refused: int = 0
    reason: str | None = None
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
    refused: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The arguments of each step of a replay."""

    dsn: str = field(repr=False)
    name: str
    target: str | None
    is_stream: bool
    choice: Choice
    rate: float | None
    redrive: bool

    @property
    def queue_rate(self) -> float | None:
        """The rate at which messages of a queue become due."""
        return None if self.is_stream else self.rate

    @property
    def event_rate(self) -> float | None:
        """The rate at which events are published: they have no due time."""
        return self.rate if self.is_stream else None

    @property
    def step(self) -> int:
        """Messages of one step; with a rate, the events of about a second."""
        return STEP if self.event_rate is None else max(1, min(STEP, int(self.event_rate)))

    def pause(self, published: int, since: float) -> None:
        """Wait until this many events are due at the rate."""
        if self.event_rate is not None:
            time.sleep(max(0.0, since + published / self.event_rate - time.monotonic()))


def replay(
    dsn: str,
    name: str,
    choice: Choice | None = None,
    *,
    lake: Location | None = None,
    to: str | None = None,
    rate: float | None = None,
    redrive: bool = False,
    dry_run: bool = False,
    engine: Engine | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ReplaySummary:
    """Publish archived messages again: from a lake, or else from the archive of the database.

    They go into the queue or stream `to`, else each into its own queue. A replay publishes each
    message once for each name, however often it runs and wherever it is killed; new messages of the
    history are published by the next run. `rate`: messages of a queue that become due in a second,
    or events published in a second. `redrive`: the messages replace dead ones; those that were
    published again before are left out.
    """
    since = time.monotonic()
    wanted = choice or Choice()
    if redrive and (to is not None or not wanted.dead):
        raise ConfigurationError(
            "a redrive publishes dead messages only, and each into its own queue: choose dead ones "
            "and no target"
        )
    if rate is not None and rate <= 0:
        raise ConfigurationError(f"a rate must be larger than zero, not {rate}")
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
    with opened(dsn) as session:
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
        refused=sum(step.refused for step in steps),
        reason=next((step.reason for step in steps if step.reason), None),
        seconds=time.monotonic() - since,
    )


def _from_archive(plan: _Plan, on_progress: Callable[[int], None] | None) -> Iterator[_Step]:
    after = published = 0
    since = time.monotonic()
    with opened(plan.dsn) as session:
        cursor = session.cursor(row_factory=class_row(_Step))
        while True:
            values = {
                "name": plan.name,
                "quantity": plan.step,
                "after_id": after,
                "rate": plan.queue_rate,
                "redrive": plan.redrive,
                **plan.choice.parameters(),
            }
            step = cursor.execute(statements.REPLAY_ARCHIVE, values).fetchone()
            assert step is not None  # noqa: S101 - a function returns one row
            yield step
            if step.last_id is None:
                return
            if on_progress is not None:
                on_progress(step.published + step.known + step.refused)
            after = step.last_id
            published += step.published
            plan.pause(published, since)


def _from_lake(
    plan: _Plan, lake: Lake, engine: Engine | None, on_progress: Callable[[int], None] | None
) -> list[_Step]:
    # One task at a time where waiting keeps the rate.
    runner = LocalEngine(1) if plan.event_rate is not None else engine or LocalEngine()
    tasks = [(lake.home, file) for file in files(lake, plan.choice)]

    def report(steps: list[_Step]) -> None:
        if on_progress is not None:
            on_progress(sum(step.published + step.known + step.refused for step in steps))

    done = runner.run(tasks, _LakeWork(plan), on_done=report)
    return [step for steps in done for step in steps]


@dataclass(frozen=True, slots=True)
class _LakeWork:
    """The work of a task on its file: stage rows, and publish those that are new to the replay."""

    plan: _Plan

    def __call__(self, task: tuple[Root, LakeFile]) -> list[_Step]:
        home, file = task
        plan = self.plan
        storage = home.check()
        steps: list[_Step] = []
        since = time.monotonic()
        for batch in _rows(Lake(plan.dsn, storage), file, plan):
            for first in range(0, batch.num_rows, plan.step):
                steps.append(self._publish(batch.slice(first, plan.step)))
                plan.pause(sum(step.published for step in steps), since)
        return steps

    def _publish(self, batch: pa.RecordBatch) -> _Step:
        plan = self.plan
        staged = staging.stage(plan.dsn, f"replay {plan.name}", [batch])
        assert staged is not None  # noqa: S101 - a slice has rows
        values = (plan.name, staged.attempt, staged.rows, plan.queue_rate, plan.redrive)
        return fetch(plan.dsn, _Step, statements.REPLAY_ROWS, values)[0]


def _rows(lake: Lake, file: LakeFile, plan: _Plan) -> Iterator[pa.RecordBatch]:
    """Give the chosen rows of a file as they are staged."""
    names = ["origin_id", "queue", "message", "type", "key", "headers"]
    if not plan.is_stream:
        names += ["priority", "max_attempts"]
    schema = pa.schema([(name, staging.COLUMNS[name]) for name in names])
    for rows in chosen(lake, [file], plan.choice):
        staged = [
            {
                **row,
                "origin_id": row["id"],
                "queue": plan.target or row["queue"],
                "headers": _marked(row["headers"], plan.name, row["id"]),
            }
            for row in rows
            # A dead event belongs to one subscriber; without event_id, it has no message.
            if row["subscriber"] is None
            or (plan.target is not None and row["event_id"] is not None)
        ]
        if staged:
            yield pa.RecordBatch.from_pylist(staged, schema=schema)


def _marked(headers: str, name: str, archive_id: int) -> str:
    return json.dumps({**json.loads(headers), "replay": name, "replay_of": archive_id})
