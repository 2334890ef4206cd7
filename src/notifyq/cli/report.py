"""`notifyq report`: what became of the messages of some days, as a page or a picture."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from notifyq.cli.output import DsnOption, instant, open_database, out, run
from notifyq.paths import local_path

if TYPE_CHECKING:
    from notifyq.operations.report import Report


def report(
    out_: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="FILE.html or FILE.png.")
    ] = Path("report.html"),
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=instant, metavar="TIME", help="From then on; else seven days before the end."
        ),
    ] = None,
    until: Annotated[
        datetime | None,
        typer.Option(
            parser=instant, metavar="TIME", help="Before then; else to the last message there is."
        ),
    ] = None,
    lake: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Roll-up of this lake; 0: count the archive itself. Else the only roll-up there "
            "is, or the archive.",
        ),
    ] = None,
    dsn: DsnOption = None,
) -> None:
    """Write a report: throughput, times, failures by fingerprint, slowest queues, growth.

    It comes from the roll-ups of `notifyq spark rollup`, or from the archive where there are none.
    The page is one file that needs nothing else.
    """
    kind = out_.suffix.lower()
    if kind not in {".html", ".png"}:
        raise typer.BadParameter(f"--out {str(out_)!r} is neither .html nor .png")
    local_path(out_)  # no URI
    # Late, as charts need more packages, and these take their time.
    from notifyq.operations.report import gather, page, picture

    async def read() -> Report:
        async with open_database(dsn) as database:
            return await gather(database, since=since, until=until, lake=lake)

    found = run(read())
    _write(out_, picture(found) if kind == ".png" else page(found).encode())
    total = 0 if found.total is None else found.total.finished
    out.print(
        f"{out_}: {total} messages, {found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M} "
        "UTC"
    )


def _write(path: Path, data: bytes) -> None:
    """Write all of a file or nothing: who looks meanwhile sees the one before."""
    handle, name = tempfile.mkstemp(prefix=".notifyq-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # As any other file that is made here: not only for its owner.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
