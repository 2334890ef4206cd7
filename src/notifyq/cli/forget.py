"""`notifyq forget`: delete what messages of a key, or with a payload, have left anywhere."""

import asyncio
import sys
from collections import Counter
from typing import Any

import typer

from notifyq.archive import forget as forgetting
from notifyq.archive.forget import GONE, STAYING, Wanted
from notifyq.cli.command import noting, open_database, resolve_dsn
from notifyq.cli.hints import require_known
from notifyq.cli.options import (
    DsnOption,
    FilterOption,
    JsonOption,
    QueueOption,
    StorageOption,
    flag,
    option,
)
from notifyq.cli.output import err, print_rows
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import needs_extra, storage_of
from notifyq.database.pool import Database
from notifyq.errors import NotifyqError
from notifyq.paths import is_uri
from notifyq.printable import printable


async def forget(
    key: str | None = option("Messages with this key or dedup_key."),
    filter: FilterOption = None,
    queue: QueueOption = None,
    live: bool = flag("--live", "Cancel waiting messages first; delete events of streams."),
    dry_run: bool = flag("--dry-run", "Count what each part has, and delete nothing."),
    yes: bool = flag("--yes", "Without a question."),
    storage_option: StorageOption = None,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete what messages of a key have left anywhere.

    Archived messages go, with attempts, logs, steps, signals and output, and their rows in lakes.
    Live ones stay without --live, and those that a worker handles: exit code 1 as long as there is
    something left. It works in steps: run it again after it was stopped.
    """
    if key is None and filter is None:
        raise typer.BadParameter("give --key or --filter")
    if not (yes or dry_run):
        if not sys.stdin.isatty():
            raise typer.BadParameter("it needs an answer before it deletes messages: give --yes")
        typer.confirm("What is deleted cannot be restored. Continue?", abort=True, err=True)
    wanted = Wanted(key, filter, queue)
    async with open_database(dsn) as database:
        await require_known(database, queue)
        counts, entry = await _forget(database, wanted, live=live, dry_run=dry_run)
        rows, left = _rows(counts, dry_run=dry_run)
        in_lakes, left_in_lakes, noted = await _forget_in_lakes(
            database, resolve_dsn(dsn), wanted, storage_option, dry_run=dry_run
        )
        if noted and not dry_run:
            given = {"entry": entry} if entry else {}
            async with noting(database, "message.forget", wanted.digest, **given) as act:
                act.note(found=0, done=0, parts=noted)
    print_rows([*rows, *in_lakes], as_json=as_json, empty="there is nothing to forget")
    if not dry_run and (left or left_in_lakes):
        err.print("notifyq: not all is forgotten: run it again once that can go, too")
        raise typer.Exit(1)
    if not dry_run and noted.get("lake_files"):
        err.print("notifyq: `notifyq spark tidy` deletes the replaced files a day later")


async def _forget(
    database: Database, wanted: Wanted, *, live: bool, dry_run: bool
) -> tuple[Counter[str], int | None]:
    """Go through the tables; return the counts by part, and the id of the audit row."""
    total: Counter[str] = Counter()
    position = entry = None
    with Progress("searched", total=None, unit="steps") as progress:
        while True:
            if dry_run:
                step = await forgetting.step(database, wanted, position, live=live, dry_run=True)
            else:
                async with noting(
                    database, "message.forget", wanted.digest, entry=entry, queue=wanted.queue,
                    live=live,
                ) as act:  # fmt: skip
                    step = await forgetting.step(act, wanted, position, live=live, dry_run=False)
                    done = sum(step.counts.get(part, 0) for part in GONE)
                    found = done + sum(step.counts.get(part, 0) for part in STAYING)
                    act.note(found=found, done=done, parts=step.counts)
                entry = act.entry
            total.update(step.counts)
            progress.advance()
            position = step.position
            if position is None:
                return total, entry


def _rows(counts: Counter[str], *, dry_run: bool) -> tuple[list[dict[str, Any]], int]:
    done = "to be deleted" if dry_run else "deleted"
    rows = [
        {"part": part, "count": count, "outcome": "still there" if part in STAYING else done}
        for part, count in counts.items()
        if count
    ]
    return rows, sum(counts[part] for part in STAYING)


async def _forget_in_lakes(
    database: Database,
    dsn: str,
    wanted: Wanted,
    options: list[str] | None,
    *,
    dry_run: bool,
) -> tuple[list[dict[str, Any]], int, dict[str, int]]:
    """Return a row for each lake that has, or may have, such messages; how many may; counts."""
    rows: list[dict[str, Any]] = []
    left = messages = files = 0
    for number, location in await forgetting.lakes(database):
        try:
            done = await asyncio.to_thread(_rewrite, dsn, location, options, wanted, dry_run)
        except (NotifyqError, OSError) as error:
            some, first, last = await forgetting.lake_files(database, number, wanted.queue)
            days = f"{some} files of {first} to {last} may have some: " if some else ""
            outcome = f"not searched: {days}{error}"
            rows.append({"part": f"lake {location}", "count": None, "outcome": outcome})
            left += 1
            continue
        messages, files = messages + done.rows, files + done.files
        if done.rows:
            verb = "to be rewritten" if dry_run else "rewritten"
            rows.append(
                {
                    "part": f"lake {location}",
                    "count": done.rows,
                    "outcome": f"{done.files} files {verb}",
                }
            )
        for table in done.unsearched:
            left += 1
            outcome = "not searched: it does not know queues"
            rows.append({"part": f"lake {location} {table}", "count": None, "outcome": outcome})
    noted = {"lake": messages, "lake_files": files, "lakes_left": left}
    printed = [{**row, "outcome": printable(row["outcome"])} for row in rows]
    return printed, left, {name: count for name, count in noted.items() if count}


def _rewrite(
    dsn: str, location: str, options: list[str] | None, wanted: Wanted, dry_run: bool
) -> Any:
    with needs_extra():
        from notifyq.spark.lake.forget import forget as rewrite

    # A folder has no options.
    storage = storage_of(location, options if is_uri(location) else None)
    return rewrite(dsn, storage, wanted, dry_run=dry_run)
