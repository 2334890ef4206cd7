"""Pipelines that are killed at any moment: `python tests/spark/kill.py --dsn … --seeds 20`.

Each pipeline runs in a process of its own, which is told when to begin. At a moment that the seed
chooses something is killed: that process with all that it started (`driver`), one of its Python
workers (`worker`), or a process of the server, which then ends all others and recovers (`server`).
Then the pipeline runs again until it ends in peace, and what it was to bring over must be there,
once each; see `killed` for what that is. A failure ends nothing: the table in the end has all.

The DSN is that of a server of this user, where databases of these tests may be made. Nothing else
should be on that server, as it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo, sql

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[1]))

from spark.killed import ALL, Pipeline
from spark.killing import Archiver, Runner, await_server, kill_server

VICTIMS = ("driver", "worker", "server")
_TRIES = 12


@dataclass
class Result:
    """What came of the seeds of one pipeline and one victim."""

    pipeline: str
    engine: str
    victim: str
    seeds: int = 0
    killed: int = 0
    survived: int = 0
    """Runs that a kill did not even fail, as tasks were tried again."""
    rows: int = 0
    failure: str = ""


class Case:
    """One pipeline with one engine, in a database of its own: victims and seeds in turn."""

    def __init__(self, dsn: str, name: str, engine: str, folder: Path) -> None:
        self.name, self.engine = name, engine
        self.folder = folder / f"{name}-{engine}"
        self.folder.mkdir()
        self.dsn = dsn
        self.pipeline: Pipeline = ALL[name](self.dsn, self.folder)
        self.pipeline.begin()
        self._usual = 1.0 if engine == "local" else 3.0
        self._seed = 0
        self._runner: Runner | None = None
        self._next: Runner | None = None

    def run(self, victim: str, seeds: int, tell: Callable[[str], Any]) -> Result:
        """Kill the victim once for each seed."""
        result = Result(self.name, self.engine, victim)
        for number in range(seeds):
            try:
                self._kill(victim, random.Random(f"{victim}{number}"), result)
                result.rows = self.pipeline.check(self._seed)
                said = f"{result.rows} rows, once each"
            except AssertionError as error:
                result.failure = said = str(error)
            result.seeds += 1
            self._seed += 1
            tell(f"{self.name}/{self.engine} {victim} {number}: {said}")
            if result.failure:
                break
        return result

    def end(self) -> None:
        for runner in (self._runner, self._next):
            if runner is not None:
                runner.end()

    def _kill(self, victim: str, chosen: random.Random, result: Result) -> None:
        with self._beside():
            self._kill_once(victim, chosen, result)
        # Also what ended in peace runs again: it shall find nothing to do.
        self._in_peace()

    def _beside(self) -> AbstractContextManager[object]:
        """Messages are archived while an export is killed, and not any more when it is checked."""
        if self.name != "export":
            return nullcontext()
        return Archiver(self.dsn, 10**9 + self._seed * 10**6)

    def _kill_once(self, victim: str, chosen: random.Random, result: Result) -> None:
        self.pipeline.prepare(self._seed)
        runner = self._ready(ahead=victim == "driver")
        runner.begin(self._seed)
        ended = threading.Event()
        answer: list[str] = []

        def listen() -> None:
            answer.append(runner.hear("done"))
            ended.set()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        if not ended.wait(chosen.uniform(0, 1.1 * self._usual)):
            result.killed += self._strike(victim, runner, ended)
        listener.join()
        if victim == "driver":
            runner.end()
            self._runner = None
        await_server(self.dsn)
        if answer[0].startswith("done") and victim != "driver":
            result.survived += 1

    def _strike(self, victim: str, runner: Runner, ended: threading.Event) -> bool:
        if victim == "driver":
            runner.end()
        elif victim == "server":
            kill_server(self.dsn)
        else:
            while (worker := runner.worker()) is None:
                if ended.wait(0.01):
                    return False
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return True

    def _in_peace(self) -> None:
        said = ""
        for _ in range(_TRIES):
            self.pipeline.relax()
            runner = self._ready()
            since = time.monotonic()
            runner.begin(self._seed)
            said = runner.hear("done")
            if said.startswith("done"):
                # The first one of a session is slower.
                self._usual = min(max(0.3, time.monotonic() - since), 2 * self._usual)
                return
            # Spark looks for data sources once; a driver whose worker was killed then has to go.
            if not said or "DATA_SOURCE_NOT_FOUND" in said:
                runner.end()
                self._runner = None
        raise AssertionError(f"does not end: {said or 'the process died'}")

    def _ready(self, *, ahead: bool = False) -> Runner:
        """Give a process that waits to be told; `ahead`: begin another one, to take its place."""
        if self._runner is None:
            self._runner = self._next or self._new()
            self._next = None
            self._runner.hear("ready")
        if ahead and self._next is None:
            self._next = self._new()
        return self._runner

    def _new(self) -> Runner:
        return Runner(self.name, self.engine, self.dsn, self.folder)


def _database(dsn: str, name: str) -> str:
    """Make a database as a fresh install leaves it, and give its address."""
    with closing(psycopg.connect(dsn, autocommit=True)) as session:
        for statement in ("drop database if exists {} with (force)", "create database {}"):
            session.execute(sql.SQL(statement).format(sql.Identifier(name)))
    made = conninfo.make_conninfo(dsn, dbname=name)
    asyncio.run(_install(made))
    return made


async def _install(dsn: str) -> None:
    import asyncpg

    from notifyq import migrate

    given = conninfo.conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "user", "dbname": "database"}
    wanted: dict[str, Any] = {names[key]: given[key] for key in names.keys() & given.keys()}
    session = await asyncpg.connect(**wanted)
    try:
        await migrate.install(session)
    finally:
        await session.close()


def table(results: list[Result]) -> str:
    """Give the results as a table."""
    lines = ["| pipeline | engine | killed | seeds | in time | survived | rows | verdict |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    lines += [
        f"| {it.pipeline} | {it.engine} | {it.victim} | {it.seeds} | {it.killed} | {it.survived} "
        f"| {it.rows} | {it.failure or 'once each'} |"
        for it in results
    ]
    return "\n".join(lines)


def matrix(
    dsn: str,
    folder: Path,
    names: list[str],
    engines: list[str],
    victims: list[str],
    seeds: int,
    tell: Callable[[str], Any],
) -> list[Result]:
    """Run all cases that there are of these."""
    results = []
    for name in names:
        for engine in engines:
            if engine == "local" and ALL[name].wants_spark:
                continue
            case = Case(_database(dsn, f"kill_{name}_{engine}"), name, engine, folder)
            try:
                for victim in victims:
                    # Threads of the driver have no process of their own.
                    if victim != "worker" or engine == "spark":
                        results += [case.run(victim, seeds, tell)]
            finally:
                case.end()
    return results


def main() -> None:
    """Run the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", help="of a server of this user, where databases may be made")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--pipeline", action="append", choices=ALL, help="repeatable; else all")
    parser.add_argument("--engine", action="append", choices=("local", "spark"), help="else both")
    parser.add_argument("--victim", action="append", choices=VICTIMS, help="else all")
    given = parser.parse_args()
    if not given.dsn:
        parser.error("no server: give --dsn")
    with tempfile.TemporaryDirectory(prefix="notifyq-kill-") as folder:
        results = matrix(
            given.dsn,
            Path(folder),
            given.pipeline or list(ALL),
            given.engine or ["local", "spark"],
            given.victim or list(VICTIMS),
            given.seeds,
            lambda line: print(line, flush=True),
        )
    print(table(results))
    if any(it.failure for it in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
