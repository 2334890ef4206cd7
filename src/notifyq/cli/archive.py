"""`notifyq archive export`: finished messages into a file, or into one for each day."""

from __future__ import annotations

import enum
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from notifyq.archive.export import ExportChoice, ExportedArchive, Format, export_archive
from notifyq.cli.hints import require_known
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    QueueOption,
    instant,
    open_database,
    out,
    print_json,
    printable,
    run,
)
from notifyq.cli.progress import Progress
from notifyq.models.message import Status

archive = typer.Typer(name="archive", help="Finished messages into files.", no_args_is_help=True)


class Step(enum.StrEnum):
    """What there is one file for."""

    DAY = "day"


@archive.callback()
def root() -> None:
    """Finished messages into files."""


@archive.command()
def export(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file; with --by day a folder.")],
    format_: Annotated[
        Format | None, typer.Option("--format", help="Else by the end of the name.")
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(metavar="gz|zst", help="Of CSV and JSON lines; else by the end of the name."),
    ] = None,
    by: Annotated[
        Step | None, typer.Option("--by", help="A file for each day, in UTC, into a folder.")
    ] = None,
    queue: QueueOption = None,
    status: Annotated[Status | None, typer.Option(help="Only what ended so.")] = None,
    since: Annotated[
        datetime | None,
        typer.Option(parser=instant, metavar="TIME", help="Archived from then on."),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option(parser=instant, metavar="TIME", help="Archived before then.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write finished messages into Parquet, CSV or JSON lines, all of one snapshot.

    A file gets its name when it is complete; whatever ends this before leaves nothing behind.
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

    async def write() -> ExportedArchive:
        async with open_database(dsn) as database:
            await require_known(database, queue)
            with Progress("exporting", total=None, unit="B") as progress:
                return await export_archive(database, choice, on_progress=progress.reach)

    done = run(write())
    if as_json:
        print_json(asdict(done))
        return
    files = "" if by is None else f"{done.files} files, "
    rate = done.rows / done.seconds
    out.print(
        printable(
            f"{done.path}: {done.rows} messages, {files}{done.bytes / 1_000_000:.1f} MB, "
            f"{done.seconds:.1f} s ({rate:,.0f} a second)"
        )
    )
