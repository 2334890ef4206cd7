"""`notifyq top` when the server refuses one of its statements: it shows the rest, and why."""

from __future__ import annotations

import pytest

from notifyq.database.pool import Database
from notifyq.errors import SchemaMissingError
from notifyq.operations.top.snapshot import Source
from operations.top.filled import fill
from operations.top.test_top import see, watching
from support.database import Connection
from support.refusing import LIMITED, OF_ALL, refusing

PARTS = {
    "queues": "messages.backlog",
    "rates": "messages.throughput",
    "workers": "messages.workers",
    "streams": "notifyq.subscription_lags",
    "dead": "notifyq.dead_groups",
    "health": "messages.health",
    "holders": "messages.activity",
    "cron": "messages.cron_entries",
}
CALLS = list(PARTS.values())


@pytest.mark.parametrize("state", [*OF_ALL, "55000", "XX000"])
async def test_each_part_is_refused_alone(
    database: str, connection: Connection, state: str
) -> None:
    await fill(connection)
    async with Database(database) as ours:
        for name, function in PARTS.items():
            source = Source(ours)
            async with refusing(connection, function, state):
                seen = await source.snapshot()
                assert source.parts.names == PARTS.keys()
                # health() calls activity(), too.
                assert set(seen.refused) - {"health"} == {name} - {"health"}
                assert "refused for a test" in seen.refused[name]
                assert bool(seen.backlog) == (name != "queues")
                assert (seen.health is None) == ("health" in seen.refused)
            source.forget()
            assert not (await source.snapshot()).refused


async def test_the_screens_stay_and_come_back(database: str, connection: Connection) -> None:
    await fill(connection)
    async with watching(database, size=(160, 40)) as pilot:
        await see(pilot, "billing")
        for state in (*OF_ALL, *LIMITED):
            async with refusing(connection, "messages.workers", state):
                text = await see(pilot, "refused for a test")
                assert "billing" in text
                is_passing = state in {"57014", "40001", "53300"}
                assert ("DATABASE AWAY" in text) == is_passing
            await see(pilot, "billing", "xmin", hidden="refused for a test")


async def test_where_all_is_refused_that_is_the_error(
    database: str, connection: Connection
) -> None:
    await connection.execute("drop schema messages cascade; drop schema notifyq cascade")
    async with Database(database) as ours:
        with pytest.raises(SchemaMissingError):
            await Source(ours).snapshot()
