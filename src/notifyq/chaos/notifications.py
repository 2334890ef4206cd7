"""The server's notification queue: how to fill it, and who keeps it from emptying."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from notifyq.database.pool import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from notifyq.database.pool import Connection

_PAYLOAD = 7900
"""Bytes of a payload that has a page of the queue to itself; 8000 are refused."""
_PAGE = 8192
_BATCH = 2000
"""Notifications of one transaction: it keeps all of them in memory until it commits."""


async def notify(connection: Connection, channel: str, megabytes: float) -> None:
    """Send so much through the queue, as fast as one session can."""
    left = max(1, round(megabytes * 1024 * 1024 / _PAGE))
    while left > 0:
        # Equal payloads of one transaction are sent once: each has a number.
        await connection.execute(
            "select pg_notify($1, rpad(n::text, $2, '.')) from generate_series(1, $3::int) as n",
            channel,
            _PAYLOAD,
            min(left, _BATCH),
        )
        left -= _BATCH


async def usage(connection: Connection) -> float:
    """Return the share of the queue that is taken."""
    share: float = await connection.fetchval("select pg_notification_queue_usage()")
    return share


async def capacity(connection: Connection) -> float:
    """Return the size of the queue in megabytes; before PostgreSQL 17 it is always 8 GB."""
    pages = await connection.fetchval("select current_setting('max_notify_queue_pages', true)")
    return int(pages or 1_048_576) * _PAGE / 1024 / 1024


@asynccontextmanager
async def hoarder(dsn: str) -> AsyncIterator[Connection]:
    """Hold a session that listens in an open transaction: nothing leaves the queue meanwhile."""
    connection = await connect(dsn, name="hoarder")
    try:
        await connection.execute("listen hoarded")
        await connection.execute("begin; select")
        yield connection
    finally:
        connection.terminate()


@asynccontextmanager
async def listeners(dsn: str, count: int) -> AsyncIterator[list[Connection]]:
    """Hold so many idle sessions, each of which listens to a channel of its own."""
    opened: list[Connection] = []
    try:
        for number in range(count):
            connection = await connect(dsn, name="idle listener")
            opened.append(connection)
            await connection.execute(f"listen idle_{number}")
        yield opened
    finally:
        for connection in opened:
            connection.terminate()
