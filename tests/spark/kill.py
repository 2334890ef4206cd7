"""Pipelines that are killed at any moment: `python tests/spark/kill.py --dsn … --seeds 20`.

Pipelines run in another process, which begins on command. At a moment that the seed chooses
something is killed: that process with all that it started (`driver`), one of its Python workers
that has something in hand (`worker`), or a process of the server, which then ends all others and
recovers (`server`). Then what was killed runs again until it ends in peace, and what it was to
bring over must be there, once each; see `killed` for what that is. A failure of a pipeline ends
that only. The table is what goes to stdout, a line when its seeds are done, so that of a series cut
short what was done is left; how each seed went is on stderr.

A driver and a server have all pipelines at the same time, each with a database of its own, as a
session of Spark takes longer to start than all of them to run; a worker has one at a time.

The DSN is that of a server of this user, where databases of these tests may be made. Nothing else
should be on that server, as it is killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from spark.killed import ALL, Pipeline
from spark.killing import Archiver, Runner, await_server, database, kill_server

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
    """Pipelines that one process runs at the same time, each in a database of its own."""

    def __init__(self, dsns: Mapping[str, str], engine: str, folder: Path) -> None:
        self.dsns, self.engine, self.folder = dsns, engine, folder
        self.pipelines: dict[str, Pipeline] = {}
        for name, dsn in dsns.items():
            (folder / name).mkdir(parents=True)
            self.pipelines[name] = ALL[name](dsn, folder / name)
            self.pipelines[name].begin()
        self._server = next(iter(dsns.values()))
        self._seed = -1
        self._runner: Runner | None = None
        self._next: Runner | None = None

    def run(self, victim: str, seeds: int, report: Callable[[str], Any]) -> list[Result]:
        """Kill the victim once for each seed."""
        results = {name: Result(name, self.engine, victim) for name in self.pipelines}
        self._prepare()
        self._usual = self._in_peace(results)
        for number in range(seeds):
            left = {name: it for name, it in results.items() if not it.failure}
            if left:
                self._kill(victim, random.Random(f"{victim}{number}"), left)
            for name, result in left.items():
                result.seeds += 1
                with _failing(result):
                    result.rows = self.pipelines[name].check(self._seed)
                outcome = result.failure or f"{result.rows} rows, once each"
                report(f"{name}/{self.engine} {victim} {number}: {outcome}")
        return list(results.values())

    def end(self) -> None:
        for runner in (self._runner, self._next):
            if runner is not None:
                runner.end()

    def _prepare(self) -> None:
        self._seed += 1
        for pipeline in self.pipelines.values():
            pipeline.prepare(self._seed)

    def _kill(self, victim: str, chosen: random.Random, results: Mapping[str, Result]) -> None:
        with self._beside():
            self._prepare()
            self._kill_once(victim, chosen, results)
        # Also what ended in peace runs again: it shall find nothing to do.
        self._in_peace(results)

    def _beside(self) -> AbstractContextManager[object]:
        """Messages are archived while an export is killed, and not any more when it is checked."""
        if "export" not in self.dsns:
            return nullcontext()
        return Archiver(self.dsns["export"], 10**9 + self._seed * 10**6)

    def _kill_once(self, victim: str, chosen: random.Random, results: Mapping[str, Result]) -> None:
        runner = self._ready(spare=victim == "driver")
        since = time.monotonic()
        runner.begin(self._seed, results)
        done: dict[str, str] = {}
        ended = threading.Event()

        def listen() -> None:
            done.update(self._listen(runner, results, done))
            ended.set()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        if ended.wait(chosen.uniform(0, 1.1 * self._usual)):
            self._usual = time.monotonic() - since
        else:
            before = set(done)
            if self._strike(victim, runner, ended):
                for name in results.keys() - before:
                    results[name].killed += 1
        listener.join()
        if victim == "driver":
            runner.end()
            self._runner = None
        await_server(self._server)
        for name, answer in done.items():
            results[name].survived += answer == "done" and victim != "driver"

    def _listen(self, runner: Runner, names: Iterable[str], done: dict[str, str]) -> dict[str, str]:
        """Gather how each ended; a dead process has ended all."""
        while missing := set(names) - done.keys():
            name, _, how = runner.receive().partition(" ")
            if not name:
                return dict.fromkeys(missing, "")
            done[name] = how
        return done

    def _strike(self, victim: str, runner: Runner, ended: threading.Event) -> bool:
        if victim == "driver":
            runner.end()
        elif victim == "server":
            kill_server(self._server)
        elif (worker := runner.working(ended)) is None:
            return False
        else:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        return True

    def _in_peace(self, results: Mapping[str, Result]) -> float:
        """Run until all have ended well, and report how long the last run took."""
        left = dict.fromkeys(results, "")
        for _ in range(_TRIES):
            for name in left:
                self.pipelines[name].relax()
            runner = self._ready()
            since = time.monotonic()
            runner.begin(self._seed, left)
            done = self._listen(runner, left, {})
            left = {name: how for name, how in done.items() if how != "done"}
            if not left:
                return time.monotonic() - since
            if not all(left.values()):
                runner.end()
                self._runner = None
        for name, how in left.items():
            results[name].failure = f"does not end: {how or 'the process ended'}"
        return 1.0

    def _ready(self, *, spare: bool = False) -> Runner:
        """Return a process that waits for commands; `spare`: start another one to replace it."""
        if self._runner is None:
            self._runner = self._next or self._new()
            self._next = None
            assert self._runner.receive() == "ready"
        if spare and self._next is None:
            self._next = self._new()
        return self._runner

    def _new(self) -> Runner:
        return Runner(self.engine, self.dsns, self.folder)


@contextmanager
def _failing(result: Result) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        result.failure = str(error)


_HEAD = """\
| pipeline | engine | killed | seeds | in time | survived | rows | result |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


def line(it: Result) -> str:
    """Give a result as a line of the table."""
    return (
        f"| {it.pipeline} | {it.engine} | {it.victim} | {it.seeds} | {it.killed} | {it.survived} "
        f"| {it.rows} | {it.failure or 'once each'} |"
    )


def matrix(
    dsn: str,
    folder: Path,
    names: list[str],
    engines: list[str],
    victims: list[str],
    seeds: int,
    report: Callable[[str], Any],
) -> Iterator[Result]:
    """Run all cases that there are of these, and give each result when it is known."""
    for engine in engines:
        known = [name for name in names if engine == "spark" or not ALL[name].wants_spark]
        for victim in victims:
            # Threads of the driver have no process of their own.
            if victim == "worker":
                some = [name for name in known if ALL[name].has_workers]
                groups = [[name] for name in some] if engine == "spark" else []
            else:
                groups = [known] if known else []
            for group in groups:
                dsns = {name: database(dsn, f"kill_{name}_{engine}") for name in group}
                case = Case(dsns, engine, folder / "-".join([engine, victim, *group]))
                try:
                    yield from case.run(victim, seeds, report)
                finally:
                    case.end()


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
    has_failed = False
    with tempfile.TemporaryDirectory(prefix="notifyq-kill-") as folder:
        print(_HEAD, flush=True)
        for result in matrix(
            given.dsn,
            Path(folder),
            given.pipeline or list(ALL),
            given.engine or ["local", "spark"],
            given.victim or list(VICTIMS),
            given.seeds,
            lambda outcome: print(outcome, file=sys.stderr, flush=True),
        ):
            print(line(result), flush=True)
            has_failed |= bool(result.failure)
    if has_failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
