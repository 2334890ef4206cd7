"""`notifyq import`: move the waiting messages of another PostgreSQL queue to notifyq."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal

import typer

from notifyq.cli.arguments import warn_of_password
from notifyq.cli.command import open_database
from notifyq.cli.options import DsnOption, JsonOption, flag, option, pairs, repeated
from notifyq.cli.output import err, out, print_json, print_rows
from notifyq.cli.progress import Progress
from notifyq.config import dsn_from_file
from notifyq.database.installs import DEFAULT
from notifyq.database.pool import Database, connect
from notifyq.importing import SYSTEMS, Census, Summary, Transfer
from notifyq.printable import printable
from notifyq.queues.admin import Admin

_SHOWN = 10
"""Refused messages that are named one by one."""


async def import_(
    system: Annotated[
        Literal["procrastinate", "pgqueuer", "pgmq"], typer.Argument(help="What to import from.")
    ],
    source: str | None = typer.Argument(
        None, metavar="[SOURCE]", help="DSN of its database, if that is not the one of notifyq."
    ),
    source_file: str | None = option("File with that DSN.", metavar="FILE"),
    queue: list[str] | None = repeated("Only this queue of the source", "--queue", "-q"),
    names: list[str] | None = repeated("Another name for a queue", "--map", metavar="OLD=NEW"),
    create_queues: bool = flag("--create-queues", "Create the queues that are missing."),
    keep: bool = flag("--keep", "Leave the source as it is: copy, don't move."),
    table: str | None = option("Table of the source, if it does not have the usual name."),
    dry_run: bool = flag("--dry-run", "Change nothing: count the messages to move."),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the messages of another PostgreSQL queue here.

    Each message is moved once. Stop it and run it again at any time: it continues where it was.
    Messages that the source is working on stay there.
    """
    renamed = pairs("--map", names, "OLD=NEW")
    async with _opened(system, source, source_file, table, dsn) as (connection, database, of):
        transfer = Transfer(connection, database, of, queues=queue or (), names=renamed, keep=keep)
        census = await transfer.census()
        for name in sorted({*(queue or ()), *renamed} - {one.queue for one in census}):
            err.print(printable(f"notifyq: queue {name!r} of {system} has nothing to import"))
        missing = await transfer.missing(census)
        if dry_run:
            _print_census(census, transfer, missing, as_json=as_json)
            return
        if create_queues:
            for name in missing:
                await Admin(database).create_queue(name)
        total = sum(one.waiting + one.scheduled for one in census)
        with Progress(f"importing from {system}", total=total, unit="messages") as progress:
            summary = await transfer.run(census, progress.advance)
        left = sum(one.running for one in await transfer.census())
    _print_summary(system, summary, left, as_json=as_json)
    if summary.refused:
        raise typer.Exit(1)


@asynccontextmanager
async def _opened(
    system: str, source: str | None, file: str | None, table: str | None, dsn: str | None
) -> AsyncIterator[tuple[Any, Database, Sequence[Any]]]:
    if source is not None and file is not None:
        raise typer.BadParameter("the source and --source-file exclude each other")
    warn_of_password("of the source", source or "", "--source-file")
    async with open_database(dsn, command_timeout=600) as database:
        where = source or (dsn_from_file(file) if file else database.dsn)
        connection = await connect(where, name="notifyq import", schema=DEFAULT)
        try:
            yield connection, database, await SYSTEMS[system](connection, table)
        finally:
            connection.terminate()  # also ends the transaction of an interrupted import


def _print_census(
    census: Sequence[Census], transfer: Transfer, missing: Sequence[str], *, as_json: bool
) -> None:
    rows = [
        {
            "queue": one.queue,
            "becomes": transfer.target(one.queue),
            "exists": transfer.target(one.queue) not in missing,
            "waiting": one.waiting,
            "scheduled": one.scheduled,
            "running": one.running,
        }
        for one in census
    ]
    print_rows(rows, as_json=as_json, empty="there is nothing to import")


def _print_summary(system: str, summary: Summary, left: int, *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(summary), "running": left})
        return
    parts = [f"{summary.published} messages imported from {system}"]
    if summary.merged:
        parts.append(f"{summary.merged} merged with live ones of the same dedup_key")
    if summary.known:
        parts.append(f"{summary.known} were imported before")
    if left:
        parts.append(f"{left} running ones are left there")
    out.print("; ".join(parts))
    for one in summary.refused[:_SHOWN]:
        what = f"{one.id} of queue {one.queue!r} is refused, and left there"
        err.print(printable(f"notifyq: {what}: {one.reason}"))
    if len(summary.refused) > _SHOWN:
        err.print(f"notifyq: {len(summary.refused)} are refused in all")
