"""Pipelines that are killed at any moment: `python tests/spark/kill.py --dsn … --seeds 20`.

A program archives messages all the time, some of them in transactions that commit late. Beside it
the pipeline runs as a process of its own and is killed: itself, with all that it started, or the
server, of which one process is killed so that it restarts. In the end it runs once in peace, and
what it was to bring over must be there, once each.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

sys.path.insert(0, str(Path(__file__).parents[1]))

from notifyq.errors import DatabaseUnavailableError
from notifyq.spark.connection import connect
from notifyq.spark.lake import Lake
from spark.archived import archive

VICTIMS = ("driver", "server")


class Archiver:
    """Archives messages until it is told to stop, a tenth of them in transactions that end late."""

    def __init__(self, dsn: str, first: int) -> None:
        self._dsn, self._next = dsn, first
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Archiver:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            # A server that restarts takes the rows of open transactions with it.
            with suppress(psycopg.Error, DatabaseUnavailableError):
                self._work()
            self._stopped.wait(0.05)

    def _work(self) -> None:
        with closing(connect(self._dsn)) as soon, closing(connect(self._dsn)) as late:
            while not self._stopped.is_set():
                with late.transaction():
                    self._archive(late, 20)
                    for _ in range(5):
                        self._archive(soon, 40)
                        self._stopped.wait(0.02)

    def _archive(self, session: Any, rows: int) -> None:
        archive(session, rows, first=self._next, day=f"2026-03-0{1 + self._next // 20 % 3}")
        self._next += rows


def kill(
    dsn: str, command: Sequence[str], seed: int, *, times: int = 3, longest: float = 4.0
) -> list[str]:
    """Start a pipeline and kill it, several times; return what was killed."""
    chosen = random.Random(seed)
    killed = []
    for _ in range(times):
        victim = chosen.choice(VICTIMS)
        delay = chosen.uniform(0.4, longest)
        running = subprocess.Popen(
            command,
            env={**os.environ, "NOTIFYQ_DSN": dsn},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        with suppress(subprocess.TimeoutExpired):
            running.wait(delay)
            victim = "nothing"  # it was quicker
        if victim == "server":
            _kill_server(dsn)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        killed.append(victim)
        _await_server(dsn)
    return killed


def _kill_server(dsn: str) -> None:
    """Kill a process of the server, which then ends all others and recovers."""
    with suppress(psycopg.Error), closing(connect(dsn)) as session:
        [[pid]] = session.execute("select pg_backend_pid()").fetchall()
        os.kill(pid, signal.SIGKILL)
        session.execute("select 1")


def _await_server(dsn: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            connect(dsn).close()
        except DatabaseUnavailableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def compare(dsn: str, folder: Path) -> int:
    """Raise unless the archive, the lake and its Delta table have the same messages, once each."""
    with closing(connect(dsn)) as session:
        here = Counter(row[0] for row in session.execute("select id from messages.message_archive"))
    there = Counter(Lake(dsn, folder).dataset().to_table(columns=["id"])["id"].to_pylist())
    mirror = pa.table(DeltaTable(folder / "archive").scan(columns=["id"]))["id"].to_pylist()
    for name, found in (("lake", there), ("Delta table", Counter(mirror))):
        lost, more = here - found, found - here
        if lost or more:
            raise AssertionError(f"{name}: {lost.total()} lost, {more.total()} too many")
    return here.total()


def run(
    dsn: str, command: Sequence[str], folder: Path, seed: int, tell: Callable[[str], Any]
) -> None:
    """Archive and export and kill, then export in peace and compare."""
    with closing(connect(dsn)) as session:
        [[first]] = session.execute(
            "select coalesce(max(id), 0) from messages.message_archive"
        ).fetchall()
    with Archiver(dsn, first):
        killed = kill(dsn, command, seed)
    subprocess.run(command, env={**os.environ, "NOTIFYQ_DSN": dsn}, check=True, capture_output=True)
    rows = compare(dsn, folder)
    tell(f"seed {seed}: killed {', '.join(killed)}; {rows} messages, once each")


def main() -> None:
    """Run the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn", required=True, help="an unused database of a server of this user")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--engine", default="local")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "lake"
        notifyq = [sys.executable, "-m", "notifyq"]
        command = [
            *notifyq, "spark", "export", "--lake", str(folder), "--engine", given.engine
        ]  # fmt: skip
        for seed in range(given.seeds):
            run(given.dsn, command, folder, seed, print)


if __name__ == "__main__":
    main()
