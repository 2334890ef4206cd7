"""The server's notification queue: ways to fill it, and sessions that keep it full."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from notifyq.chaos.server import session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.database.pool import Connection

_PAYLOAD = 7900
"""Bytes of a payload that fills a page of the queue; 8000 are refused."""
_PAGE = 8192
_BATCH = 2000
"""Notifications of a transaction, which keeps them in memory until it commits."""


async def notify(connection: Connection, channel: str, megabytes: float) -> None:
    """Send so many megabytes of notifications, as fast as one session can."""
    left = max(1, round(megabytes * 1024 * 1024 / _PAGE))
    while left > 0:
        # Each payload has a number, because a transaction sends equal payloads only once.
        await connection.execute(
            "select pg_notify($1, rpad(n::text, $2, '.')) from generate_series(1, $3::int) as n",
            channel,
            _PAYLOAD,
            min(left, _BATCH),
        )
        left -= _BATCH


async def usage(connection: Connection) -> float:
    """Return the share of the queue that is used."""
    share: float = await connection.fetchval("select pg_notification_queue_usage()")
    return share


async def capacity(connection: Connection) -> float:
    """Return the size of the queue in megabytes; before PostgreSQL 17 it is always 8 GB."""
    pages = await connection.fetchval("select current_setting('max_notify_queue_pages', true)")
    return int(pages or 1_048_576) * _PAGE / 1024 / 1024


@asynccontextmanager
async def hoarder(dsn: str) -> AsyncIterator[None]:
    """Hold a session that listens in an open transaction: the queue keeps all notifications."""
    async with session(dsn, "hoarder") as connection:
        await connection.execute("listen hoarded")
        await connection.execute("begin; select")
        yield


@asynccontextmanager
async def listeners(dsn: str, count: int) -> AsyncIterator[list[Connection]]:
    """Hold so many idle sessions, each listening to a channel of its own."""
    async with AsyncExitStack() as stack:
        opened = []
        for number in range(count):
            connection = await stack.enter_async_context(session(dsn, "idle listener"))
            await connection.execute(f"listen idle_{number}")
            opened.append(connection)
        yield opened
