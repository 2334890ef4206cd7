"""`notifyq chaos`: faults on purpose, and a verdict on what is left."""

from __future__ import annotations

import contextlib
import difflib
import logging
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from notifyq.cli.output import err, out, print_table, run
from notifyq.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from notifyq.chaos.faults import Fault
    from notifyq.chaos.report import Report, Row
    from notifyq.chaos.run import Run

# What it needs is imported when it is called: any other command, a worker too, would pay for it.

_SPARE = (11, 8, 9, 10, 7, 6)
"""Columns of the report that a narrow terminal lacks first; the files have them."""
_SHORTEST = 3.0
"""Seconds that a fault does harm at least: less than a lock lasts would prove nothing."""


def chaos(
    seed: Annotated[
        int | None, typer.Option(min=0, help="Repeats the choices of a run; else a new one.")
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(min=0, help=f"Of all faults together, each at least {_SHORTEST:.0f} s."),
    ] = 2,
    faults: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Only these; else those of --list.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the faults and do nothing.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For the report, and the histories of failures."),
    ] = None,
    workers: Annotated[int, typer.Option(min=2, max=64, help="Worker processes.")] = 3,
    check: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Judge a kept history again, only that.")
    ] = None,
) -> None:
    """Break a private server, its workers and its network, and prove that nothing is lost.

    No database is used but those made for the run. Messages flow while a fault is injected; then
    all is healed, the queue is drained, and the history of every publication, lock and execution is
    checked against what the archive holds. Exit code 1: a promise was broken.
    """
    if listed:
        _print_list()
    elif check is not None:
        _judge_again(check)
    else:
        chosen = _choose(faults)
        seed = secrets.randbelow(2**31) if seed is None else seed
        # First of all: whatever happens next, it can be repeated.
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
        return [fault() for fault in known.values() if fault.by_default]
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
        (fault.name, fault.title, "" if fault.by_default else "by name only", fault().lacking())
        for fault in catalogue().values()
    ]
    print_table(["fault", "what happens", "", "cannot be done here"], rows)


def _judge_again(folder: Path) -> None:
    from notifyq.chaos.kept import findings, judge

    verdict = judge(folder)
    for finding in findings(verdict):
        out.print(finding)
    if not verdict.ok:
        raise typer.Exit(1)
    out.print(f"ok: {verdict.attempts} messages, no promise broken")


def _run(
    faults: Sequence[Fault], *, seed: int, seconds: float, workers: int, output: Path | None
) -> Report:
    from notifyq.chaos.run import Run

    with _kept(output) as kept, Progress("faults", total=len(faults), unit="faults") as progress:

        def tell(row: Row) -> None:
            if err.is_terminal:
                progress.advance()
            what = f"skipped, {row.skipped}" if row.skipped else "ok" if row.ok else "BROKEN"
            err.print(f"{row.fault}: {what} ({row.seconds:.1f} s)")

        command = Run(faults, seed=seed, seconds=seconds, workers=workers, kept=kept, tell=tell)
        report = run(_unseen(command))
    if output is not None:
        report.write(output)
    return report


async def _unseen(command: Run) -> Report:
    """Run it without what the library logs."""
    # Lost connections are what this is about: they are in the history, not on the screen.
    logging.getLogger().addHandler(logging.NullHandler())
    return await command.run()


@contextlib.contextmanager
def _kept(output: Path | None) -> Iterator[Path]:
    """Give a folder for the histories of failures; it is there afterwards if there was one."""
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
    from notifyq.chaos.report import COLUMNS

    out.print(f"seed {report.seed}; {report.machine}")
    out.print()
    print_table(COLUMNS, [row.cells() for row in report.rows], numbers=range(1, 11), spare=_SPARE)
    for row in report.rows:
        for text in row.findings + row.notes:
            out.print(f"{row.fault}: {text}")
        if row.history is not None:
            out.print(f"{row.fault}: its history is in {row.history}")
        if not row.ok:
            out.print(f"again: {report.again(row)}")
