"""`notifyq import`: move what waits in another queue of PostgreSQL over to notifyq."""

from __future__ import annotations

import enum
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.arguments import warn_of_password
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    err,
    open_database,
    out,
    print_json,
    print_rows,
    printable,
    run,
)
from notifyq.cli.progress import Progress
from notifyq.config import dsn_from_file
from notifyq.database.pool import connect
from notifyq.importing import SYSTEMS, Transfer
from notifyq.queues.admin import Admin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from notifyq.database.pool import Database
    from notifyq.importing import Census, Summary

_SHOWN = 10
"""Refused messages that are named one by one."""


class System(enum.StrEnum):
    """The queues that are known."""

    PROCRASTINATE = "procrastinate"
    PGQUEUER = "pgqueuer"
    PGMQ = "pgmq"


def import_(
    system: Annotated[System, typer.Argument(help="What to import from.")],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[SOURCE]", help="DSN of its database, if that is not the one of notifyq."
        ),
    ] = None,
    source_file: Annotated[
        str | None, typer.Option("--source-file", metavar="FILE", help="File with that DSN.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option("--queue", "-q", help="Only this queue of the source; may be repeated."),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="OLD=NEW", help="Another queue for one; may be repeated."),
    ] = None,
    create_queues: Annotated[
        bool, typer.Option("--create-queues", help="Create the queues that are missing.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the source as it is: copy, don't move.")
    ] = False,
    table: Annotated[
        str | None, typer.Option(help="Table of the source, if it has not the usual name.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: count what would be moved.")
    ] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move what waits in another queue of PostgreSQL here, each message once.

    Stop it whenever you like, run it again as often as you like: it goes on where it was. What is
    being worked on at the source is left there.
    """
    renamed = _renamed(names or [])

    async def move() -> Summary | None:
        async with _opened(system, source, source_file, table, dsn) as (connection, database, of):
            transfer = Transfer(
                connection, database, of, queues=queue or (), names=renamed, keep=keep
            )
            census = await transfer.census()
            for name in sorted({*(queue or ()), *renamed} - {one.queue for one in census}):
                err.print(printable(f"notifyq: queue {name!r} of {system} has nothing to import"))
            missing = await transfer.missing(census)
            if dry_run:
                _print_census(census, transfer, missing, as_json=as_json)
                return None
            if create_queues:
                for name in missing:
                    await Admin(database).create_queue(name)
            total = sum(one.waiting + one.scheduled for one in census)
            with Progress(f"importing from {system}", total=total, unit="messages") as progress:
                summary = await transfer.run(census, progress.advance)
            left = sum(one.running for one in await transfer.census())
        _print_summary(system, summary, left, as_json=as_json)
        return summary

    summary = run(move())
    if summary is not None and summary.refused:
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
        connection = await connect(where, name="notifyq import")
        try:
            yield connection, database, await SYSTEMS[system](connection, table)
        finally:
            connection.terminate()  # a transaction of an import that was interrupted goes with it


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise typer.BadParameter(f"--map {pair!r} is not OLD=NEW")
        if old in names:
            raise typer.BadParameter(f"--map says twice what becomes of {old!r}")
        names[old] = new
    return names


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
