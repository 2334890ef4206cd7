"""`notifyq spark tidy`: fewer and larger files in a lake, and none that nobody needs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from notifyq.cli.output import DsnOption, JsonOption, out, print_json, resolve_dsn
from notifyq.cli.spark.common import LakeOption, needs_extra


def tidy(
    lake: LakeOption,
    least_files: Annotated[
        int, typer.Option("--least-files", min=2, help="Small files of a day and queue.")
    ] = 4,
    keep_hours: Annotated[
        float, typer.Option("--keep-hours", min=0, help="For how long readers may need old files.")
    ] = 24,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="First set the Delta table to what PostgreSQL knows."),
    ] = False,
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put small files of a lake together, and delete what no reader needs any more.

    That is files that were replaced, and files of runs that were killed.
    """
    with needs_extra():
        from notifyq.spark import delta
        from notifyq.spark.lake import Lake
        from notifyq.spark.tidy import tidy as run

    where = resolve_dsn(dsn)
    if repair:
        delta.mirror(Lake(where, lake), is_repair=True)
    summary = run(where, lake, least_files=least_files, older_than=timedelta(hours=keep_hours))
    if as_json:
        print_json(asdict(summary))
        return
    out.print(
        f"{summary.replaced} small files replaced by {summary.written}; "
        f"{summary.deleted} files deleted that nobody needs"
    )
