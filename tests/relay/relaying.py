"""Relays in this process, and what they have moved."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from notifyq.config import DatabaseSettings, RelaySettings
from notifyq.database.pool import Database
from notifyq.relay import Relay, RelayStarted
from support.database import Connection, until
from support.running import Events


def relay(
    source: str,
    target: str,
    routes: Mapping[str, str] | None = None,
    events: Events | None = None,
    **options: Any,
) -> Relay:
    """Make a relay; what is a setting goes there."""
    known = {
        name: options.pop(name) for name in list(options) if name in RelaySettings.model_fields
    }
    return Relay(
        Database(source, settings=DatabaseSettings.load(retry_for=20)),
        Database(target),
        routes if routes is not None else {"default": "default"},
        settings=RelaySettings.load(**{"poll": 60} | known),
        telemetry=events or Events(),
        **options,
    )


async def drained(source: str, target: str, *args: Any, **options: Any) -> Relay:
    """Move all that is there, and return the relay that has."""
    made = relay(source, target, *args, once=True, **options)
    async with asyncio.timeout(30):
        await made.run()
    return made


@asynccontextmanager
async def relaying(
    source: str,
    target: str,
    routes: Mapping[str, str] | None = None,
    events: Events | None = None,
    **options: Any,
) -> AsyncIterator[Relay]:
    """Run a relay, and stop it at the end."""
    events = events or Events()
    made = relay(source, target, routes, events, **options)
    task = asyncio.create_task(made.run())
    started = asyncio.create_task(events.wait(RelayStarted, relay=made.name))
    await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        started.cancel()
        await task
    try:
        yield made
    finally:
        made.stop()
        async with asyncio.timeout(30):
            await task


async def payloads(connection: Connection, queue: str = "default") -> list[Any]:
    """What waits in a queue, in its order."""
    rows = await connection.fetch(
        "select message from messages.message where queue = $1 order by id", queue
    )
    return [row[0] for row in rows]


async def fill(connection: Connection, first: int, count: int) -> None:
    """Publish so many numbers into the default queue."""
    await connection.execute(
        "select messages.publish_many('default', array("
        "select to_jsonb(n) from generate_series($1::int, $2::int) as n))",
        first,
        first + count - 1,
    )


async def until_there(there: Connection, count: int, queue: str = "default") -> None:
    async def are_there() -> bool:
        return len(await payloads(there, queue)) == count

    await until(are_there, f"{count} messages are in {queue}", 30)


@asynccontextmanager
async def command(
    source: str, target: str, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command, and kill it if it is still there in the end."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "notifyq", "relay", source, target, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield program
    finally:
        if program.returncode is None:
            program.kill()
        await program.communicate()
