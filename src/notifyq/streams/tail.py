"""Follow a stream without a subscription."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.models.event import Event
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Wake
from notifyq.telemetry import TelemetryHandler


class Tail:
    """Yields each event of a stream that is committed from now on, or after `seen`, once.

    It reads by snapshots: no segment is kept for it, and a killed tail leaves nothing behind.
    Events are in commit order, and by id within one poll.
    """

    def __init__(
        self,
        database: Database,
        stream: str,
        *,
        seen: str | None = None,
        telemetry: TelemetryHandler,
    ) -> None:
        self._database = database
        self._stream = stream
        self.position = seen
        """The position behind the events of the last poll."""
        self._telemetry = telemetry
        self._wake = Wake()

    async def events(self, *, poll: float = 1) -> AsyncGenerator[list[Event], None]:
        """Yield the events of each poll, without end."""
        if self.position is None:
            self.position = str(await self._database.value(sql.POSITION))
        await self._database.fetch(sql.STREAM_INFO, self._stream)
        async with Listener(
            self._database,
            [sql.NEW_EVENT],
            partial(self._wake.on_event, self._stream),
            name="notifyq stream tail",
            telemetry=self._telemetry,
            reads_only=True,
        ) as listener:
            while True:
                # Clear first: a notification during the poll causes another one.
                self._wake.clear()
                rows = await self._database.persist(sql.EVENTS_SINCE, self.position, self._stream)
                self.position = rows[0]["position"]
                # Without new events there is one row, which has only the position.
                found = [Event.from_row(row, self._stream) for row in rows if row["id"] is not None]
                if found:
                    yield found
                listener.check()
                await self._wake.rest(poll)
