"""`notifyq top`: a live view of queues and workers, in a terminal."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from contextlib import suppress
from datetime import timedelta

import typer

from notifyq.cli.command import open_database, run
from notifyq.cli.options import DsnOption, HideOption, MaskOption, duration_option, flag, masks_of
from notifyq.cli.output import print_json
from notifyq.errors import ConfigurationError
from notifyq.operations.masks import Masks
from notifyq.operations.top.once import as_json as snapshot_json
from notifyq.operations.top.once import as_text
from notifyq.operations.top.snapshot import Source

_PIPED = 120
"""Columns of the output where there is no terminal."""


def top(
    every: timedelta = duration_option("Time between two updates.", default="2s"),
    read_only: bool = flag("--read-only", "Change nothing: neither pause nor retry."),
    once: bool = flag("--once", "Print the present state, and end."),
    as_json: bool = flag("--json", "With --once: as one object of JSON."),
    mask: MaskOption = None,
    hide_payloads: HideOption = False,
    dsn: DsnOption = None,
) -> None:
    """Watch queues, workers, dead messages and streams live.

    Queues can be paused and dead messages retried. It has one connection and runs one query at a
    time. `?` shows the keys.
    """
    if as_json and not once:
        raise typer.BadParameter("--json needs --once")
    if every < timedelta(milliseconds=200):
        raise typer.BadParameter("--every must be at least 200ms")
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
        seen = await Source(database, masks).snapshot()
    if as_json:
        print_json(snapshot_json(seen, masks))
    else:
        width = shutil.get_terminal_size((_PIPED, 24)).columns if sys.stdout.isatty() else _PIPED
        sys.stdout.write(as_text(seen, width) + "\n")
    if seen.refused:
        raise typer.Exit(1)  # not all is there


async def _watch(dsn: str | None, every: timedelta, masks: Masks, *, read_only: bool) -> None:
    try:
        from notifyq.operations.top.app import Top
    except ImportError as error:
        raise ConfigurationError(
            "top needs one more package: pip install 'notifyq[top]'"
        ) from error
    # No retries: the next query shows that the database is unavailable.
    async with open_database(dsn, pool_size=1, retry_for=0, command_timeout=30) as database:
        app = Top(Source(database, masks), every=every, read_only=read_only)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            with suppress(NotImplementedError):
                # Without a clean end the terminal keeps the mode of the screens.
                loop.add_signal_handler(number, app.exit)
        await app.run_async()
