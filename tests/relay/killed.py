"""Relays that kill themselves, each one step later than the one before: `killed.py SOURCE TARGET`.

There is a step before and behind each call to either database.
"""

from __future__ import annotations

import sys
from typing import Any

from notifyq.config import RelaySettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.relay import Relay
from support.database import session
from support.dying import die_at_each_step, step

SOURCE, TARGET = sys.argv[1:]
STEPS = {sql.RELAY_CLAIM, sql.RECEIVE_MANY, sql.RELAY_FINISH}


class Mortal(Database):
    """Kills its process at a step."""

    async def fetch(self, statement: str, *args: Any) -> Any:
        return await self._around(super().fetch, statement, *args)

    async def persist(self, statement: str, *args: Any, **options: Any) -> Any:
        return await self._around(super().persist, statement, *args, **options)

    def dedicated(self, size: int = 1) -> Database:
        return Mortal(self.dsn, settings=self.settings.model_copy(update={"pool_size": size}))

    async def _around(self, call: Any, statement: str, *args: Any, **options: Any) -> Any:
        if statement not in STEPS:
            return await call(statement, *args, **options)
        step()
        answer = await call(statement, *args, **options)
        step()
        return answer


async def run() -> None:
    """Relay everything, or as much as there are steps."""
    settings = RelaySettings.load(batch=2, in_flight=2)
    routes = {"default": "default"}
    await Relay(Mortal(SOURCE), Mortal(TARGET), routes, once=True, settings=settings).run()


async def prepare(numbers: range) -> None:
    """Expire the locks of the killed relay, and publish more messages."""
    async with session(SOURCE) as connection:
        await connection.execute("""
            update messages.message set lock_expires_at = now() where state = 'locked';
            select messages.reap();
            update messages.message set available_at = now(), state = 'waiting';
            -- Its session is not known to be dead yet.
            select pg_terminate_backend(pid) from pg_stat_activity
            where pid <> pg_backend_pid() and datname = current_database()
              and application_name like 'notifyq%'
        """)
        for number in numbers:
            await connection.execute("select messages.publish('default', $1)", number)


die_at_each_step(prepare, run)
