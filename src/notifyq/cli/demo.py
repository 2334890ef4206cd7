"""`notifyq demo`: real work on a real server, and the sums at the end."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from operator import attrgetter
from statistics import quantiles
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from notifyq.cli.common import DsnOption, JsonOption, cell, err, open_database, out, print_json, run
from notifyq.cli.progress import Progress
from notifyq.config import dsn_from_environment
from notifyq.database import connect
from notifyq.demo.index import LIBRARY, Index
from notifyq.demo.run import Outcome
from notifyq.demo.run import run as run_demo
from notifyq.embedded import development
from notifyq.migrate import install
from notifyq.model import Status

if TYPE_CHECKING:
    from collections.abc import Iterator


def demo(
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = min(
        os.cpu_count() or 1, 4
    ),
    dsn: DsnOption = None,
    as_json: JsonOption = False,
) -> None:
    """Index the standard library of this Python, one message for each source file.

    Without --dsn or NOTIFYQ_DSN a private PostgreSQL is started for it. Exit code 1: the archive
    does not have each published message once.
    """
    with _server(dsn) as (address, own):
        outcome = run(_run(address, workers))
    if as_json:
        print_json(_facts(outcome))
    else:
        _print(outcome, own=own)
    if not outcome.agrees:
        err.print(
            f"notifyq: {len(outcome.published)} published, but {len(outcome.archived)} archived"
        )
        raise typer.Exit(1)


@contextlib.contextmanager
def _server(dsn: str | None) -> Iterator[tuple[str, bool]]:
    given = dsn or dsn_from_environment()
    if given is not None:
        yield given, False
        return
    server = development()
    err.print(f"PostgreSQL: private server in {server.directory}")
    with server:
        yield server.dsn, True


async def _run(dsn: str, workers: int) -> Outcome:
    connection = await connect(dsn, name="notifyq demo")
    try:
        await install(connection)
    finally:
        await connection.close()
    async with open_database(dsn) as database:
        err.print(f"indexing {LIBRARY} with {workers} worker processes")
        with Progress("indexing", total=None, unit="files") as progress:
            return await run_demo(database, workers, progress.reach)


def _facts(outcome: Outcome) -> dict[str, Any]:
    return {
        "published": len(outcome.published),
        "archived": len(outcome.archived),
        "agrees": outcome.agrees,
        "statuses": {status.value: outcome.counts[status] for status in Status},
        "seconds": outcome.seconds,
        "messages_per_second": len(outcome.archived) / outcome.seconds,
        "wait_seconds": _percentiles(outcome.waits),
        "run_seconds": _percentiles(outcome.runs),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    if len(values) < 2:
        return {}
    cuts = quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def _print(outcome: Outcome, *, own: bool) -> None:
    facts = _facts(outcome)
    out.print()
    _table(
        ["status", "messages"],
        [*facts["statuses"].items(), ("published", facts["published"])],
        numbers={1},
    )
    _table(
        ["time", "p50", "p95", "p99"],
        [
            (name, *(f"{value * 1000:,.0f} ms" for value in facts[f"{name}_seconds"].values()))
            for name in ("wait", "run")
        ],
        numbers={1, 2, 3},
    )
    out.print(
        f"{facts['archived']} messages in {outcome.seconds:.1f} s: "
        f"{facts['messages_per_second']:.0f} messages/s\n"
    )
    largest = sorted(_indexes(outcome), key=attrgetter("lines"), reverse=True)[:5]
    _table(
        ["largest modules", "lines", "tokens", "functions", "classes", "imports"],
        [tuple(index.model_dump().values()) for index in largest],
        numbers={1, 2, 3, 4, 5},
    )
    dead = sorted(
        (m for m in outcome.archived if m.status != Status.SUCCESS), key=attrgetter("status", "id")
    )
    _table(
        ["dead", "status", "reason"],
        [(m.id, m.status, cell(m.details)) for m in dead],
        numbers={0},
        fold={2},
    )
    command = sys.argv[0]
    out.print("to look further:")
    if own:
        out.print(f"  {command} server start       # the same server, to stay")
    for line, why in (
        ("queues", "queues with their counts"),
        ("dead ls", "dead messages"),
        (f"show {dead[0].id if dead else outcome.published[0]}", "one message, with all of it"),
        ("ls --finished", "what was done last"),
    ):
        out.print(f"  {command} {line:<18} # {why}")


def _indexes(outcome: Outcome) -> list[Index]:
    results = [json.loads(m.result) for m in outcome.archived if m.result is not None]
    return [Index.model_validate(result) for result in results if isinstance(result, dict)]


def _table(
    names: list[str],
    rows: list[Any],
    *,
    numbers: set[int],
    fold: frozenset[int] | set[int] = frozenset(),
) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, name in enumerate(names):
        table.add_column(
            name,
            justify="right" if position in numbers else "left",
            no_wrap=position not in fold,
        )
    for row in rows:
        table.add_row(*(str(value) for value in row))
    out.print(table)
    out.print()
