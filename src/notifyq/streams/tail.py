"""Looking on as events are published: a reader that nobody waits for, and that keeps nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.models.event import Event
from notifyq.notify.shared import Listening
from notifyq.notify.wake import Wake

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from notifyq.database.pool import Database
    from notifyq.telemetry import Sink


class Tail:
    """Every event of a stream that is committed after a position, once, without a subscription.

    It reads by snapshots of its own, so no segment is kept for it; if it is killed nothing is left
    behind. The order is that of commits, and by id within one look.
    """

    def __init__(self, database: Database, stream: str, *, sink: Sink) -> None:
        self._database = database
        self._stream = stream
        self._sink = sink
        self._wake = Wake()

    async def events(self, *, poll: float = 1) -> AsyncGenerator[list[Event], None]:
        """Events as they come, for ever, those of one look together."""
        seen = str(await self._database.value(sql.POSITION))
        await self._database.fetch(sql.STREAM_INFO, self._stream)
        async with Listening(
            self._database, [sql.NEW_EVENT], self._hear, name="notifyq stream tail", sink=self._sink
        ) as listener:
            while True:
                # Cleared before the look: a bell that rings during it causes another look.
                self._wake.clear()
                rows = await self._database.persist(sql.EVENTS_SINCE, seen, self._stream)
                seen = rows[0]["position"]
                # Where nothing is new there is one row, which has the position only.
                found = [Event.from_row(row, self._stream) for row in rows if row["id"] is not None]
                if found:
                    yield found
                listener.check()
                await self._wake.rest(poll)

    def _hear(self, _channel: str, payload: str) -> None:
        if payload in {"", self._stream}:
            self._wake.set()
