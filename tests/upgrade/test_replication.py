"""A move by logical replication as the documentation has it, under workers until the switch."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import asyncpg
import pytest

from docs.pages import DOCS, Block, blocks
from notifyq import App, Reject, schema
from notifyq.operations.doctor import Level, examine
from notifyq.server import debian_binaries
from support.database import Connection, session, until, value
from support.running import doubles, statuses, working
from support.servers import kept_server

PAGE = DOCS / "operations/growing.md"


class Servers(NamedTuple):
    """The old server, with an install, and an empty database of the new one."""

    old: str
    new: str


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    binaries = debian_binaries()
    if binaries is None or not (binaries / "pg_dump").exists():
        pytest.skip("there is no pg_dump")
    with kept_server(binaries, wal_level="logical") as old, kept_server(binaries) as new:
        old.start()
        new.start()
        async with session(old.dsn) as connection:
            await schema.install(connection)
        yield Servers(old.dsn, new.dsn)


def steps() -> tuple[Block, Block]:
    """Return the commands that copy, and those that switch over."""
    copy, switch = (it for it in blocks(PAGE, "sh") if "subscription" in it.text)
    return copy, switch


async def run(block: Block, servers: Servers, folder: Path) -> str:
    """Run commands of the page as they are printed; return what they print."""
    program = folder / "notifyq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m notifyq "$@"\n')
    program.chmod(0o755)
    binaries = debian_binaries()
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euc", block.text),
        env={
            **os.environ,
            "PATH": f"{folder}:{binaries}:{os.environ['PATH']}",
            "OLD": servers.old,
            "NEW": servers.new,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(100):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    text = out.decode()
    assert process.returncode == 0, text
    # The roles of the old server are there already, as far as they are those of each server.
    errors = re.findall(r"ERROR: .*", text)
    assert all(re.search(r'role "postgres" already exists', it) for it in errors), text
    return text


class Load:
    """An App, what it has handled, and numbers that are published until it is over."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn)
        self.handled = Counter[int]()
        self.sent: list[int] = []
        self.is_over = asyncio.Event()
        for queue in ("q", "limited"):
            self.app.handler(queue)(self.handle)

    async def handle(self, number: int) -> None:
        self.handled[number] += 1
        if number % 10 == 0:
            raise Reject("no")

    async def publish(self) -> None:
        while not self.is_over.is_set():
            number = len(self.sent)
            await self.app.publish("limited" if number % 3 == 0 else "q", number)
            self.sent.append(number)
            await asyncio.sleep(0.005)

    async def until_more(self, count: int) -> None:
        least = len(self.handled) + count
        await until(lambda: len(self.handled) >= least, "messages are handled", 40)


PREPARED = """
select messages.create_queue('q'), messages.create_queue('limited', rate => 1000, fair => true),
  messages.create_queue('late', lock_duration => '1s', max_attempts => 3);
select messages.create_stream('s'), messages.subscribe('s', 'c'), messages.publish('s', '1');
select messages.schedule('nightly', '0 0 29 2 *', 'q', '1');
"""
WAITING = """
select messages.publish('late', '1'), messages.publish('late', '2', delay => '1h'),
  messages.publish('late', '3', dedup_key => 'k');
select id from messages.claim('{late}', 1);
"""


# PostgreSQL refuses updates of published tables that have no primary key.
WITHOUT_KEY = """
select t.relid::regclass::text
from pg_publication_rel as p
cross join pg_partition_tree(p.prrelid) as t
where t.isleaf and not exists (
  select from pg_index as i where i.indrelid = t.relid and i.indisprimary
)
"""


class Found(NamedTuple):
    """What a server has: how each message ended, and which are live."""

    archived: set[tuple[int, str]]
    live: set[int]


async def contents(connection: Connection) -> Found:
    archived = await connection.fetch("select id, status::text from messages.message_archive")
    live = await connection.fetch("select id from messages.message")
    return Found({(row[0], row[1]) for row in archived}, {row[0] for row in live})


@pytest.mark.timeout(240)
async def test_the_documented_move_loses_and_doubles_nothing(
    servers: Servers, tmp_path: Path
) -> None:
    copy, switch = steps()
    load = Load(servers.old)
    async with session(servers.old) as old:
        await old.execute(PREPARED)
        async with working(load.app, poll=1, maintenance=0.1):
            publishing = asyncio.create_task(load.publish())
            try:
                await load.until_more(50)
                await run(copy, servers, tmp_path)
                assert await old.fetch(WITHOUT_KEY) == []
                found = {name: it async for name, it in examine(servers.new)}
                assert "subscription notifyq_move writes" in found["tables"].found
                await load.until_more(50)
            finally:
                load.is_over.set()
                await publishing
        await load.app.close()
        await old.execute(WAITING)
        before = await contents(old)
    assert "and adopted" in await run(switch, servers, tmp_path)
    async with session(servers.old) as late:
        with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
            await late.execute("insert into messages.message (message) values ('1')")
    await goes_on(servers.new, load, before)


async def goes_on(dsn: str, load: Load, before: Found) -> None:
    """All is at the new server, and is handled there, once."""
    app = App(dsn)
    handled = Counter[int]()

    async def handle(number: int) -> None:
        handled[number] += 1

    for queue in ("q", "limited", "late"):
        app.handler(queue)(handle)
    total = len(load.sent) + 4
    async with session(dsn) as connection:
        assert await contents(connection) == before
        assert await value(connection, "publish", queue="q", message=-1) > max(before.live)
        await connection.execute(
            "update messages.message set available_at = now(), lock_expires_at = "
            "case when state = 'locked' then now() end where queue = 'late'"
        )
        async with working(app, poll=1, maintenance=0.1):
            left = total - len(before.archived)
            await until(lambda: handled.total() >= left, "all is handled", 40)
        assert not load.handled.keys() & (handled.keys() - {1, 2, 3})
        assert await doubles(connection) == 0
        assert (await contents(connection)).live == set()
        assert sum((await statuses(connection)).values()) == total
        assert await connection.fetch("select from messages.schedule where name = 'nightly'")
        # A stream of the old server has left nothing behind that is in the way.
        await connection.execute("select messages.create_stream('s')")
        await connection.execute("select messages.publish('s', '1')")
    await app.close()
    found = {name: it async for name, it in examine(dsn)}
    assert {name: it.found for name, it in found.items() if it.level is Level.FAIL} == {}
    assert "subscription" not in found["tables"].found
