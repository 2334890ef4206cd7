"""`notifyq top`: the installation at a glance, in a terminal."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any

import typer

from notifyq.cli.masking import HideOption, MaskOption, masks_of
from notifyq.cli.output import DsnOption, duration, open_database, print_json, run
from notifyq.errors import ConfigurationError
from notifyq.operations.masks import Masks
from notifyq.operations.top.once import as_json as snapshot_json
from notifyq.operations.top.once import as_text
from notifyq.operations.top.snapshot import Source

_PIPED = 120
"""Columns where there is no terminal that has some."""


def top(
    every: Annotated[
        Any,
        typer.Option(parser=duration, metavar="DURATION", help="Time between two looks."),
    ] = "2s",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Change nothing: neither pause nor retry.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="Print what there is now, and end.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --once: as one object of JSON.")
    ] = False,
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    dsn: DsnOption = None,
) -> None:
    """Watch queues, workers, dead messages, streams and the database; pause and retry.

    One look at a time is under way, over one connection. Keys are shown with `?`.
    """
    if as_json and not once:
        raise typer.BadParameter("--json goes with --once")
    if every < timedelta(milliseconds=200):
        raise typer.BadParameter("--every is at least 200ms")
    masks = masks_of(mask, all_payloads=hide_payloads)
    if once:
        run(_once(dsn, masks, as_json=as_json))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigurationError(
            "top needs a terminal: `notifyq top --once` prints the figures, --json as JSON"
        )
    asyncio.run(_watch(dsn, every, masks, read_only=read_only))


async def _once(dsn: str | None, masks: Masks, *, as_json: bool) -> None:
    async with open_database(dsn, pool_size=1) as database:
        seen = await Source(database, masks).look()
    if as_json:
        print_json(snapshot_json(seen, masks))
    else:
        width = shutil.get_terminal_size((_PIPED, 24)).columns if sys.stdout.isatty() else _PIPED
        sys.stdout.write(as_text(seen, width) + "\n")


async def _watch(dsn: str | None, every: timedelta, masks: Masks, *, read_only: bool) -> None:
    try:
        from notifyq.operations.top.app import Top
    except ImportError as error:
        raise ConfigurationError(
            "top needs one more package: pip install 'notifyq[top]'"
        ) from error
    # What takes longer is not waited for: the next look says that the database is away.
    async with open_database(dsn, pool_size=1, retry_for=0, command_timeout=30) as database:
        app = Top(Source(database, masks), every=every, read_only=read_only)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(NotImplementedError):
                # Else the terminal would stay as the screens have set it.
                loop.add_signal_handler(number, app.exit)
        await app.run_async()
