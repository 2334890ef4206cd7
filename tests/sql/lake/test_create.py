"""Lakes are registered once, also by two first exports at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from support.database import until_blocked

if TYPE_CHECKING:
    from support.database import Connect, Connection

CREATE = "select (notifyq.create_lake('/lake')).id"


async def test_two_first_exports_at_once_have_one_lake(
    connection: Connection, connect: Connect
) -> None:
    one, other = await connect(), await connect()
    async with one.transaction():
        first = await one.fetchval(CREATE)
        second = asyncio.create_task(other.fetchval(CREATE))
        await until_blocked(connection, other)
    assert await second == first
    # A lake without files would hold up retention.
    assert await connection.fetchval("select count(*) from messages.lakes()") == 1
    await connection.execute("select messages.forget_lake($1)", first)
    assert await connection.fetchval(CREATE) != first
