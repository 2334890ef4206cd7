"""Follow dead messages: a notification wakes the reader, which reads the archive."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from datetime import datetime

import asyncpg

from notifyq.archive.reader import Archive
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import Refusals, concerns_all
from notifyq.errors import DatabaseError, ForeignPositionError
from notifyq.models.message import ArchivedMessage
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Wake
from notifyq.telemetry import TelemetryHandler

log = logging.getLogger("notifyq.dead_letters")


class DeadLetters:
    """Yields each dead message after a position once, also across restarts of the server.

    Start at `seen`, the last position of an earlier process, or at the instant `since`; by default
    now.
    """

    def __init__(
        self,
        database: Database,
        *,
        queue: str | None = None,
        seen: str | None = None,
        since: datetime | None = None,
        poll: float = 5,
        telemetry: TelemetryHandler,
    ) -> None:
        self._database = database
        self._archive = Archive(database)
        self._queue = queue
        self._poll = poll
        self._telemetry = telemetry
        self._wake = Wake()
        self._refusals = Refusals(log)
        self._from: str | datetime | None = since or seen
        self._yielded = seen
        """The last position that the caller has got."""

    async def batches(self) -> AsyncGenerator[tuple[list[ArchivedMessage], str], None]:
        """Yield dead messages as they come, without end, with the position that follows them.

        The first batch may be empty: it has the position to store. Raises DatabaseUnavailableError
        when the server is away for longer than the retries, and ForeignPositionError on another
        server, and AccessDeniedError or SchemaError where each read is refused; another refusal is
        logged, and the read repeated. After a failover, messages of the last moments may come
        again.
        """
        first = True
        if self._from is None:
            self._from = self._yielded = await self._archive.position()
        async with Listener(
            self._database,
            [sql.DEAD_MESSAGE],
            lambda _channel, _payload: self._wake.set(),
            name="notifyq dead watch",
            telemetry=self._telemetry,
            reads_only=True,
        ) as listener:
            while True:
                # Clear first: a notification during the poll causes another one.
                self._wake.clear()
                seen, dead = await self._poll_until_answered(self._from)
                self._from = seen
                if dead or first:
                    first = False
                    self._yielded = seen
                    yield dead, seen
                listener.check()
                if not dead:
                    await self._wake.rest(self._poll)

    async def _poll_until_answered(
        self, start: str | datetime
    ) -> tuple[str, list[ArchivedMessage]]:
        while True:
            async with self._refusals.repeated(
                "dead messages", "they are read again each second", _is_final
            ):
                return await self._poll_once(start)

    async def _poll_once(self, start: str | datetime) -> tuple[str, list[ArchivedMessage]]:
        if isinstance(start, datetime):
            return await self._archive.dead_from(start, self._queue)
        try:
            return await self._archive.dead_since(start, self._queue)
        except ForeignPositionError:
            # A promoted standby may lack the last seconds. No message failed between the last
            # position that was yielded and this one: go on from there if the standby knows it.
            known = await self._archive.known_position(self._yielded or start)
            return await self._archive.dead_since(known, self._queue)


def _is_final(error: Exception) -> bool:
    # Else the position or the queue is wrong, and stays so.
    return concerns_all(error) or isinstance(error, DatabaseError | asyncpg.DataError)
