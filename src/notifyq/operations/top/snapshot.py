"""What `top` shows at one moment: a few calls, one after the other, never two at a time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.operations import monitor
from notifyq.operations.masks import Masks, redacted
from notifyq.operations.monitor import Conditions

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from datetime import datetime

    from notifyq.database.pool import Database
    from notifyq.operations.monitor import (
        Backlog,
        CronEntry,
        DeadGroup,
        Health,
        Lag,
        Point,
        Presence,
        Session,
    )

WINDOW = 6
"""Steps of time over which rates are taken: the last minute."""
STEP = timedelta(seconds=10)
_MOST = 50_000
"""Rows of the archive that are read for rates; of more there are fewer steps."""
_DEAD_SINCE = timedelta(days=1)
_SELDOM = 10.0
"""Seconds between two looks at what changes slowly."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What was finished lately, by second, and how long it took."""

    finished: float = 0.0
    dead: float = 0.0
    wait_p95: timedelta | None = None
    run_p95: timedelta | None = None
    course: tuple[float, ...] = ()
    """Finished a second in each step, the earliest first."""


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
    """All that the views show."""

    now: datetime
    """By the clock of the server."""
    backlog: tuple[Backlog, ...] = ()
    rates: dict[str, Rate] = field(default_factory=dict)
    total: Rate = Rate()
    workers: tuple[Presence, ...] = ()
    lags: tuple[Lag, ...] = ()
    groups: tuple[DeadGroup, ...] = ()
    health: Health | None = None
    holders: tuple[Session, ...] = ()
    cron: tuple[CronEntry, ...] = ()
    messages: tuple[Row, ...] = ()
    """Of a list of some."""
    took: float = 0.0
    """Seconds of all calls together."""


class Source:
    """One connection, for one call at a time, and what is to be hidden of what it finds."""

    def __init__(self, database: Database, masks: Masks = Masks()) -> None:  # noqa: B008  frozen
        self.database = database
        self.masks = masks
        self._turn = asyncio.Lock()
        self._seldom: dict[str, Any] = {}
        self._seldom_at = 0.0

    async def ask(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Have an answer; a call that another one is under way for waits for it."""
        async with self._turn:
            return await call

    async def look(self) -> Snapshot:
        """Look at everything."""
        async with self._turn:
            return await self._look()

    async def _look(self) -> Snapshot:
        database, began = self.database, time.monotonic()
        now = await monitor.clock(database)
        backlog = await monitor.backlog(database)
        done = await monitor.throughput(
            database,
            since=now - (WINDOW + 1) * STEP,
            until=now,
            step=STEP,
            by_queue=True,
            most=_MOST,
        )
        workers = await monitor.workers(database, most=1)
        lags = await monitor.lags(database)
        if time.monotonic() - self._seldom_at >= _SELDOM:
            self._seldom = await self._look_seldom(now)
            self._seldom_at = time.monotonic()
        points = [it for it in done.points if it.bucket_at <= now - STEP]
        rates = rates_of(points, [it.queue for it in backlog])
        return Snapshot(
            now=now,
            backlog=tuple(backlog),
            rates=rates,
            total=_sum(list(rates.values())),
            workers=tuple(workers),
            lags=tuple(lags),
            took=time.monotonic() - began,
            **self._seldom,
        )

    async def _look_seldom(self, now: datetime) -> dict[str, Any]:
        database = self.database
        dead = await monitor.dead_groups(
            database, Conditions(since=now - _DEAD_SINCE), budget=timedelta(seconds=0.3)
        )
        return {
            "groups": tuple(map(self._masked, dead.groups)),
            "health": await monitor.health(database),
            "holders": tuple(await monitor.holders(database, most=5)),
            "cron": tuple(await monitor.cron_entries(database)),
        }

    def _masked(self, group: DeadGroup) -> DeadGroup:
        # By its fingerprint it is acted on, so that stays; shown is the sample.
        sample = redacted(group.sample or group.fingerprint, self.masks, None)
        return group if self.masks.are_none else replace(group, sample=sample)

    def forget(self) -> None:
        """Look at everything anew next time."""
        self._seldom_at = 0.0


def _sum(rates: list[Rate]) -> Rate:
    # Of the times the worst: those of all messages together are not in those of queues.
    return Rate(
        finished=sum(it.finished for it in rates),
        dead=sum(it.dead for it in rates),
        wait_p95=max((it.wait_p95 for it in rates if it.wait_p95 is not None), default=None),
        run_p95=max((it.run_p95 for it in rates if it.run_p95 is not None), default=None),
    )


def rates_of(points: Sequence[Point], queues: Sequence[str]) -> dict[str, Rate]:
    """What the points say of each of these queues."""
    steps = sorted({it.bucket_at for it in points})[-WINDOW:]
    by_queue: dict[str, list[Point]] = {queue: [] for queue in queues}
    for point in points:
        if point.queue in by_queue:
            by_queue[point.queue].append(point)
    return {queue: _rate(mine, steps) for queue, mine in by_queue.items()}


def _rate(mine: Sequence[Point], steps: Sequence[datetime]) -> Rate:
    seconds = STEP.total_seconds()
    by_step = {it.bucket_at: it for it in mine if it.status is None}
    dead = sum(it.finished for it in mine if it.status not in {None, "success"})
    latest = next((by_step[it] for it in reversed(steps) if it in by_step), None)
    return Rate(
        finished=sum(by_step[it].finished for it in steps if it in by_step) / (WINDOW * seconds),
        dead=dead / (WINDOW * seconds),
        wait_p95=None if latest is None else latest.wait_p95,
        run_p95=None if latest is None else latest.run_p95,
        course=tuple(by_step[it].finished / seconds if it in by_step else 0.0 for it in steps),
    )
