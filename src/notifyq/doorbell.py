"""A listening session that is opened by the first who needs it, and shared by all who wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from notifyq import sql
from notifyq.events import ListenerDeaf
from notifyq.listener import Listener, hears

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from notifyq.database import Database
    from notifyq.events import Sink
    from notifyq.listener import Session


class Doorbell:
    """Listens to channels from the first `listen()` to `close()`.

    `on_bell(payload)` is called for each bell, with None when some may have been missed: after
    every (re)connection, and when the listener has given up.
    """

    def __init__(
        self,
        database: Database,
        channels: Sequence[str],
        on_bell: Callable[[str | None], None],
        *,
        listen_dsn: str | None,
        name: str,
        sink: Sink,
    ) -> None:
        self._database = database
        self._channels = channels
        self._on_bell = on_bell
        self._listen_dsn = listen_dsn or database.dsn
        self._name = name
        self._sink = sink
        self._starting = asyncio.Lock()
        self._listener: Listener | None = None
        self.hears = False
        """Whether bells are known to arrive: through some poolers none does."""
        self.is_closed = False

    async def listen(self) -> None:
        """Open the session if it is not; raises the error after which the listener gave up."""
        async with self._starting:
            if self.is_closed:
                return
            if self._listener is not None:
                if self._listener.failed.done():
                    self._listener.failed.result()
                return
            listener = Listener(
                self._listen_dsn,
                self._channels,
                lambda channel, payload: self._on_bell(payload if channel else None),
                settings=self._database.settings,
                name=self._name,
                ping=10,
                services=[self._serve],
                sink=self._sink,
            )
            self._home = asyncio.get_running_loop()
            await listener.__aenter__()
            listener.failed.add_done_callback(lambda _: self._on_bell(None))
            self._listener = listener

    async def close(self) -> None:
        """End the session, for good."""
        self.is_closed = True
        self._on_bell(None)
        async with self._starting:
            listener, self._listener = self._listener, None
            if listener is not None:
                await listener.__aexit__()

    async def _serve(self, session: Session) -> None:
        # On the listener's loop, for as long as a session lasts.
        async def ring(channel: str) -> bool:
            call = self._database.persist(sql.RING, channel)
            rung: Future[Any] = asyncio.run_coroutine_threadsafe(call, self._home)
            return bool(await asyncio.wrap_future(rung))

        if not await hears(session, ring):
            event = ListenerDeaf(backend_pid=session.backend_pid)
            self._home.call_soon_threadsafe(self._sink, event)
            return
        self.hears = True
        try:
            await asyncio.Event().wait()
        finally:
            self.hears = False
