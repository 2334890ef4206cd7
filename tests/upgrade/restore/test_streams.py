"""Streams in a database that was restored elsewhere: refused first, then nothing is passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from notifyq import schema
from notifyq.errors import RestoredDatabaseError
from support.database import Connection, session, value
from upgrade.restore.conftest import Programs
from upgrade.restore.readers import burn


async def publish(connection: Connection, *numbers: int) -> None:
    for number in numbers:
        await value(connection, "publish", queue="s", message=number)


async def unread(connection: Connection, subscriber: str) -> list[int]:
    """Read and finish what is there for a subscriber."""
    found: list[int] = []
    while batch := await connection.fetchval("select messages.next_batch('s', $1)", subscriber):
        rows = await connection.fetch("select message::text from messages.batch_events($1)", batch)
        found += [json.loads(row[0]) for row in rows]
        assert await value(connection, "finish_batch", batch=batch)
    return found


async def open_some(connection: Connection, subscriber: str, quantity: int) -> int:
    """Have a batch handed out, and leave it open."""
    batch: int = await connection.fetchval(
        "select messages.next_batch('s', $1, $2)", subscriber, quantity
    )
    return batch


async def test_subscribers_go_on_where_they_were_after_a_restore(
    connection: Connection, database: str, programs: Programs, elsewhere: str, tmp_path: Path
) -> None:
    # So that numbers of transactions are larger here than on the other server.
    await burn(connection, 5000)
    await value(connection, "create_stream", name="s")
    for name in ("half", "opened", "done", "none"):
        await value(connection, "subscribe", stream="s", subscriber=name)
    await publish(connection, *range(1, 11))
    await value(connection, "finish_batch", batch=await open_some(connection, "half", 4))
    await open_some(connection, "half", 2)
    await open_some(connection, "opened", 3)
    assert len(await unread(connection, "done")) == 10
    dump = await programs.dump(database, tmp_path / "dump")
    await programs.restore(dump, elsewhere, "--no-owner")

    async with session(elsewhere) as restored:
        await schema.install(restored)
        with pytest.raises(RestoredDatabaseError):
            await open_some(restored, "half", 1)
        # Published before any poll: its transaction id was given before.
        await publish(restored, 11)
        xid = "select max(xid::text::bigint) from messages.event where message {} '11'"
        assert await restored.fetchval(xid.format("=")) < await restored.fetchval(xid.format("<>"))
        assert await value(restored, "adopt")
        await publish(restored, 12)
        assert await unread(restored, "half") == [*range(5, 13)]
        assert await unread(restored, "opened") == await unread(restored, "none") == [*range(1, 13)]
        assert await unread(restored, "done") == [11, 12]
        await value(restored, "maintain")
        assert await unread(restored, "done") == []
    # The server that it came from knows nothing of it.
    assert await unread(connection, "opened") == [*range(1, 11)]
