"""Following dead messages: the bell says when to look, the archive says what there is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from notifyq import sql
from notifyq.archive import Archive
from notifyq.listener import Listener

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from notifyq.database import Database
    from notifyq.events import Sink
    from notifyq.model import ArchivedMessage


class DeadLetters:
    """Every message that dies after a snapshot, once, in batches, whatever happens to the server.

    `seen` is a snapshot up to which all were handed out, where another process left off; None
    begins now.
    """

    def __init__(
        self,
        database: Database,
        *,
        queue: str | None = None,
        seen: str | None = None,
        poll: float = 5,
        sink: Sink,
    ) -> None:
        self._database = database
        self._archive = Archive(database)
        self._queue = queue
        self._poll = poll
        self._sink = sink
        self._wake = asyncio.Event()
        self._seen = seen

    async def batches(self) -> AsyncGenerator[tuple[list[ArchivedMessage], str], None]:
        """Dead messages as they come, for ever, each time with the snapshot that follows them.

        The first look is handed out even if it found nothing, so that its snapshot can be kept.
        Raises DatabaseUnavailableError when the server stays away for longer than the retries.
        """
        first = True
        seen = self._seen or await self._archive.snapshot()
        async with Listener(
            self._database.dsn,
            [sql.DEAD_MESSAGE],
            lambda _channel, _payload: self._wake.set(),
            settings=self._database.settings,
            name="notifyq dead watch",
            ping=10,
            sink=self._sink,
        ) as listener:
            listener.failed.add_done_callback(lambda _: self._wake.set())
            while True:
                # Cleared before the look: a bell that rings during it causes another look.
                self._wake.clear()
                seen, dead = await self._archive.dead_since(seen, self._queue)
                if dead or first:
                    first = False
                    yield dead, seen
                if listener.failed.done():
                    listener.failed.result()
                if not dead:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._poll):
                            await self._wake.wait()
