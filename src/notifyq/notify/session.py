"""The listening session: services beside the listener use it, one call at a time."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

    from notifyq.database.pool import Connection

_ARRIVES_WITHIN = 3.0
"""Seconds after which a notification that was sent as a test counts as lost."""


class Session:
    """The connection that listens, for one call at a time.

    `notify` sends a notification to a channel from another session; it returns false while that is
    not possible. `on_lost` is called where notifications do not arrive.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        notify: Callable[[str], Awaitable[bool]],
        on_lost: Callable[[], None] = lambda: None,
        timeout: float = 5,
    ) -> None:
        self._connection = connection
        self._notify = notify
        self._on_lost = on_lost
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._calls = 0
        self._testing = asyncio.Lock()
        self._delivers: bool | None = None

    async def fetch(self, statement: str, *args: Any) -> list[asyncpg.Record]:
        """Run a call and return its rows; notifications that arrive meanwhile are not lost."""
        async with self._turn:
            self._calls += 1
            return await self._connection.fetch(statement, *args, timeout=self._timeout)

    async def listen(self, channel: str, on_notification: Callable[[], None]) -> int:
        """Listen to one more channel until the session ends; return the number of this call."""
        async with self._turn:
            self._calls += 1
            await self._connection.add_listener(channel, lambda *_: on_notification())
            return self._calls

    async def delivers(self) -> bool:
        """Test, once, whether notifications arrive.

        A pooler in transaction mode accepts LISTEN, loses notifications, and keeps session locks
        after their client has gone.
        """
        async with self._testing:
            while self._delivers is None:
                self._delivers = await self._test()
                if self._delivers is False:
                    self._on_lost()
            return self._delivers

    async def _test(self) -> bool | None:
        arrived_with: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        channel = f"notifyq_{secrets.token_hex(8)}"

        def on_notification() -> None:
            if not arrived_with.done():
                arrived_with.set_result(self._calls)

        number = await self.listen(channel, on_notification)
        while not await self._notify(channel):  # noqa: ASYNC110
            await asyncio.sleep(1)
        # No timeout of asyncio: that would beat a notification that a stopped process reads late.
        await asyncio.wait({arrived_with}, timeout=_ARRIVES_WITHIN)
        if not arrived_with.done():
            return False
        # A pooler passes a notification to the client that has the server's session at the moment.
        # One that arrived with a later call of this session proves nothing: test again.
        return True if arrived_with.result() == number else None

    def abort(self) -> None:
        """Break the connection; the listener makes another one."""
        self._connection.terminate()
