"""An import that is killed at any step, or loses an answer, moves each message once in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from integrations.sources import enqueue, install, install_pgqueuer
from notifyq.database.pool import Database, connect
from notifyq.importing import SYSTEMS, Transfer
from support.database import Connection
from support.dying import dying


@pytest.mark.timeout(120)
@pytest.mark.parametrize("system", SYSTEMS)
async def test_an_import_is_killed_at_every_step(
    database: str, empty_database: str, connection: Connection, system: str
) -> None:
    """Each run is killed one step later than the last one, and continues its work."""
    await install(system, empty_database)
    program = Path(__file__).with_name("killed.py")
    steps, sent = await dying(program, system, empty_database, database)
    assert steps > 10

    messages = await connection.fetch(
        "select coalesce(message -> 'n', message) as number from messages.message"
    )
    assert sorted(row["number"] for row in messages) == list(range(sent))
    reader = await connect(empty_database)
    [table] = await SYSTEMS[system](reader, None)
    assert not await reader.fetch(table.census)
    await reader.close()


class Forgetful(Database):
    """Loses the first answer to each call."""

    async def persist(self, *args: Any, **options: Any) -> Any:
        await super().persist(*args, **options)
        return await super().persist(*args, **options)


async def test_a_lost_answer_is_requested_again(database: str, connection: Connection) -> None:
    await install_pgqueuer(database)
    await enqueue(database, "default", [b"1", b"2"])
    reader = await connect(database)
    async with Forgetful(database) as own:
        transfer = Transfer(reader, own, await SYSTEMS["pgqueuer"](reader, None))
        summary = await transfer.run(await transfer.census())
    await reader.close()
    assert (summary.published, summary.known) == (0, 2)
    assert await connection.fetchval("select count(*) from messages.message") == 2
    assert not await connection.fetchval("select count(*) from pgqueuer")


async def test_two_imports_at_once_share_the_work(database: str, connection: Connection) -> None:
    await install_pgqueuer(database)
    await enqueue(database, "default", [str(n).encode() for n in range(2500)])

    async def run() -> int:
        reader = await connect(database)
        async with Database(database) as own:
            transfer = Transfer(reader, own, await SYSTEMS["pgqueuer"](reader, None))
            summary = await transfer.run(await transfer.census())
        await reader.close()
        assert not summary.known
        return summary.published

    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(run()) for _ in range(2)]
    assert sum(run.result() for run in runs) == 2500
    messages = await connection.fetch("select message from messages.message")
    assert sorted(row["message"] for row in messages) == list(range(2500))
