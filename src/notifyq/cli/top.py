"""`notifyq top`: a live view of queues and workers, in a terminal."""

import asyncio
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import typer
from rich.cells import set_cell_size

from notifyq.cli.command import open_database, run
from notifyq.cli.options import DsnOption, HideOption, MaskOption, duration_option, flag, masks_of
from notifyq.cli.output import print_json
from notifyq.errors import ConfigurationError
from notifyq.operations.masks import Masks, redacted
from notifyq.operations.top.snapshot import Snapshot, Source
from notifyq.operations.top.text import status_line, summary
from notifyq.operations.top.views import HEALTH, VIEWS, chosen, cut, fitting
from notifyq.printable import printable

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
        print_json(_figures(seen, masks))
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


def as_text(seen: Snapshot, width: int) -> str:
    """All views except health, which is only one line."""
    lines = [summary(seen), printable(status_line(seen))]
    for view in VIEWS:
        rows = chosen(view, seen)
        if view is HEALTH or not rows:
            continue
        columns = fitting(view, seen, rows, width)
        cells = [[it.title for it, _ in columns]]
        cells += [[cut(it.show(seen, row), size) for it, size in columns] for row in rows]
        lines += ["", view.name.upper()]
        lines += [
            "  ".join(
                text.rjust(size) if column.is_number else set_cell_size(text, size)
                for text, (column, size) in zip(line, columns, strict=True)
            ).rstrip()
            for line in cells
        ]
    return "\n".join(lines)


def _figures(seen: Snapshot, masks: Masks) -> dict[str, Any]:
    """All numbers by name."""
    return {
        "at": seen.now,
        "queues": [{**asdict(it), "rate": asdict(seen.rates[it.queue])} for it in seen.backlog],
        "rate": asdict(seen.total),
        "workers": [asdict(it) for it in seen.workers],
        "dead": [
            {**asdict(it), "fingerprint": redacted(it.fingerprint, masks, None)}
            for it in seen.groups
        ],
        "streams": [asdict(it) for it in seen.lags],
        "holders": [asdict(it) for it in seen.holders],
        "cron": [asdict(it) for it in seen.cron],
        "health": [asdict(it) for it in seen.health.figures] if seen.health is not None else [],
        "refused": seen.refused,
    }
