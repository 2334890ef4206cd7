"""Extreme values in the tables break no reader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.programs import Notifyq
from extremes.filling import fill
from extremes.reading import (
    CHANGING,
    COMMANDS,
    FOLLOWING,
    OTHERS,
    SPARK,
    read_metrics,
    read_pages,
    run_commands,
)
from notifyq import App
from notifyq.cli import main
from support.database import Connection, archived, until
from support.running import working


def _leaves(command: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    found = getattr(command, "commands", None)
    if found is None:
        yield " ".join(path)
        return
    for name, inner in found.items():
        yield from _leaves(inner, (*path, name))


def test_each_command_is_classified() -> None:
    every = set(_leaves(main.tree()))
    assert every == COMMANDS.keys() | OTHERS | CHANGING | FOLLOWING | SPARK


@pytest.mark.timeout(180)
async def test_every_reader_works_with_extreme_values(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    taken, seen = await fill(connection)
    assert taken > 1000
    assert len(seen) > 200
    ids = [
        row[0]
        for row in await connection.fetch(
            "select id from messages.message union select id from messages.message_archive"
        )
    ]
    broken = await read_pages(database, connection, ids)
    broken += await asyncio.to_thread(read_metrics, database)
    with Notifyq(database) as notifyq:
        broken += await asyncio.to_thread(run_commands, notifyq, tmp_path, ids[:4])
    assert not broken, "\n".join(broken)


async def test_messages_can_be_cancelled_and_a_worker_works_with_extreme_values(
    database: str, connection: Connection
) -> None:
    await fill(connection)
    await connection.execute("begin")
    for (id_,) in await connection.fetch("select id from messages.message"):
        assert await connection.fetchval("select messages.cancel($1, running => true)", id_)
    await connection.execute("set constraints all immediate; rollback")
    app = App(database)

    @app.handler("mail")
    async def handle(message: object) -> object:
        return message

    ordinary = await connection.fetchval("select messages.publish('mail', '\"ordinary\"')")
    async with working(app, poll=0.2, maintenance=0.2):

        async def is_done() -> bool:
            return [row["status"] for row in await archived(connection, ordinary)] == ["success"]

        await until(is_done, "the ordinary message is handled")
    assert await connection.fetchval("select messages.maintain() is not null")
