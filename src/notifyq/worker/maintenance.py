"""The upkeep of the database, by whichever worker comes first, beside or instead of pg_cron."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import sql
from notifyq.errors import DatabaseUnavailableError
from notifyq.queues.admin import check_versions
from notifyq.telemetry import SchedulesFired, UpkeepDone

if TYPE_CHECKING:
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.telemetry import Sink

log = logging.getLogger("notifyq.upkeep")

_NEAR = 0.05
"""Seconds between two looks at what schedules have due, at least."""


class Upkeep:
    """Calls messages.maintain() every so often; an advisory lock in it lets one caller through."""

    def __init__(self, database: Database, every: float, sink: Sink) -> None:
        self._database = database
        self._every = every
        self._sink = sink
        self._next: timedelta | None = None
        """How long it is until a schedule is due."""

    async def serve(self) -> None:
        """Maintain, for ever; what fails is left to the next run, or to pg_cron.

        Raises SchemaError when the schema has become one that this package cannot work with.
        """
        while True:
            began = time.monotonic()
            try:
                await self.run_once()
            except DatabaseUnavailableError as error:
                log.warning("upkeep failed, it is tried again: %s", error)
            except asyncpg.PostgresError as error:
                # Handling messages does not depend on it.
                log.error("upkeep failed, it is tried again: %s", error)  # noqa: TRY400  one line
            # Where old snapshots make it slow, it must not become all that happens. And workers
            # that started together would otherwise ask together for ever.
            pause = max(self._every, 10 * (time.monotonic() - began))
            pause *= random.uniform(0.8, 1.2)  # noqa: S311
            ends = time.monotonic() + pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._fire_in_time()
            await asyncio.sleep(ends - time.monotonic())

    async def _fire_in_time(self) -> None:
        """Fire schedules when they are due, for ever; the upkeep comes when it comes."""
        while self._next is not None:
            await asyncio.sleep(max(self._next.total_seconds(), _NEAR))
            try:
                [row] = await self._database.fetch(sql.FIRE_SCHEDULES)
            except (DatabaseUnavailableError, asyncpg.PostgresError):
                self._next = None  # the next upkeep tells, if it is still so
            else:
                self._note(row["fired"], row["next_schedule"])
                if not row["fired"] and not self._next:
                    return  # another session is at it, or stays at it

    def _note(self, fired: int, left: timedelta | None) -> None:
        self._next = left
        if fired:
            self._sink(SchedulesFired(quantity=fired))

    async def run_once(self) -> bool:
        """Maintain once. False: another session is doing it."""
        [row] = await self._database.fetch(sql.MAINTAIN)
        report = dict(row)
        check_versions(report.pop("version"), report.pop("serves"))
        self._note(report.pop("fired"), report.pop("next_schedule"))
        if report["reaped"] is None:
            return False
        self._sink(UpkeepDone(**report))
        return True
