"""`notifyq spark load`: publish a dataset, once for each name."""

from __future__ import annotations

import enum
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from notifyq.cli.output import (
    DsnOption,
    JsonOption,
    err,
    out,
    path,
    print_json,
    printable,
    resolve_dsn,
)
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import EngineName, EngineOption, make_engine, needs_extra


class Format(enum.StrEnum):
    """What the files are."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


def load(
    name: Annotated[str, typer.Argument(help="Its name: what has one is published once.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            parser=path, metavar="FILES", help="Parquet, CSV or JSON lines, also as .gz."
        ),
    ],
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", help="Queue or stream for all rows; else map a column."),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN",
            help="What a column is: available_at, dedup_key, delay, headers, key, max_attempts, "
            "message, priority, queue or type; may be repeated.",
        ),
    ] = None,
    payload: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns that the message has; else all of them."),
    ] = None,
    form: Annotated[
        Format | None, typer.Option("--format", help="If the names of the files do not tell it.")
    ] = None,
    rejects: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="FILE",
            help="File for rows that cannot be published; else the first ends it.",
        ),
    ] = None,
    most_rejects: Annotated[
        int, typer.Option("--most-rejects", min=1, help="More of them end it.")
    ] = 10_000,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Publish nothing: count the messages and rejects.")
    ] = False,
    engine: EngineOption = EngineName.LOCAL,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish the rows of files into queues and streams, all or nothing, once for each name.

    Kill it whenever you like and run it again: a name that was published is not published again.
    Exit code 1: some rows were rejected.
    """
    with needs_extra():
        from notifyq.spark.load import load as publish
        from notifyq.spark.mapping import mapping
    wanted = mapping(queue, _pairs(columns or []), payload.split(",") if payload else None)
    address = resolve_dsn(dsn)
    with needs_extra():
        runner = make_engine(engine)
    with Progress(f"load {name}", total=None, unit="rows") as progress:
        done = publish(
            address,
            name,
            files,
            wanted,
            format=form,
            rejects=rejects,
            most_rejects=most_rejects,
            dry_run=dry_run,
            engine=runner,
            on_progress=progress.advance,
        )
    if as_json:
        print_json(asdict(done))
    else:
        out.print(printable(_told(done, is_dry=dry_run)))
        if done.rejects:
            err.print(printable(f"notifyq: {done.rejected} rows are rejected, see {done.rejects}"))
    if done.rejected:
        raise typer.Exit(1)


def _told(done: object, *, is_dry: bool) -> str:
    from notifyq.spark.load import LoadSummary

    assert isinstance(done, LoadSummary)  # noqa: S101 - the type of a lazy import
    where = ", ".join(f"{count} into {queue}" for queue, count in done.queues.items())
    if is_dry:
        return f"{sum(done.queues.values())} messages would be published: {where or 'none'}"
    if not done.is_new:
        return f"load {done.name} was published before, {done.published} messages: nothing is done"
    merged = f"; {done.merged} merged with live ones of the same dedup_key" if done.merged else ""
    return f"{done.published} messages in {done.seconds:.1f} s: {where or 'none'}{merged}"


def _pairs(texts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        name, equals, column = text.partition("=")
        if not (name and equals and column):
            raise typer.BadParameter(f"--map {text!r} is not FIELD=COLUMN")
        if name in found:
            raise typer.BadParameter(f"--map says twice what {name!r} is")
        found[name] = column
    return found
