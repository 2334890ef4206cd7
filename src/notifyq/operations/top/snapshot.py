"""Reads what `top` shows, one call after the other over one connection."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from notifyq.database.pool import Database
from notifyq.operations import monitor
from notifyq.operations.masks import Masks, redacted
from notifyq.operations.monitor import (
    Backlog,
    Conditions,
    CronEntry,
    DeadGroup,
    Health,
    Lag,
    Point,
    Session,
    WorkerInfo,
)
from notifyq.operations.parts import Parts

Answer = TypeVar("Answer")

WINDOW = 6
"""Time steps of a rate: the last minute."""
STEP = timedelta(seconds=10)
_MOST = 50_000
"""Rows of the archive that are read for rates; with more rows the rate has fewer steps."""
_DEAD_SINCE = timedelta(days=1)
_SLOWLY = 10.0
"""Seconds between two reads of what changes slowly."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages finished per second lately, and how long they took."""

    finished: float = 0.0
    dead: float = 0.0
    wait_p95: timedelta | None = None
    run_p95: timedelta | None = None
    course: tuple[float, ...] = ()
    """Finished per second in each time step, the earliest first."""


@dataclass(frozen=True, slots=True)
class Row:
    """A message as a line."""

    id: int
    state: str
    at: datetime
    attempts: int
    type: str
    text: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the views show."""

    now: datetime
    """The time of the server."""
    backlog: tuple[Backlog, ...] = ()
    rates: dict[str, Rate] = field(default_factory=dict)
    total: Rate = Rate()
    workers: tuple[WorkerInfo, ...] = ()
    lags: tuple[Lag, ...] = ()
    groups: tuple[DeadGroup, ...] = ()
    health: Health | None = None
    holders: tuple[Session, ...] = ()
    cron: tuple[CronEntry, ...] = ()
    messages: tuple[Row, ...] = ()
    """Only in lists of messages."""
    took: float = 0.0
    """Seconds of all calls."""
    refused: dict[str, str] = field(default_factory=dict)
    """What the server refuses to show, and why; the rest is there."""


class Source:
    """The database, one call at a time, and the masks."""

    def __init__(self, database: Database, masks: Masks = Masks()) -> None:  # noqa: B008  frozen
        self.database = database
        self.masks = masks
        self._lock = asyncio.Lock()
        self._slow: dict[str, Any] = {}
        self.parts = Parts()
        self._slow_at = 0.0

    async def call(self, call: Awaitable[Answer]) -> Answer:
        """Make a call, after the one that is running."""
        async with self._lock:
            return await call

    async def snapshot(self) -> Snapshot:
        """Read everything; of what the server refuses the reason. Raises if that is all."""
        return await self.call(self._read())

    async def _read(self) -> Snapshot:
        database, began = self.database, time.monotonic()
        now = await monitor.clock(database)
        backlog = await self.parts.read("queues", monitor.backlog(database), [])
        finished = monitor.throughput(
            database,
            since=now - (WINDOW + 1) * STEP,
            until=now,
            step=STEP,
            by_queue=True,
            most=_MOST,
        )
        done = await self.parts.read("rates", finished, None)
        workers = await self.parts.read("workers", monitor.workers(database, most=1), [])
        lags = await self.parts.read("streams", monitor.lags(database), [])
        if time.monotonic() - self._slow_at >= _SLOWLY:
            self._slow = await self._read_slow(now)
            self._slow_at = time.monotonic()
        self.parts.check()
        points = [it for it in done.points if it.bucket_at <= now - STEP] if done else []
        rates = rates_of(points, [it.queue for it in backlog])
        return Snapshot(
            now=now,
            backlog=tuple(backlog),
            rates=rates,
            total=_sum(list(rates.values())),
            workers=tuple(workers),
            lags=tuple(lags),
            took=time.monotonic() - began,
            refused=self.parts.refused,
            **self._slow,
        )

    async def _read_slow(self, now: datetime) -> dict[str, Any]:
        database = self.database
        groups = monitor.dead_groups(
            database, Conditions(since=now - _DEAD_SINCE), budget=timedelta(seconds=0.3)
        )
        dead = await self.parts.read("dead", groups, None)
        return {
            "groups": tuple(map(self._masked, dead.groups)) if dead else (),
            "health": await self.parts.read("health", monitor.health(database), None),
            "holders": tuple(
                await self.parts.read("holders", monitor.holders(database, most=5), [])
            ),
            "cron": tuple(await self.parts.read("cron", monitor.cron_entries(database), [])),
        }

    def _masked(self, group: DeadGroup) -> DeadGroup:
        # Actions need the fingerprint as it is; the views show the sample.
        sample = redacted(group.sample or group.fingerprint, self.masks, None)
        return group if self.masks.are_none else replace(group, sample=sample)

    def forget(self) -> None:
        """Read everything next time."""
        self._slow_at = 0.0


def _sum(rates: list[Rate]) -> Rate:
    # Percentiles of queues cannot be combined: the largest is shown.
    return Rate(
        finished=sum(it.finished for it in rates),
        dead=sum(it.dead for it in rates),
        wait_p95=max((it.wait_p95 for it in rates if it.wait_p95 is not None), default=None),
        run_p95=max((it.run_p95 for it in rates if it.run_p95 is not None), default=None),
    )


def rates_of(points: Sequence[Point], queues: Sequence[str]) -> dict[str, Rate]:
    """The rate of each of these queues."""
    steps = sorted({it.bucket_at for it in points})[-WINDOW:]
    by_queue: dict[str, list[Point]] = {queue: [] for queue in queues}
    for point in points:
        if point.queue in by_queue:
            by_queue[point.queue].append(point)
    return {queue: _rate(mine, steps) for queue, mine in by_queue.items()}


def _rate(mine: Sequence[Point], steps: Sequence[datetime]) -> Rate:
    seconds = STEP.total_seconds()
    by_step = {it.bucket_at: it for it in mine if it.status is None}
    dead = sum(it.dead for it in mine if it.status is None)
    latest = next((by_step[it] for it in reversed(steps) if it in by_step), None)
    return Rate(
        finished=sum(by_step[it].finished for it in steps if it in by_step) / (WINDOW * seconds),
        dead=dead / (WINDOW * seconds),
        wait_p95=None if latest is None else latest.wait_p95,
        run_p95=None if latest is None else latest.run_p95,
        course=tuple(by_step[it].finished / seconds if it in by_step else 0.0 for it in steps),
    )
