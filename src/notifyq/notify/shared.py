"""A listening session that is opened by the first who needs it, and shared by all who wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.config import masked
from notifyq.database import probes, sql
from notifyq.errors import ConfigurationError
from notifyq.notify.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from notifyq.database.pool import Database
    from notifyq.notify.listener import Service
    from notifyq.notify.session import Session
    from notifyq.telemetry import Sink


class DeliveryCheck:
    """A service beside a listener: tries whether bells arrive, and says so where none does."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._home = asyncio.get_running_loop()
        self.hears = False
        """Whether bells are known to arrive: through some poolers none does."""

    async def serve(self, session: Session) -> None:
        """Try it with each session; runs on the listener's loop, for as long as one lasts."""

        async def ring(channel: str) -> bool:
            call = self._database.persist(sql.RING, channel)
            rung: Future[Any] = asyncio.run_coroutine_threadsafe(call, self._home)
            try:
                return bool(await asyncio.wrap_future(rung))
            except asyncpg.ProgramLimitExceededError:
                return False  # the server's notification queue is full

        if not await session.hears(ring):
            session.report_deaf()
            return
        self.hears = True
        try:
            await asyncio.Event().wait()
        finally:
            self.hears = False


def same_database(database: Database) -> Service:
    """A service beside a listener: ends it where `listen_dsn` leads to another database."""
    home = asyncio.get_running_loop()

    async def check(session: Session) -> None:
        if database.listen_dsn == database.dsn:
            return
        call = database.persist(probes.IDENTITY)
        [there] = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))
        [here] = await session.fetch(probes.IDENTITY)
        if here != there:
            raise ConfigurationError(
                f"the listen DSN leads to another database than the DSN, {masked(database.dsn)}: "
                "it must be the address of the same one without the pooler"
            )

    return check


class SharedListener:
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
        name: str,
        sink: Sink,
    ) -> None:
        self._database = database
        self._channels = channels
        self._on_bell = on_bell
        self._name = name
        self._sink = sink
        self._starting = asyncio.Lock()
        self._listener: Listener | None = None
        self._hearing: DeliveryCheck | None = None
        self.is_closed = False

    @property
    def hears(self) -> bool:
        """Whether bells are known to arrive: through some poolers none does."""
        return self._hearing is not None and self._hearing.hears

    async def listen(self) -> None:
        """Open the session if it is not; raises the error after which the listener gave up."""
        async with self._starting:
            if self.is_closed:
                return
            if self._listener is not None:
                if self._listener.failed.done():
                    self._listener.failed.result()
                return
            hearing = DeliveryCheck(self._database)
            listener = Listener(
                self._database.listen_dsn,
                self._channels,
                lambda channel, payload: self._on_bell(payload if channel else None),
                settings=self._database.settings,
                name=self._name,
                ping=10,
                services=[hearing.serve],
                sink=self._sink,
            )
            await listener.__aenter__()
            listener.failed.add_done_callback(lambda _: self._on_bell(None))
            self._listener, self._hearing = listener, hearing

    async def close(self) -> None:
        """End the session, for good."""
        self.is_closed = True
        self._on_bell(None)
        async with self._starting:
            listener, self._listener = self._listener, None
            if listener is not None:
                await listener.__aexit__()
