"""`notifyq archive export` and `notifyq retention`: what the archive keeps, and files of it."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from notifyq.archive.export import ExportChoice, Format, export_archive
from notifyq.cli.command import Commands, Listing, acting, open_database
from notifyq.cli.hints import require_known
from notifyq.cli.options import (
    DsnOption,
    JsonOption,
    QueueOption,
    duration_or_none,
    flag,
    instant_option,
    option,
)
from notifyq.cli.output import cell, out, print_json, print_table
from notifyq.cli.progress import Progress
from notifyq.models.message import Status
from notifyq.operations.monitor import ArchiveDay, QueueRetention, archive_days
from notifyq.operations.monitor import retention as read_retention
from notifyq.operations.monitor.statements import ALTER_ARCHIVE
from notifyq.operations.texts import size, span
from notifyq.printable import printable

archive = Commands(
    name="archive", help="Export finished messages into files.", no_args_is_help=True
)


@archive.callback()
def root() -> None:
    """Export finished messages into files."""


@archive.command()
async def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file; with --by day a folder.")],
    format_: Format | None = option("Else by the end of the name.", "--format"),
    compression: str | None = option(
        "Of CSV and JSON lines; else by the end of the name.", metavar="gz|zst"
    ),
    by: Literal["day"] | None = option("A file for each day, in UTC."),
    queue: QueueOption = None,
    status: Status | None = option("Only of this status."),
    since: datetime | None = instant_option("Archived then or later."),
    until: datetime | None = instant_option("Archived before then."),
    force: bool = flag("--force", "Replace existing files."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write finished messages into Parquet, CSV or JSON lines.

    All are of one snapshot. A file gets its name when it is complete; an export that ends before
    leaves nothing behind.
    """
    choice = ExportChoice(
        path=path,
        format=format_,
        compression=compression,
        by_day=by is not None,
        queue=queue,
        status=status,
        since=since,
        until=until,
        force=force,
    )
    choice.kind()
    async with open_database(dsn) as database:
        await require_known(database, queue)
        with Progress("exporting", total=None, unit="B") as progress:
            done = await export_archive(database, choice, on_progress=progress.reach)
    if as_json:
        print_json(done)
        return
    files = "" if by is None else f"{done.files} files, "
    out.print(
        printable(
            f"{done.path}: {done.rows} messages, {files}{size(done.bytes)}, "
            f"{span(done.seconds)} ({done.rows / done.seconds:,.0f} a second)"
        )
    )


retention = Commands(
    name="retention", cls=Listing, help="List (ls) and change how long the archive keeps what."
)

_STEPS = {
    "drop": "is dropped",
    "rewrite": "is rewritten without what is past its retention",
    "delete": "loses what is past its retention, step by step",
    "age": "loses what is kept for less than a day as it ages",
}


@retention.command()
async def ls(
    dry_run: bool = flag("--dry-run", "Only what maintenance would remove now."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is kept of each queue and of each day.

    Large days are not counted: their figures come from the statistics of the server.
    """
    async with open_database(dsn) as database:
        kept, days = await read_retention(database), await archive_days(database)
    due = [day for day in days if day.next_step]
    if as_json:
        lines: Sequence[QueueRetention | ArchiveDay] = due if dry_run else [*kept, *days]
        for line in lines:
            print_json(asdict(line))
    elif dry_run:
        _print_due(due)
    else:
        _print_queues(kept)
        out.print()
        _print_days(days)


@retention.command("set")
async def set_(
    keep: Any = option(
        "Of new queues, of dropped ones, and of dead events; none: 30 days for the "
        "first, the longest of all queues for the others.",
        "--retention",
        parser=duration_or_none,
        metavar="DURATION",
    ),
    keep_dead: Any = option(
        "The same for messages that did not succeed; none: as the others.",
        "--retention-dead",
        parser=duration_or_none,
        metavar="DURATION",
    ),
    days_ahead: int | None = option(
        "Days for which tables are created in advance.", min=1, max=366
    ),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the policy of the whole archive. Options that are not given stay as they are.

    The retention of one queue belongs to its policy: `notifyq queues alter`.
    """
    async with acting(dsn, "archive.alter") as act:
        [row] = await act.fetch(ALTER_ARCHIVE, keep, keep_dead, days_ahead)
        act.note(**{name: cell(value) for name, value in row.items()})
    if as_json:
        print_json(dict(row))
        return
    for name, value in row.items():
        out.print(f"{name}: {cell(value) or 'none'}")


def _print_queues(kept: Sequence[QueueRetention]) -> None:
    rows = [
        (
            "(rare ones)" if it.queue is None else it.queue,
            _keep(it.retention) + ("" if it.is_known else " *"),
            _keep(it.retention_dead),
            it.rows,
            it.dead,
            size(it.bytes),
            it.first_day,
        )
        for it in kept
    ]
    names = ["queue", "keeps", "keeps dead", "rows", "dead", "size", "since"]
    print_table(names, rows, numbers={3, 4, 5})
    if not all(it.is_known for it in kept):
        out.print("* no queue of that name: `notifyq retention set` decides for how long")


def _print_days(days: Sequence[ArchiveDay]) -> None:
    rows = [
        (
            day.day,
            f"{'' if day.is_exact else '~'}{day.rows}",
            "" if day.dead is None else f"{'' if day.is_exact else '~'}{day.dead}",
            size(day.bytes),
            size(day.attempt_bytes),
            day.removed or None,
            None if day.goes_at is None else day.goes_at.date(),
            f"awaits {day.awaits}" if day.awaits else day.next_step,
        )
        for day in days
    ]
    names = ["day", "rows", "dead", "size", "attempts", "removed", "goes", "next"]
    print_table(names, rows, numbers={1, 2, 3, 4, 5})


def _print_due(due: Sequence[ArchiveDay]) -> None:
    for day in due:
        what = _STEPS.get(day.next_step or "", day.next_step)
        but = f", once {day.awaits} has it" if day.awaits else ""
        out.print(printable(f"{day.day}: {day.rows} rows, {size(day.bytes)}: {what}{but}"))
    if not due:
        out.print("nothing is to be removed now")


def _keep(value: timedelta | None) -> str:
    return "" if value is None else span(value)
