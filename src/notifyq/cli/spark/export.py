"""`notifyq spark export`: the archive into a lake, and out of PostgreSQL."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from notifyq.cli.output import DsnOption, JsonOption, out, print_json, printable, resolve_dsn
from notifyq.cli.progress import Progress
from notifyq.cli.spark.common import (
    EngineName,
    EngineOption,
    LakeOption,
    make_engine,
    needs_extra,
)

if TYPE_CHECKING:
    from notifyq.spark.export import ExportSummary
    from notifyq.spark.prune import PruneSummary


def export_(
    lake: LakeOption,
    engine: EngineOption = EngineName.LOCAL,
    verify: Annotated[
        bool, typer.Option("--verify", help="Then read all files of the lake, and compare them.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Then drop past days whose rows are all in the lake."),
    ] = False,
    keep_days: Annotated[
        int, typer.Option("--keep-days", min=0, help="Whole days that --prune leaves.")
    ] = 1,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export what was archived since the last time into a lake.

    A lake is a folder of Parquet files by day and queue, and a Delta table. Each message comes into
    it once: stop this whenever you like, run it again as often as you like.
    """
    with needs_extra():
        from notifyq.spark.export import export
        from notifyq.spark.prune import prune as drop
        from notifyq.spark.prune import verify as compare

        used = make_engine(engine)
    where = resolve_dsn(dsn)
    with Progress("exporting", total=None, unit="messages") as progress:
        summary = export(where, lake, engine=used, on_progress=progress.reach)
    if not as_json:
        out.print(printable(_said(summary)))
    verified = compare(where, lake) if verify else None
    if verified is not None and not as_json:
        out.print(f"{verified} files are as they were written")
    pruned = drop(where, lake, keep_days=keep_days) if prune else None
    if as_json:
        more: dict[str, Any] = {} if pruned is None else {"pruned": asdict(pruned)}
        print_json({**asdict(summary), "verified": verified, **more})
    elif pruned is not None:
        _tell(pruned)


def _said(summary: ExportSummary) -> str:
    if summary.batch is None:
        return f"nothing was archived since the last export into {summary.lake}"
    rate = summary.rows / summary.seconds
    return (
        f"{summary.rows} messages of {summary.days} days exported into {summary.lake}: "
        f"{summary.files} files, {summary.bytes / 1_000_000:.1f} MB, {summary.seconds:.1f} s "
        f"({rate:,.0f} a second)"
    )


def _tell(pruned: PruneSummary) -> None:
    for dropped in pruned.dropped:
        out.print(f"{dropped.day}: {dropped.rows} messages dropped here, the lake has them all")
    for day, why in pruned.kept.items():
        out.print(printable(f"{day}: kept, {why}"))
