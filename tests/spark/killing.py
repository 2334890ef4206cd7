"""Processes that are killed: pipelines, the workers of Spark, and the server.

As a program it is a pipeline in a process: a line in is a seed to run, a line out says how it went.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parents[1]))

from notifyq.errors import DatabaseUnavailableError
from notifyq.spark.connection import connect
from spark.archived import archive
from spark.killed import ALL

_TESTS = Path(__file__).parents[1]


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
                        self._stopped.wait(0.05)

    def _archive(self, session: Any, rows: int) -> None:
        archive(session, rows, first=self._next, day=f"2026-03-0{1 + self._next // 20 % 3}")
        self._next += rows


class Runner:
    """A process that runs a pipeline each time that it is told to."""

    def __init__(self, name: str, engine: str, dsn: str, folder: Path) -> None:
        command = [sys.executable, __file__, name, "--engine", engine]
        self._log = (folder / "log").open("ab")
        self._process = subprocess.Popen(
            [*command, "--folder", str(folder)],
            env={**os.environ, "NOTIFYQ_DSN": dsn, "PYTHONPATH": str(_TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def hear(self, word: str) -> str:
        """Give the next line, which begins with the word unless the process is dead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line and not line.startswith((word, "failed")):
            raise AssertionError(f"{line!r} is not {word}")
        return line

    def begin(self, seed: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seed}\n")
        self._process.stdin.flush()
        self.hear("begun")

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def worker(self) -> int | None:
        """Find a Python worker."""
        return next(workers(self._process.pid), None)


def workers(root: int) -> Iterator[int]:
    """Find the Python workers of Spark below a process: what their parent has forked."""
    return (pid for pid in _below(root) if _is_worker(pid))


def _below(pid: int) -> Iterator[int]:
    for folder in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, folder.read_text().split()):
                yield child
                yield from _below(child)


def _is_worker(pid: int) -> bool:
    with suppress(OSError, ValueError):
        parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        lines = [Path(f"/proc/{it}/cmdline").read_bytes() for it in (pid, parent)]
        return all(b"daemon" in line and b"python" in line for line in lines)
    return False


def kill_server(dsn: str) -> None:
    """Kill a process of the server, which then ends all others and recovers."""
    with suppress(psycopg.Error), closing(connect(dsn)) as session:
        [[pid]] = session.execute("select pg_backend_pid()").fetchall()
        os.kill(pid, signal.SIGKILL)
        session.execute("select 1")


def await_server(dsn: str) -> None:
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


def serve(name: str, engine: str, folder: Path) -> None:
    """Be the process that may be killed."""
    from notifyq.spark.session import session

    dsn = os.environ["NOTIFYQ_DSN"]
    short = {
        "spark.driver.memory": "700m",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = None
    if engine == "spark":
        spark = session("kill", master="local[2,4]", is_short=True, conf=short)
        spark.range(4).rdd.map(str).count()  # a worker is there
    pipeline = ALL[name](dsn, folder)
    print("ready", flush=True)
    for line in sys.stdin:
        print("begun", flush=True)
        try:
            pipeline.run(int(line), spark)
            print("done", flush=True)
        except Exception as error:  # noqa: BLE001  whatever it is, it is told
            print(f"failed: {type(error).__name__}: {error}".replace("\n", " ")[:1000], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=ALL)
    parser.add_argument("--engine", choices=("local", "spark"), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    serve(given.name, given.engine, given.folder)
