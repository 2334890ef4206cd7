"""`notifyq stream tail`: print events as they are published."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from notifyq.cli.logs import LogFormat, LogLevel, configure_logging
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    cell,
    event_json,
    open_database,
    out,
    printable,
    run,
    when,
)
from notifyq.cli.worker import stop_signals
from notifyq.errors import StreamNotFoundError
from notifyq.streams.admin import Streams
from notifyq.streams.tail import Tail
from notifyq.telemetry import log_sink

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.models.event import Event


def tail(
    name: Annotated[str, typer.Argument(help="Name of the stream.")],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="End after so many.")
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print events as they are published, until SIGTERM or SIGINT.

    It is no subscriber: nothing is kept for it, and nothing is left behind when it ends.
    """
    configure_logging(LogLevel.WARNING, LogFormat.TEXT)

    async def follow(database: Database) -> None:
        left = limit
        if not await Streams(database).info(name):
            raise StreamNotFoundError(f"there is no stream {name!r}")
        async for found in Tail(database, name, sink=log_sink).events():
            for event in found[:left]:
                _show(event, as_json=as_json)
            if left is not None and (left := left - len(found)) <= 0:
                return

    async def follow_until_stopped() -> None:
        async with open_database(dsn, serves=True) as database:
            following = asyncio.create_task(follow(database))
            with stop_signals(following.cancel), suppress(asyncio.CancelledError):
                await following

    run(follow_until_stopped())


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        typer.echo(event_json(event))
        return
    about = "".join(
        f" {name}={value}" for name in ("type", "key") if (value := getattr(event, name))
    )
    out.print(
        printable(f"{when(event.created_at, full=True)} {event.id}{about} {cell(event.message)}")
    )
