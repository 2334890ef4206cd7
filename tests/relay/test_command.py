"""The command with queues and subscriptions: one kind that is refused stops no other."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from notifyq.cli import relay as command_module
from notifyq.config import RelaySettings
from notifyq.database.pool import Database
from notifyq.relay import Relay, StreamRelay
from relay.relaying import command, payloads, until_there
from support.database import Connection, publish, until
from support.refusing import refusing

REFUSED = ["notifyq.relay_claim", "messages.next_batch"]
"""What the relay of queues calls, and that of a subscription."""


ROUTES = ("--queue", "default", "--stream", "news:hub:copies")


@pytest.fixture(autouse=True)
async def _made(connection: Connection, there: Connection) -> None:
    await there.execute("select messages.create_queue('copies')")
    await connection.execute("select messages.create_stream('news')")
    await connection.execute("select messages.subscribe('news', 'hub')")


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
    async with command(database, far, *ROUTES) as program:
        async with refusing(connection, function, "42501"):
            await logged(program, "the others go on")
            for count in range(1, 4):
                await publish(connection, 1, "default")
                await connection.execute("select messages.publish('news', '1')")
                await until_there(there, count, queues[function == REFUSED[0]])
        for queue in queues:
            await until_there(there, 3, queue)
        program.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            assert await program.wait() == 0


async def test_it_ends_where_all_is_refused(
    database: str, far: str, connection: Connection
) -> None:
    async with (
        refusing(connection, REFUSED[0], "42501"),
        refusing(connection, REFUSED[1], "42501"),
        command(database, far, *ROUTES) as program,
        asyncio.timeout(30),
    ):
        assert await program.wait() == 1


@pytest.mark.parametrize("function", REFUSED)
async def test_with_once_it_ends_with_the_error_after_the_others(
    database: str, far: str, connection: Connection, there: Connection, function: str
) -> None:
    await publish(connection, 3)
    await connection.execute("select messages.publish_many('news', array['1','2','3']::jsonb[])")
    async with (
        refusing(connection, function, "42501"),
        command(database, far, *ROUTES, "--once") as program,
    ):
        async with asyncio.timeout(30):
            assert await program.wait() == 1
    assert len(await payloads(there, "default")) + len(await payloads(there, "copies")) == 3


@pytest.mark.parametrize("of_stream", [False, True])
async def test_a_relay_that_is_refused_again_and_again_is_logged_once(
    database: str,
    far: str,
    connection: Connection,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    of_stream: bool,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(command_module, "_PAUSE", 0.1)
    progress = command_module._Progress(as_json=True)
    options: Any = {"settings": RelaySettings.load(poll=0.1), "telemetry": progress}
    here, target, tries = Database(database), Database(far), []

    def queues() -> Relay:
        tries.append(False)
        return Relay(here, target, {"default": "default"}, **options)

    def stream() -> StreamRelay:
        tries.append(True)
        return StreamRelay(here, target, "news", "hub", "copies", **options)

    def logged(text: str) -> int:
        return sum(text in it.getMessage() for it in caplog.records)

    make: dict[str, Callable[[], Relay | StreamRelay]] = {"queues": queues, "stream": stream}
    relays = command_module._Relays(make, progress.quiet, once=False)
    async with refusing(connection, REFUSED[of_stream], "42501"):
        running = asyncio.create_task(relays.run(timedelta(seconds=10)))
        await until(lambda: tries.count(of_stream) > 3, "it is started again and again", 30)
        assert logged("the others go on") == 1
        assert logged("it works again") == 0
    await until(lambda: logged("it works again") == 1, "it works again", 30)
    relays._stop()
    async with asyncio.timeout(30):
        await running
    assert logged("has started") == 2


async def test_queues_are_created_for_queues_only(database: str, far: str) -> None:
    async with command(database, far, "--stream", "news:hub:copies", "--create-queues") as program:
        _, err = await program.communicate()
    assert program.returncode == 2
    assert b"--create-queues is for --queue" in err
