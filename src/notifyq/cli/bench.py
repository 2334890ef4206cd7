"""`notifyq bench`: the same work on notifyq and its peers, and the results as tables and charts."""

import importlib
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from notifyq.cli.command import run
from notifyq.cli.options import JsonOption, flag, option, repeated
from notifyq.cli.output import err, out, print_json, print_table
from notifyq.database.installs import require_default
from notifyq.errors import ConfigurationError, NotifyqError

bench = typer.Typer(name="bench", help="Measure notifyq and other queues on one server.")


def load(module: str) -> Any:
    """Import a module of the benchmark, which is in the repository only."""
    root = Path(__file__).parents[3]
    if not (root / "bench" / f"{module}.py").is_file():
        raise ConfigurationError(
            "the benchmark is not in this installation: run it in a checkout of the repository, "
            "after `pip install -e '.[bench,embedded]'`"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module(f"bench.{module}")


@bench.callback(invoke_without_command=True)
def measure(
    context: typer.Context,
    case: list[str] | None = repeated("Only this case", "--case"),
    system: list[str] | None = repeated("Only this system", "--system"),
    rounds: int | None = option("Rounds.", min=1, max=100),
    quick: bool = flag("--quick", "One small round, as a try."),
    folder: Path = option(
        "Folder for results and charts.",
        "--output",
        default=Path("bench-results"),
        metavar="FOLDER",
    ),
    # Not NOTIFYQ_DSN: a variable must not put this load on a production server.
    dsn: str | None = option(
        "A server to measure on; else one is made for the run.", metavar="DSN"
    ),
    as_json: JsonOption = False,
) -> None:
    """Measure, print tables, and keep the results as JSON and as charts.

    Each system gets a database of its own on one server. With --dsn databases are created there
    and dropped in the end; settings of the server are changed for the case `flush`.
    """
    if context.invoked_subcommand is not None:
        return
    require_default("`notifyq bench`")
    runner = load("run")
    sizes = runner.sizes(quick=quick, rounds=rounds)
    cases, systems = runner.choose(case or (), system or ())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}.json"

    def report(what: str, step: int, steps: int) -> None:
        err.print(f"[{step + 1}/{steps}] {what}")

    results = run(
        runner.run(dsn, cases, systems, sizes, report, lambda results: results.write(path))
    )
    if not as_json:
        out.print()
    _show(results, path, as_json=as_json)
    if missing := results.not_measured():
        raise NotifyqError(
            f'not measured: {", ".join(missing)}; the lists "not run" and "failed" have the reasons'
        )


@bench.command()
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Results of a run, JSON.")],
    as_json: JsonOption = False,
) -> None:
    """Print the tables and draw the charts of a run again."""
    _show(load("results").Results.read(file), file, as_json=as_json)


def _show(results: Any, file: Path, *, as_json: bool) -> None:
    """Print the results of a run, and draw its charts into a folder beside its file."""
    if as_json:
        print_json({"file": str(file), **asdict(results)})
    else:
        _print(results)
    try:
        charts = load("charts").draw(results, file.with_suffix(""))
    except ConfigurationError as error:
        err.print(f"notifyq: no charts: {error}")
    else:
        if not as_json:
            out.print(f"\nresults: {file}, {len(charts)} charts: {file.with_suffix('')}")


def _print(results: Any) -> None:
    report = load("report")
    out.print(report.machine_line(results))
    for table in report.tables(results):
        out.print(f"\n{table.title}")
        print_table(table.columns, table.rows, numbers=set(range(1, len(table.columns))))
    out.print("\n(medians of the rounds [least to most]; in parentheses: divided by notifyq's)")
    for title, lines in report.lists(results).items():
        out.print(f"\n{title}:")
        for line in lines:
            out.print(f"  {line}")
