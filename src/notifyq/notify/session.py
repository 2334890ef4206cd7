"""A listening session, lent to services that run beside the listener for one call at a time."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import asyncpg

    from notifyq.database.pool import Connection

_HEARS_WITHIN = 3.0
"""Seconds after which a bell that was rung for nobody else is believed to be lost."""


class Session:
    """The listening connection, for one call at a time."""

    def __init__(
        self, connection: Connection, timeout: float, report_deaf: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self.report_deaf = report_deaf
        """To be called where no bell arrives; each listener says so once."""
        self._turn = asyncio.Lock()
        self._calls = 0
        self._trial = asyncio.Lock()
        self._hears: bool | None = None

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a call and return its rows; bells that arrive meanwhile are not lost."""
        async with self._turn:
            self._calls += 1
            return await self._connection.fetch(statement, *args, timeout=self._timeout)

    async def listen(self, channel: str, on_bell: Callable[[], None]) -> int:
        """Listen to one more channel for as long as the session lasts; the number of this call."""
        async with self._turn:
            self._calls += 1
            await self._connection.add_listener(channel, lambda *_: on_bell())
            return self._calls

    async def hears(self, ring: Callable[[str], Coroutine[Any, Any, Any]]) -> bool:
        """Try it, once: a pooler accepts LISTEN, loses bells, and keeps promises beyond their end.

        `ring` rings a channel from another session; it answers false while it cannot.
        """
        async with self._trial:
            while self._hears is None:
                self._hears = await self._is_reached(ring)
            return self._hears

    async def _is_reached(self, ring: Callable[[str], Coroutine[Any, Any, Any]]) -> bool | None:
        came_with: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        channel = f"notifyq_{secrets.token_hex(8)}"

        def on_bell() -> None:
            if not came_with.done():
                came_with.set_result(self._calls)

        number = await self.listen(channel, on_bell)
        while not await ring(channel):  # noqa: ASYNC110
            await asyncio.sleep(1)  # the server was not there to ask
        # Not a timeout, which would win over a bell that a stopped process reads as late.
        await asyncio.wait({came_with}, timeout=_HEARS_WITHIN)
        if not came_with.done():
            return False
        # A pooler lets a bell through to whoever has the server's session at the moment: one that
        # came with a later call of ours says nothing.
        return True if came_with.result() == number else None

    @property
    def backend_pid(self) -> int:
        """The server process of this session."""
        return self._connection.get_server_pid()

    def abort(self) -> None:
        """Break the connection; the listener makes another one."""
        self._connection.terminate()
