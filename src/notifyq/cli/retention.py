"""`notifyq retention`: what the archive keeps, for how long, and what goes next."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.audited import acting
from notifyq.cli.default_command import Listing
from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    cell,
    open_database,
    out,
    print_json,
    print_table,
    printable,
    run,
    size,
    span,
)
from notifyq.cli.policy import duration_or_none
from notifyq.operations.monitor import archive_days
from notifyq.operations.monitor import retention as read_retention
from notifyq.operations.monitor.statements import ALTER_ARCHIVE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from notifyq.operations.monitor import ArchiveDay, Kept

retention = typer.Typer(
    name="retention", cls=Listing, help="What the archive keeps (ls), for how long; change it."
)

_STEPS = {
    "drop": "is dropped",
    "rewrite": "is written anew without what is past its retention",
    "delete": "loses what is past its retention, step by step",
    "age": "loses what is kept for less than a day as it ages",
}


@retention.command()
def ls(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only what the upkeep would remove now.")
    ] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what is kept of each queue and of each day.

    Large days are not counted: their figures are those of the statistics of the server.
    """

    async def read() -> tuple[Sequence[Kept], Sequence[ArchiveDay]]:
        async with open_database(dsn) as database:
            return await read_retention(database), await archive_days(database)

    kept, days = run(read())
    due = [day for day in days if day.next_step]
    if as_json:
        lines: Sequence[Kept | ArchiveDay] = due if dry_run else [*kept, *days]
        for line in lines:
            print_json(asdict(line))
    elif dry_run:
        _print_due(due)
    else:
        _print_queues(kept)
        out.print()
        _print_days(days)


@retention.command("set")
def set_(
    keep: Annotated[
        Any,
        typer.Option(
            "--retention",
            parser=duration_or_none,
            metavar="DURATION",
            help="Of new queues, of dropped ones, and of events that died; none: 30 days for the "
            "first, the longest of all queues for the others.",
        ),
    ] = None,
    keep_dead: Annotated[
        Any,
        typer.Option(
            "--retention-dead",
            parser=duration_or_none,
            metavar="DURATION",
            help="Of those of them that did not succeed; none: as the others.",
        ),
    ] = None,
    days_ahead: Annotated[
        int | None,
        typer.Option(min=1, max=366, help="For how many days tables are made ahead."),
    ] = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change what holds for the whole archive; what is not given stays as it is.

    How long a queue keeps its messages is its policy: `notifyq queues alter`.
    """

    async def alter() -> dict[str, Any]:
        async with acting(dsn, "archive.alter") as act:
            [row] = await act.fetch(ALTER_ARCHIVE, keep, keep_dead, days_ahead)
            act.note(**{name: cell(value) for name, value in row.items()})
        return dict(row)

    policy = run(alter())
    if as_json:
        print_json(policy)
        return
    for name, value in policy.items():
        out.print(f"{name}: {cell(value) or 'none'}")


def _print_queues(kept: Sequence[Kept]) -> None:
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
        out.print("* no queue of that name: `notifyq retention set` says for how long")


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
        out.print(printable(_foretold(day)))
    if not due:
        out.print("nothing is to be removed now")


def _foretold(day: ArchiveDay) -> str:
    what = _STEPS.get(day.next_step or "", day.next_step)
    but = f", once {day.awaits} has it" if day.awaits else ""
    return f"{day.day}: {day.rows} rows, {size(day.bytes)}: {what}{but}"


def _keep(value: timedelta | None) -> str:
    return "" if value is None else span(value)
