"""Following dead messages: the bell says when to look, the archive says what there is."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from notifyq.archive.reader import Archive
from notifyq.database import sql
from notifyq.errors import ForeignPositionError
from notifyq.notify.shared import Listening
from notifyq.notify.wake import Wake

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from notifyq.database.pool import Database
    from notifyq.models.message import ArchivedMessage
    from notifyq.telemetry import Sink


class DeadLetters:
    """Every message that dies after a position, once, in batches, whatever happens to the server.

    `seen` is a position up to which all were handed out, where another process left off; `since`
    is an instant to begin at instead. With neither it begins now.
    """

    def __init__(
        self,
        database: Database,
        *,
        queue: str | None = None,
        seen: str | None = None,
        since: datetime | None = None,
        poll: float = 5,
        sink: Sink,
    ) -> None:
        self._database = database
        self._archive = Archive(database)
        self._queue = queue
        self._poll = poll
        self._sink = sink
        self._wake = Wake()
        self._from: str | datetime | None = since or seen
        self._handed = seen

    async def batches(self) -> AsyncGenerator[tuple[list[ArchivedMessage], str], None]:
        """Dead messages as they come, for ever, each time with the position that follows them.

        The first look is handed out even if it found nothing, so that its position can be kept.
        Raises DatabaseUnavailableError when the server stays away for longer than the retries,
        ForeignPositionError when it is another one. On a standby that took over, what died in the
        last moments before may be handed out again.
        """
        first = True
        if self._from is None:
            self._from = self._handed = await self._archive.position()
        async with Listening(
            self._database,
            [sql.DEAD_MESSAGE],
            lambda _channel, _payload: self._wake.set(),
            name="notifyq dead watch",
            sink=self._sink,
        ) as listener:
            while True:
                # Cleared before the look: a bell that rings during it causes another look.
                self._wake.clear()
                seen, dead = await self._look(self._from)
                self._from = seen
                if dead or first:
                    first = False
                    self._handed = seen
                    yield dead, seen
                listener.check()
                if not dead:
                    await self._wake.rest(self._poll)

    async def _look(self, start: str | datetime) -> tuple[str, list[ArchivedMessage]]:
        if isinstance(start, datetime):
            return await self._archive.dead_from(start, self._queue)
        try:
            return await self._archive.dead_since(start, self._queue)
        except ForeignPositionError:
            # A standby that took over may lack the last seconds. From what was handed out last up
            # to here nothing died: if it knows that position, it is as good.
            known = await self._archive.known_position(self._handed or start)
            return await self._archive.dead_since(known, self._queue)
