"""The command with queues and subscriptions: one kind that is refused stops no other."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from relay.relaying import payloads
from support.database import publish, until
from support.refusing import refusing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from support.database import Connection

REFUSED = ["notifyq.relay_claim", "messages.next_batch"]
"""What the relay of queues calls, and that of a subscription."""


@asynccontextmanager
async def command(
    source: str, target: str, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command for a queue and a subscription; kill it if it is there in the end."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "notifyq", "relay", source, target, *options),
        *("--queue", "default", "--stream", "news:hub:copies"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()


@pytest.fixture(autouse=True)
async def _made(connection: Connection, there: Connection) -> None:
    await there.execute("select messages.create_queue('copies')")
    await connection.execute("select messages.create_stream('news')")
    await connection.execute("select messages.subscribe('news', 'hub')")


async def until_there(there: Connection, queue: str, count: int) -> None:
    async def are_there() -> bool:
        return len(await payloads(there, queue)) == count

    await until(are_there, f"{count} messages are in {queue}", 30)


async def logged(program: asyncio.subprocess.Process, text: str) -> None:
    """Wait for a line of the log."""
    assert program.stderr is not None
    async with asyncio.timeout(30):
        async for line in program.stderr:
            if text in line.decode():
                return
    raise AssertionError(text)


@pytest.mark.parametrize("function", REFUSED)
async def test_one_kind_that_is_refused_stops_no_other(
    database: str, far: str, connection: Connection, there: Connection, function: str
) -> None:
    queues = ["default", "copies"]
    async with command(database, far) as program:
        async with refusing(connection, function, "42501"):
            await logged(program, "the others go on")
            for count in range(1, 4):
                await publish(connection, 1, "default")
                await connection.execute("select messages.publish('news', '1')")
                await until_there(there, queues[function == REFUSED[0]], count)
        for queue in queues:
            await until_there(there, queue, 3)
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await program.wait() == 0


async def test_it_ends_where_all_is_refused(
    database: str, far: str, connection: Connection
) -> None:
    async with (
        refusing(connection, REFUSED[0], "42501"),
        refusing(connection, REFUSED[1], "42501"),
        command(database, far) as program,
        asyncio.timeout(30),
    ):
        assert await program.wait() == 1


@pytest.mark.parametrize("function", REFUSED)
async def test_with_once_it_ends_with_the_error_after_the_others(
    database: str, far: str, connection: Connection, there: Connection, function: str
) -> None:
    await publish(connection, 3)
    await connection.execute("select messages.publish_many('news', array['1','2','3']::jsonb[])")
    async with refusing(connection, function, "42501"), command(database, far, "--once") as program:
        async with asyncio.timeout(30):
            assert await program.wait() == 1
    assert len(await payloads(there, "default")) + len(await payloads(there, "copies")) == 3
