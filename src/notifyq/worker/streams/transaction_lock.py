"""Locks of an open transaction, for a worker whose listening session is not its own.

Behind a pooler that lends a session for one transaction, locks of the session would be anybody's
and last for ever. A transaction that does nothing holds back no vacuum.
"""

from __future__ import annotations

import logging
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import sql
from notifyq.errors import NotifyqError

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection, Database

log = logging.getLogger("notifyq.worker")

_PING_EVERY = 5.0


class TransactionLock:
    """One transaction for as long as its connection lasts, and a new one when it is gone."""

    def __init__(self, database: Database) -> None:
        self._lane = database.lane()
        self._stack = AsyncExitStack()
        self._ping_at = 0.0
        self._connection: AnyConnection | None = None
        self.session: AnyConnection | None = None
        """What the locks end with."""

    async def keep(self) -> None:
        """Begin, or see whether the connection still answers."""
        now = time.monotonic()
        if now < self._ping_at:
            return
        self._ping_at = now + _PING_EVERY
        if self.session is not None and await self.call(sql.VERSION) is not None:
            return
        await self._end()
        try:
            connection = await self._stack.enter_async_context(self._lane.connection())
            self._connection = connection
            await self._stack.enter_async_context(connection.transaction())
            await connection.fetch(sql.TRANSACTION)
        except (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            log.warning("no place in a subscription can be had: %s", error)
            await self._end()
        else:
            self.session = connection

    async def call(self, statement: str, *args: Any) -> Any:
        """The one value of a call in the transaction; None if it cannot be had."""
        if self.session is None:
            return None
        try:
            return await self.session.fetchval(statement, *args, timeout=5)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            log.debug("a call for a place was not answered: %s", error)
            self.session = None
            self._ping_at = 0.0
            return None

    async def close(self) -> None:
        """Give all locks up."""
        await self._end()
        await self._lane.close()

    async def _end(self) -> None:
        if self._connection is not None and self.session is None:
            # It broke, or was given up while it began: nobody knows what is open on it.
            with suppress(asyncpg.InterfaceError):  # the pool has noticed before, and let it go
                self._connection.terminate()
        self.session = self._connection = None
        stack, self._stack = self._stack, AsyncExitStack()
        with suppress(NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await stack.aclose()
