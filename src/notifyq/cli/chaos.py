"""`notifyq chaos`: inject faults, then check that no message was lost."""

from __future__ import annotations

import contextlib
import difflib
import logging
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from notifyq.cli.command import run
from notifyq.cli.options import flag, option
from notifyq.cli.output import err, out, print_table
from notifyq.cli.progress import Progress
from notifyq.database.installs import require_default
from notifyq.operations.texts import span

if TYPE_CHECKING:
    from notifyq.chaos.faults import Fault
    from notifyq.chaos.run import Report, Row, Run

# Imported when it is called: every other command would wait for these modules, a worker too.

_SPARE = (8, 7, 6)
"""Columns of the report that a narrow terminal drops first; the files have them."""
_SHORTEST = 3.0
"""Least seconds of a fault: a shorter one than a lock proves nothing."""


def chaos(
    seed: int | None = option("Repeats the choices of a run; else random.", min=0),
    minutes: float = option(
        f"Of all faults together; each takes {_SHORTEST:.0f} s or more.", default=2, min=0
    ),
    faults: str | None = option("Only these; else those of --list.", metavar="NAME,NAME"),
    listed: bool = flag("--list", "List the faults and do nothing."),
    output: Path | None = option(
        "For the report, and the histories of failures.", metavar="FOLDER"
    ),
    workers: int = option("Worker processes.", default=3, min=2, max=64),
    check: Path | None = option("Only check a kept history again.", metavar="FOLDER"),
) -> None:
    """Inject faults and prove that no message is lost.

    Faults break a private server, its workers and its network. It uses only databases made for the
    run. Messages are published and handled during each fault; then the fault is undone, the queue
    is drained, and the history of every publication, lock and execution is compared with the
    archive. Exit code 1: a guarantee was broken.
    """
    if listed:
        _print_list()
    elif check is not None:
        _check_again(check)
    else:
        require_default("`notifyq chaos`")
        chosen = _choose(faults)
        seed = secrets.randbelow(2**31) if seed is None else seed
        # Before anything can fail: a run can only be repeated with its seed.
        err.print(f"seed {seed}")
        seconds = max(minutes * 60 / len(chosen), _SHORTEST)
        report = _run(chosen, seed=seed, seconds=seconds, workers=workers, output=output)
        _print_report(report)
        if not report.ok:
            raise typer.Exit(1)


def _choose(names: str | None) -> list[Fault]:
    from notifyq.chaos.faults import catalogue

    known = catalogue()
    if names is None:
        return [fault() for fault in known.values() if not fault.is_brief]
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {close[0]!r}?" if close else ", see --list"
            raise typer.BadParameter(f"there is no fault {name!r}{hint}")
    if not chosen:
        raise typer.BadParameter("--faults names no fault, see --list")
    return [known[name]() for name in dict.fromkeys(chosen)]


def _print_list() -> None:
    from notifyq.chaos.faults import catalogue

    rows = [
        (fault.name, fault.title, "by name only" if fault.is_brief else "", fault().lacking())
        for fault in catalogue().values()
    ]
    print_table(["fault", "what happens", "", "cannot be done here"], rows)


def _check_again(folder: Path) -> None:
    from notifyq.chaos.checker import judge

    result = judge(folder)
    for finding in result.findings():
        out.print(finding)
    if not result.ok:
        raise typer.Exit(1)
    out.print(f"ok: {result.attempts} messages, no guarantee broken")


def _run(
    faults: Sequence[Fault], *, seed: int, seconds: float, workers: int, output: Path | None
) -> Report:
    from notifyq.chaos.run import Run

    with _kept(output) as kept, Progress("faults", total=len(faults), unit="faults") as progress:

        def show(row: Row) -> None:
            if err.is_terminal:
                progress.advance()
            what = f"skipped, {row.skipped}" if row.skipped else "ok" if row.ok else "BROKEN"
            err.print(f"{row.fault}: {what} ({span(row.seconds)})")

        command = Run(
            faults=faults, seed=seed, seconds=seconds, workers=workers, kept=kept, report=show
        )
        report = run(_without_logs(command))
    if output is not None:
        report.write(output)
    return report


async def _without_logs(command: Run) -> Report:
    # Lost connections are expected here: they are in the history, not on the screen.
    logging.getLogger().addHandler(logging.NullHandler())
    return await command.run()


@contextlib.contextmanager
def _kept(output: Path | None) -> Iterator[Path]:
    """Yield a folder for the histories of failures; it is removed if there were none."""
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        yield output / "histories"
        return
    folder = Path(tempfile.mkdtemp(prefix="notifyq-chaos-kept-"))
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()


def _print_report(report: Report) -> None:
    from notifyq.chaos.run import COLUMNS

    out.print(f"seed {report.seed}; {report.machine}\n")
    print_table(COLUMNS, [row.cells() for row in report.faults], numbers=range(1, 8), spare=_SPARE)
    for remark in report.remarks():
        out.print(remark)
