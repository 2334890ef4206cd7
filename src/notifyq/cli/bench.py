"""`notifyq bench`: the same work on notifyq and its peers, and the results as tables and charts."""

from __future__ import annotations

import importlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from notifyq.cli.output import err, out, print_table, run
from notifyq.errors import ConfigurationError

bench = typer.Typer(name="bench", help="Measure notifyq and other queues on one server.")


def load(module: str) -> Any:
    """Import a module of the benchmark: from the installed package, else from the repository."""
    if (Path(__file__).parents[1] / "bench").is_dir():
        return importlib.import_module(f"notifyq.bench.{module}")
    root = Path(__file__).parents[3]
    if not (root / "bench" / f"{module}.py").is_file():
        raise ConfigurationError("the benchmark is not part of this installation")
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module(f"bench.{module}")


@bench.callback(invoke_without_command=True)
def measure(
    context: typer.Context,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")
    ] = None,
    system: Annotated[
        list[str] | None, typer.Option("--system", help="Only this system; may be repeated.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, max=100, help="Rounds.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One small round: a look.")] = False,
    folder: Annotated[
        Path, typer.Option("--output", metavar="FOLDER", help="Where results and charts go.")
    ] = Path("bench-results"),
    # Not NOTIFYQ_DSN: nobody shall load a server in earnest use because of a variable.
    dsn: Annotated[
        str | None,
        typer.Option(metavar="DSN", help="A server to measure on; else one is made for the run."),
    ] = None,
) -> None:
    """Measure, print tables, and keep the results as JSON and as charts.

    Each system gets a database of its own on one server. With --dsn databases are created there,
    and dropped in the end; settings of the server are changed for the case `flush`.
    """
    if context.invoked_subcommand is not None:
        return
    runner = load("run")
    sizes = runner.sizes(quick=quick, rounds=rounds)
    cases, systems = runner.chosen_cases(case or ()), runner.chosen_systems(system or ())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"
    results = run(runner.run(dsn, cases, systems, sizes, _say, lambda results: results.write(path)))
    out.print()
    _show(results, path)


def _say(what: str, step: int, steps: int) -> None:
    err.print(f"[{step + 1}/{steps}] {what}")


@bench.command()
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Results of a run, JSON.")],
) -> None:
    """Print the tables of a run again and draw its charts beside the file."""
    _show(load("results").Results.read(file), file)


def _show(results: Any, file: Path) -> None:
    """Print all that a run has found, and draw its charts into a folder beside its file."""
    report = load("report")
    out.print(report.machine_line(results))
    for table in report.tables(results):
        out.print(f"\n{table.title}")
        print_table(table.columns, table.rows, numbers=set(range(1, len(table.columns))))
    out.print("\n(in brackets: divided by notifyq's; medians of the rounds)")
    for title, lines in report.lists(results).items():
        out.print(f"\n{title}:")
        for line in lines:
            out.print(f"  {line}")
    try:
        charts = load("charts").draw(results, file.with_suffix(""))
    except ConfigurationError as error:
        err.print(f"notifyq: no charts: {error}")
    else:
        out.print(f"\nresults: {file}, {len(charts)} charts: {file.with_suffix('')}")
