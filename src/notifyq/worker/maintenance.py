"""Runs maintenance regularly, beside pg_cron: what is urgent, and `messages.maintain()`."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.refusals import Refusals, is_refusal
from notifyq.errors import NotifyqError
from notifyq.notify.wake import at_most
from notifyq.printable import in_line
from notifyq.queues.admin import check_versions
from notifyq.telemetry import (
    LocksExpired,
    MaintenanceDone,
    MaintenanceFailing,
    SchedulesFired,
    TelemetryHandler,
)

if TYPE_CHECKING:
    from notifyq.database.pool import Database

log = logging.getLogger("notifyq.maintenance")

_LEAST_PAUSE = 0.05
"""Least seconds between two calls for schedules that are due."""


class Maintenance:
    """Calls messages.maintain() every so often; a row lock there admits one caller."""

    def __init__(self, database: Database, every: float, telemetry: TelemetryHandler) -> None:
        self._database = database
        self._every = every
        self._telemetry = telemetry
        self._refusals = Refusals(log)
        self._failing: tuple[str, ...] = ()
        self._next: timedelta | None = None
        """How long it is until a schedule is due."""

    async def serve(self) -> None:
        """Maintain regularly; what fails is left to the next run, or to pg_cron.

        Raises SchemaError when the schema has become one that this package does not work with.
        """
        # Beside each other: expired locks do not wait for a long retention.
        loops = [asyncio.create_task(it) for it in (self._serve_urgent(), self._serve_rest())]
        try:
            await asyncio.gather(*loops)
        finally:
            for loop in loops:
                loop.cancel()

    async def _serve_rest(self) -> None:
        while True:
            began = time.monotonic()
            await self.run_once()
            await asyncio.sleep(self._pause(began))

    async def _serve_urgent(self) -> None:
        while True:
            began = time.monotonic()
            await self._fire()
            await self._run_urgent()
            ends = time.monotonic() + self._pause(began)
            await at_most(ends - time.monotonic(), self._fire_in_time())
            await asyncio.sleep(ends - time.monotonic())

    def _pause(self, began: float) -> float:
        # Old snapshots can make it slow: it must take a small part of the time only. At random,
        # since workers that started together would otherwise always call together.
        pause = max(self._every, 10 * (time.monotonic() - began))
        return pause * random.uniform(0.8, 1.2)  # noqa: S311

    async def _fire_in_time(self) -> None:
        """Fire schedules when they are due, until the next maintenance."""
        while self._next is not None:
            await asyncio.sleep(max(self._next.total_seconds(), _LEAST_PAUSE))
            if not await self._fire() and not self._next:
                return  # another session fires them

    async def _fire(self) -> int:
        """Fire schedules that are due; return how many messages that were."""
        row = await self._ask("schedules", sql.FIRE_SCHEDULES)
        self._next = row["next_schedule"] if row else None
        for found in row["unserved"] if row else ():
            log.warning("%s", in_line(found))
        fired = Counter(row["fired"] if row else ())
        if fired:
            self._telemetry(SchedulesFired(quantity=fired.total(), schedules=tuple(fired)))
        return fired.total()

    async def _run_urgent(self) -> None:
        row = await self._ask("urgent maintenance", sql.REAP_AND_STAGE)
        if row and (row["reaped"] or row["staged"]):
            rest = {"notified": 0, "partitions_made": 0, "partitions_dropped": 0}
            done = {name: row[name] for name in ("reaped", "staged")}
            self._telemetry(MaintenanceDone(**done, **rest))
        if row and row["reaped"]:
            self._note_expired(**json.loads(row["expired"]))

    def _note_expired(
        self, reaped: int, by_queue: dict[str, int], locks: list[dict[str, Any]]
    ) -> None:
        self._telemetry(LocksExpired(quantity=reaped, by_queue=by_queue))
        for it in locks:
            log.log(
                logging.ERROR if it["is_last"] else logging.WARNING,
                "queue %r: the lock of message %d expired in attempt %d, held by %s; %s",
                it["queue"], it["id"], it["attempt"], in_line(it["worker"] or "nobody"),
                "that was its last attempt" if it["is_last"] else "it comes again",
            )  # fmt: skip
        if reaped > len(locks):
            log.warning("%d more locks expired", reaped - len(locks))

    async def _ask(self, what: str, statement: str) -> asyncpg.Record | None:
        """The row of a call; None if it failed, which stops no message."""
        try:
            [row] = await self._database.fetch(statement)
        except (NotifyqError, asyncpg.PostgresError) as error:
            if is_refusal(error):
                self._refusals.refused(what, error, "it is tried again")
            else:
                log.warning("%s failed, it is tried again: %s", what, error)
            return None
        self._refusals.works(what)
        return row

    def _note_failing(self, failing: tuple[str, ...]) -> None:
        # The number of failures at the end of each rises.
        duties = tuple(it.partition(":")[0] for it in failing)
        if duties != self._failing:
            self._failing = duties
            self._telemetry(MaintenanceFailing(failing=failing))

    async def run_once(self) -> bool:
        """Maintain once. False: another session is doing it, or the server refuses it."""
        row = await self._ask("maintenance", sql.MAINTAIN)
        if row is None:
            return False
        report = dict(row)
        check_versions(report.pop("version"), report.pop("serves"))
        self._note_failing(tuple(report.pop("failing")))
        if report["reaped"] is None:
            return False
        self._telemetry(MaintenanceDone(**report))
        return True
