"""Runs `messages.maintain()` regularly, beside pg_cron."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.refusals import Refusals, is_refusal
from notifyq.errors import NotifyqError
from notifyq.queues.admin import check_versions
from notifyq.telemetry import MaintenanceDone, MaintenanceFailing, SchedulesFired

if TYPE_CHECKING:
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.telemetry import TelemetryHandler

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
        while True:
            began = time.monotonic()
            await self.run_once()
            # Old snapshots can make it slow: it must take a small part of the time only. At random,
            # since workers that started together would otherwise always call together.
            pause = max(self._every, 10 * (time.monotonic() - began))
            pause *= random.uniform(0.8, 1.2)  # noqa: S311
            ends = time.monotonic() + pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._fire_in_time()
            await asyncio.sleep(ends - time.monotonic())

    async def _fire_in_time(self) -> None:
        """Fire schedules when they are due, until the next maintenance."""
        while self._next is not None:
            await asyncio.sleep(max(self._next.total_seconds(), _LEAST_PAUSE))
            try:
                [row] = await self._database.fetch(sql.FIRE_SCHEDULES)
            except (NotifyqError, asyncpg.PostgresError):
                self._next = None  # the next maintenance reports it, if it fails again
            else:
                self._record(row["fired"], row["next_schedule"])
                if not row["fired"] and not self._next:
                    return  # another session fires them

    def _record(self, fired: int, left: timedelta | None) -> None:
        self._next = left
        if fired:
            self._telemetry(SchedulesFired(quantity=fired))

    def _note_failing(self, failing: tuple[str, ...]) -> None:
        # The number of failures at the end of each rises.
        duties = tuple(it.partition(":")[0] for it in failing)
        if duties != self._failing:
            self._failing = duties
            self._telemetry(MaintenanceFailing(failing=failing))

    async def run_once(self) -> bool:
        """Maintain once. False: another session is doing it, or the server refuses it."""
        try:
            [row] = await self._database.fetch(sql.MAINTAIN)
        except (NotifyqError, asyncpg.PostgresError) as error:
            # Handling messages does not depend on it.
            if is_refusal(error):
                self._refusals.refused("maintenance", error, "it is tried again")
            else:
                log.warning("maintenance failed, it is tried again: %s", error)
            return False
        self._refusals.works("maintenance")
        report = dict(row)
        check_versions(report.pop("version"), report.pop("serves"))
        self._record(report.pop("fired"), report.pop("next_schedule"))
        self._note_failing(tuple(report.pop("failing")))
        if report["reaped"] is None:
            return False
        self._telemetry(MaintenanceDone(**report))
        return True
