"""A listening session that is opened by the first who needs it, and shared by all who wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import asyncpg

from notifyq.config import masked
from notifyq.database import probes, sql
from notifyq.errors import ConfigurationError
from notifyq.notify.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from notifyq.database.pool import Database
    from notifyq.notify.listener import Bell, Service
    from notifyq.notify.session import Session
    from notifyq.telemetry import Sink

_PING = 10.0
"""Seconds between two proofs that a session is alive."""


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


class Listening(Listener):
    """A listening session of a database, for who looks again after each bell.

    It tries whether bells arrive, and reports one when it has given up, so that the next look
    comes at once: `check()` before each wait says why.
    """

    def __init__(
        self,
        database: Database,
        channels: Sequence[str],
        on_bell: Bell,
        *,
        name: str,
        services: Sequence[Service] = (),
        sink: Sink,
    ) -> None:
        self._delivery = DeliveryCheck(database)
        super().__init__(
            database.listen_dsn,
            channels,
            on_bell,
            settings=database.settings,
            name=name,
            ping=_PING,
            services=[*services, self._delivery.serve],
            sink=sink,
        )

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.failed.add_done_callback(lambda _: self._on_bell("", ""))
        return self

    @property
    def hears(self) -> bool:
        """Whether bells are known to arrive: through some poolers none does."""
        return self._delivery.hears

    def check(self) -> None:
        """Raise the error after which it gave up, if it has."""
        if self.failed.done():
            self.failed.result()


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
        self._listener: Listening | None = None
        self.is_closed = False

    @property
    def hears(self) -> bool:
        """Whether bells are known to arrive: through some poolers none does."""
        return self._listener is not None and self._listener.hears

    async def listen(self) -> None:
        """Open the session if it is not; raises the error after which the listener gave up."""
        async with self._starting:
            if self.is_closed:
                return
            if self._listener is not None:
                self._listener.check()
                return
            listener = Listening(
                self._database,
                self._channels,
                lambda channel, payload: self._on_bell(payload if channel else None),
                name=self._name,
                sink=self._sink,
            )
            await listener.__aenter__()
            self._listener = listener

    async def close(self) -> None:
        """End the session, for good."""
        self.is_closed = True
        self._on_bell(None)
        async with self._starting:
            listener, self._listener = self._listener, None
            if listener is not None:
                await listener.__aexit__()
