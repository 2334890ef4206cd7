"""Relays that kill themselves, each one step later than the one before: `killed.py SOURCE TARGET`.

There is a step before and behind each call to either database. The first relay that comes to its
end is the last; then this prints how many steps there were, and how many messages were published.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from typing import Any

import uvloop

from notifyq.config import RelaySettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.relay import Relay
from support.database import session

SOURCE, TARGET = sys.argv[1:]
STEPS = {sql.RELAY_CLAIM, sql.RECEIVE_MANY, sql.RELAY_FINISH}


class Mortal(Database):
    """Kills its process at a step."""

    left = 0

    async def fetch(self, statement: str, *args: Any) -> Any:
        return await self._around(super().fetch, statement, *args)

    async def persist(self, statement: str, *args: Any, **options: Any) -> Any:
        return await self._around(super().persist, statement, *args, **options)

    def dedicated(self, size: int = 1) -> Database:
        return Mortal(self.dsn, settings=self.settings.model_copy(update={"pool_size": size}))

    async def _around(self, call: Any, statement: str, *args: Any, **options: Any) -> Any:
        if statement not in STEPS:
            return await call(statement, *args, **options)
        _step()
        answer = await call(statement, *args, **options)
        _step()
        return answer


def _step() -> None:
    Mortal.left -= 1
    if Mortal.left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


async def run(last: int) -> None:
    """Relay everything, or as much as there are steps."""
    Mortal.left = last
    settings = RelaySettings.load(batch=2, in_flight=2)
    routes = {"default": "default"}
    relay = Relay(Mortal(SOURCE), Mortal(TARGET), routes, once=True, settings=settings)
    await relay.run()


async def prepare(count: int) -> None:
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
        for number in range(3):
            await connection.execute("select messages.publish('default', $1)", count + number)


def main() -> None:
    """Let one after the other die."""
    sent = 0
    for last in itertools.count(1):
        asyncio.run(prepare(sent))
        sent += 3
        child = os.fork()
        if child == 0:
            uvloop.run(run(last))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(last, sent)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


main()
