"""Runs all commands, pages and metrics that read a database, and returns the failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
from prometheus_client import CollectorRegistry, generate_latest

from cli.programs import Notifyq
from notifyq.operations.dashboard import create_app
from notifyq.operations.dashboard.pages import SECTIONS
from notifyq.operations.metrics import DatabaseMetrics
from support.database import Connection

_BASE = "http://localhost:8080"

COMMANDS: dict[str, list[list[str]]] = {
    "queues ls": [[]],
    "queues show": [["mail"]],
    "queues grants": [[]],
    "queues shares": [[]],
    "queues limits": [[]],
    "parked": [["--limit", "9999"]],
    "stream ls": [[]],
    "stream lag": [[]],
    "stream forwards": [[]],
    "retention ls": [[]],
    "roles ls": [[]],
    "schedules ls": [[]],
    "schedules next": [["* * * * *", "--since", "9998-12-01T00:00Z"], ["nightly"]],
    "dead ls": [["--limit", "10000"], ["--queue", "mail"]],
    "dead groups": [[]],
    "audit": [["--limit", "9999"]],
    "ls": [
        ["--limit", "10000"],
        ["--finished", "--limit", "10000"],
        *(["--state", it] for it in ("waiting", "scheduled", "locked")),
        ["--status", "failed", "--queue", "mail"],
    ],
    "top": [["--once"]],
    "doctor": [[]],
}
"""Commands that read and can print JSON, with the arguments that they are run with."""

OTHERS = {"report", "archive export", "show", "dead show"}
"""Commands that read, and are run in another way below."""

_CHANGING = """
init, migrate, demo, chaos, worker, broker, publish, import, relay, unblock, cancel, run-now,
move, amend, server start, server stop, bench report, dead retry, dead delete, retention set,
roles create,
queues create, queues alter, queues pause, queues resume, queues drop, queues grant, queues
revoke, queues share, queues limit, signal, stream create, stream alter, stream drop, stream
pause, stream resume, stream subscribe, stream unsubscribe, stream seek, stream tick, stream
forward, stream unforward, schedules add, schedules remove, schedules enable, schedules disable,
schedules run, schedules apply, spark export, spark load, spark replay, spark rollup, spark
sample, spark stream, spark tidy, rekey, forget
"""
CHANGING = {" ".join(it.split()) for it in _CHANGING.split(",")}
"""Commands that change something, or that use no database."""

FOLLOWING = {
    *("stream tail", "dead watch", "metrics", "dashboard", "mcp", "ping", "server status"),
    "server url",
}
"""Commands that go on until they are stopped, or read no row; what they share is read elsewhere."""

SPARK = {"spark anomalies"}
"""Commands that need Java."""


def run_commands(notifyq: Notifyq, folder: Path, ids: Iterable[int]) -> list[str]:
    """Run each command, as text and as JSON; return the failures."""
    broken = []
    runs = [
        [*command.split(), *given, *more]
        for command, arguments in COMMANDS.items()
        for given in arguments
        for more in ([], ["--json"])
    ]
    runs += [
        ["archive", "export", str(folder / f"all.{end}"), "--force"]
        for end in ("jsonl", "csv", "parquet")
    ]
    ranges = (), ("--lake", "0", "--since", "2020-01-01", "--until", "2030-01-01")
    runs += [["report", "--out", str(folder / "report.html"), *it] for it in ranges]
    for id_ in ids:
        runs += [["show", str(id_)], ["show", str(id_), "--json"], ["dead", "show", str(id_)]]
    for run in runs:
        result = notifyq(*run)
        # `doctor` exits with 1 after findings, and `dead show` after an id of another message.
        fits = result.code == 0 or (run[0] == "doctor" and result.code == 1 and result.out)
        fits = fits or (run[0] == "dead" and "no dead message" in result.err)
        if not fits or "cannot be read" in result.err or "Traceback" in result.err:
            broken.append(f"{' '.join(run)}: {result.code} {result.err[-700:]}")
    return broken


def read_metrics(dsn: str) -> list[str]:
    """Scrape the metrics of the database; return the failures."""
    registry = CollectorRegistry()
    with DatabaseMetrics(dsn) as metrics:
        registry.register(metrics)
        page = generate_latest(registry).decode()
    up = "notifyq_database_up 1.0" in page
    return [] if up and "notifyq_messages{" in page else [f"metrics: {page[:500]}"]


def _paths(ids: Iterable[int], queues: Iterable[str]) -> Iterator[str]:
    for entry in (it for section in SECTIONS for it in section.entries):
        if entry.is_action or entry.name == "live":
            continue
        if "{id:id}" in entry.path:
            yield from (entry.path.replace("{id:id}", str(id_)) for id_ in ids)
        elif entry.name == "queue":
            yield from (f"{entry.path}?name={quote(name)}" for name in queues)
        else:
            yield entry.path
    for state in ("waiting", "scheduled", "locked", "failed"):
        yield f"/messages?state={state}"


async def read_pages(dsn: str, connection: Connection, ids: Iterable[int]) -> list[str]:
    """Request each page of the dashboard with each message and queue; return the failures."""
    queues = [row[0] for row in await connection.fetch("select name from messages.queue")]
    broken = []
    async with AsyncExitStack() as stack:
        app = create_app(dsn, open_to_all=True, allow_writes=True)
        await stack.enter_async_context(app.router.lifespan_context(app))
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=_BASE)
        await stack.enter_async_context(client)
        for path in _paths(ids, queues):
            answer = await client.get(path)
            if answer.status_code not in (200, 303):
                broken.append(f"{path}: {answer.status_code}")
    return broken
