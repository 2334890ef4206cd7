"""`notifyq demo`: real work on a real server, and the totals at the end."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import typer

from notifyq.cli.command import given_dsn, open_database, run
from notifyq.cli.options import DsnOption, JsonOption, option
from notifyq.cli.output import err, out, print_json, print_table
from notifyq.cli.progress import Progress
from notifyq.database.installs import require_default
from notifyq.database.pool import connect
from notifyq.dsn import options_of, url_of
from notifyq.models.message import Status
from notifyq.operations.texts import span
from notifyq.schema import install
from notifyq.server import development

if TYPE_CHECKING:
    from notifyq.demo.run import Outcome

_COUNTS = ("lines", "tokens", "functions", "classes", "imports")


def demo(
    workers: int = option("Worker processes.", default=min(os.cpu_count() or 1, 4), min=1, max=64),
    package: str | None = option("Only the files of this package, as json.", metavar="NAME"),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index Python's standard library with messages.

    Without --dsn or NOTIFYQ_DSN it starts a private PostgreSQL. In a database of yours it installs
    the schema first, if that is missing. Exit code 1: the archive does not have each published
    message once.
    """
    require_default("`notifyq demo`")
    with _server(given_dsn(dsn)) as address:
        outcome = run(_run(address, workers, package))
    if as_json:
        print_json(_facts(outcome))
    else:
        _print(outcome)
        _print_commands(outcome, dsn, own=given_dsn(dsn) is None)
    if not outcome.agrees:
        err.print(f"notifyq: the totals disagree: {outcome.difference}")
        raise typer.Exit(1)


@contextlib.contextmanager
def _server(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    server = development()
    err.print(f"starting a private PostgreSQL in {server.directory}")
    with server:
        yield server.dsn


async def _run(dsn: str, workers: int, package: str | None) -> Outcome:
    # Imported late: the App of the demo reads the settings, and may raise an error.
    from notifyq.demo.index import LIBRARY
    from notifyq.demo.run import Demo

    connection = await connect(dsn, name="notifyq demo")
    try:
        await install(connection)
    finally:
        await connection.close()
    async with open_database(dsn) as database:
        what = LIBRARY / (package or "")
        err.print(f"indexing the source files in {what} with {workers} worker processes")
        with Progress("indexing", total=None, unit="files") as progress:
            return await Demo(database, package).run(workers, progress.reach)


def _facts(outcome: Outcome) -> dict[str, Any]:
    done = len(outcome.archived)
    return {
        "published": len(outcome.published),
        "archived": done,
        "agrees": outcome.agrees,
        "statuses": {status.value: outcome.counts[status] for status in Status},
        "seconds": outcome.seconds,
        "messages_per_second": done / outcome.seconds if outcome.seconds else 0,
        "wait_seconds": _percentiles(outcome.waits),
        "run_seconds": _percentiles(outcome.runs),
        "largest": _largest(outcome),
        "dead": [
            {"id": message.id, "status": message.status, "details": message.details}
            for message in outcome.dead
        ],
    }


def _percentiles(values: list[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p95": None, "p99": None}
    cuts = quantiles([*values, *values[:1]], n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def _largest(outcome: Outcome) -> list[dict[str, Any]]:
    results = [json.loads(m.result) for m in outcome.archived if m.result is not None]
    indexes = [result for result in results if isinstance(result, dict)]
    indexes.sort(key=lambda index: int(index["lines"]), reverse=True)
    # By name: jsonb changes the order.
    return [{name: index[name] for name in ("path", *_COUNTS)} for index in indexes[:5]]


def _print(outcome: Outcome) -> None:
    facts = _facts(outcome)
    totals = "each once" if outcome.agrees else "which do not agree"
    out.print()
    print_table(["status", "messages"], facts["statuses"].items(), numbers={1})
    out.print(f"\n{facts['published']} published, {facts['archived']} archived, {totals}")
    out.print(f"{facts['messages_per_second']:.0f} messages/s for {span(outcome.seconds)}\n")
    print_table(
        ["time", "p50", "p95", "p99", ""],
        [
            ("wait", *_spans(facts["wait_seconds"]), "in the queue, as all are published at once"),
            ("run", *_spans(facts["run_seconds"]), "from the claim to the archive"),
        ],
        numbers={1, 2, 3},
    )
    out.print()
    print_table(
        ["largest modules", *_COUNTS],
        [list(index.values()) for index in facts["largest"]],
        numbers={1, 2, 3, 4, 5},
    )
    out.print()
    print_table(
        ["dead", "status", "reason"],
        [list(message.values()) for message in facts["dead"]],
        numbers={0},
    )


def _spans(percentiles: dict[str, float | None]) -> list[str]:
    values = percentiles.values()
    return ["" if value is None else span(timedelta(seconds=value)) for value in values]


def _print_commands(outcome: Outcome, dsn: str | None, *, own: bool) -> None:
    """Print commands to paste: for the same database, without its password."""
    dead = outcome.dead[0].id if outcome.dead else outcome.published[0]
    lines = {
        "dead ls": "dead messages",
        f"show {dead}": "one message, with all of it",
        "ls --finished": "the latest messages",
    }
    if own:
        lines = {"server start": "keep the same server running"} | lines
    public, has_password = without_password(dsn or "")
    out.print("\nto see more" + (", with PGPASSWORD set:" if has_password else ":"))
    if dsn is not None:
        out.print(f"  export NOTIFYQ_DSN={shlex.quote(public)}")
    width = max(map(len, lines))
    for line, why in lines.items():
        out.print(f"  {_command()} {line:<{width}}  # {why}")


def _command() -> str:
    """The command that started this program, for a shell."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m notifyq"
    is_found = shutil.which(program.name) == str(program)
    return program.name if is_found else shlex.quote(sys.argv[0])


def without_password(dsn: str) -> tuple[str, bool]:
    """The DSN without its password, and whether it had one."""
    options = options_of(dsn) if dsn else {}
    public = {name: value for name, value in options.items() if name != "password"}
    return (url_of(public) if dsn else ""), "password" in options
