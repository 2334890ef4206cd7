"""A server that took over, promoted or restored to a moment, and what it knows of before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

import pytest

from notifyq import App, schema
from notifyq.dsn import with_database
from notifyq.errors import ForeignPositionError
from support.database import Connection, let_fail, session
from upgrade.restore.readers import burn, dead_since, position

LATE = "of timeline 1, and timeline 2 may lack transactions of it"


async def note(connection: Connection) -> None:
    """Have maintenance note how far the server has come, as it does every ten seconds."""
    await connection.execute(
        "update notifyq.origin set noted_at = noted_at - interval '1 hour'; "
        "select messages.maintain()"
    )


async def first_handed_out(app: App, seen: str, later: str) -> list[int]:
    """Follow with a reader that has read at `later`, and found nothing since `seen`."""
    letters = app.dead_letters(seen=seen)
    letters._from = later
    async with app, aclosing(letters.batches()) as batches, asyncio.timeout(20):
        async for dead, _ in batches:
            return [message.id for message in dead]
    return []


@pytest.mark.timeout(90)
async def test_positions_that_a_standby_cannot_know_stay_refused(
    elsewhere: str, promoted: Callable[[], str]
) -> None:
    async with session(elsewhere) as connection:
        await schema.install(connection)
        known = await position(connection)
        after = await let_fail(connection, 2)
        shared = await position(connection)
        await note(connection)
        late = await position(connection)
        assert await dead_since(connection, known) == after

    # The copy takes over, as it was at that moment; on the other goes what it never gets.
    copy = with_database(await asyncio.to_thread(promoted), urlsplit(elsewhere).path[1:])
    async with session(elsewhere) as old, session(copy) as new:
        # A restart alone begins no timeline.
        assert await dead_since(old, known) == after
        await let_fail(old)
        lost = await position(old)
        with pytest.raises(ForeignPositionError, match="later than this server"):
            await dead_since(new, lost)
        # Legible by its number again, and still not what it was.
        await burn(new, 100)
        reused = await let_fail(new, 2)
        for refused in (late, lost):
            with pytest.raises(ForeignPositionError, match=LATE):
                await dead_since(new, refused)
        assert await dead_since(new, known) == sorted([*after, *reused])
        assert await dead_since(new, shared) == reused
        await note(new)
        rows = await new.fetch("select timeline from notifyq.origin order by 1")
        assert [row["timeline"] for row in rows] == [1, 2]
        with pytest.raises(ForeignPositionError, match=LATE):
            await dead_since(new, lost)
        assert await dead_since(new, shared) == reused
        here = await position(new)
        assert await dead_since(new, here) == []
        # And not the other way round.
        await burn(old, 500)
        with pytest.raises(ForeignPositionError, match="of timeline 2"):
            await dead_since(old, here)

        # A reader goes on from what it has handed out, where it has found nothing since.
        app: Any = App(copy)
        assert await first_handed_out(app, shared, late) == reused
        # And one that has handed out what the standby may lack, from what both have in common.
        assert await first_handed_out(app, late, late) == reused
        assert await first_handed_out(app, lost, lost) == reused
