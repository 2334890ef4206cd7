"""`notifyq report`: throughput and failures of some days, as a page or a picture."""

import os
import tempfile
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import typer

from notifyq.cli.command import open_database
from notifyq.cli.options import DsnOption, JsonOption, instant_option, option
from notifyq.cli.output import out, print_json
from notifyq.paths import local_path


async def report(
    out_: Path = option(
        "FILE.html or FILE.png.", "--out", "-o", default=Path("report.html"), metavar="FILE"
    ),
    since: datetime | None = instant_option("Begin; else seven days before the end."),
    until: datetime | None = instant_option("End; else the last message."),
    lake: int | None = option(
        "Roll-up of this lake; 0: count the archive itself. Else the only roll-up there "
        "is, or the archive.",
        min=0,
        metavar="N",
    ),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a report on throughput, times and failures.

    It also has the slowest queues and the growth. It reads the roll-ups of `notifyq spark rollup`,
    or the archive where there are none. The page is one file that needs nothing else.
    """
    local_path(out_)  # no URI, which the next text would show with its password
    kind = out_.suffix.lower()
    if kind not in {".html", ".png"}:
        raise typer.BadParameter(f"--out {str(out_)!r} is neither .html nor .png")
    # Imported late: charts need more packages, which take their time to load.
    from notifyq.operations.report import gather, page, picture

    async with open_database(dsn) as database:
        found = await gather(database, since=since, until=until, lake=lake)
    _write(out_, picture(found) if kind == ".png" else page(found).encode())
    total = 0 if found.total is None else found.total.finished
    if as_json:
        print_json(
            {"file": str(out_), "messages": total, "since": found.since, "until": found.until}
        )
        return
    out.print(
        f"{out_}: {total} messages, {found.since:%Y-%m-%d %H:%M} to {found.until:%Y-%m-%d %H:%M} "
        "UTC"
    )


def _write(path: Path, data: bytes) -> None:
    """Write all of a file or nothing: a reader sees the old or the new one."""
    handle, name = tempfile.mkstemp(prefix=".notifyq-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # mkstemp() lets only the owner read; the report gets the mode of any other new file.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
