"""The upkeep of the database, by whichever worker comes first, beside or instead of pg_cron."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import TYPE_CHECKING

import asyncpg

from notifyq import sql
from notifyq.admin import check_versions
from notifyq.errors import DatabaseUnavailableError
from notifyq.events import SchedulesFired, UpkeepDone

if TYPE_CHECKING:
    from notifyq.database import Database
    from notifyq.events import Sink

log = logging.getLogger("notifyq.upkeep")


class Upkeep:
    """Calls messages.maintain() every so often; an advisory lock in it lets one caller through."""

    def __init__(self, database: Database, every: float, sink: Sink) -> None:
        self._database = database
        self._every = every
        self._sink = sink

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
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311

    async def run_once(self) -> bool:
        """Maintain once. False: another session is doing it."""
        [row] = await self._database.fetch(sql.MAINTAIN)
        report = dict(row)
        check_versions(report.pop("version"), report.pop("serves"))
        if fired := report.pop("fired"):
            self._sink(SchedulesFired(quantity=fired))
        if report["reaped"] is None:
            return False
        self._sink(UpkeepDone(**report))
        return True
