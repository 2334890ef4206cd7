"""Processes that are killed: pipelines, the workers of Spark, and the server.

As a program it runs pipelines: each input line is a seed and names, each output line one result.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo, sql

sys.path.insert(0, str(Path(__file__).parents[1]))

from notifyq.errors import DatabaseUnavailableError
from notifyq.spark.connection import connect
from spark.archived import archive
from spark.killed import ALL, Pipeline

_TESTS = Path(__file__).parents[1]


def database(dsn: str, name: str) -> str:
    """Make a database as a fresh install leaves it, and give its address."""
    with closing(psycopg.connect(dsn, autocommit=True)) as session:
        for statement in ("drop database if exists {} with (force)", "create database {}"):
            session.execute(sql.SQL(statement).format(sql.Identifier(name)))
    made = conninfo.make_conninfo(dsn, dbname=name)
    asyncio.run(_install(made))
    return made


async def _install(dsn: str) -> None:
    import asyncpg

    from notifyq import schema

    given = conninfo.conninfo_to_dict(dsn)
    names = {"host": "host", "port": "port", "user": "user", "dbname": "database"}
    wanted: dict[str, Any] = {names[key]: given[key] for key in names.keys() & given.keys()}
    session = await asyncpg.connect(**wanted)
    try:
        await schema.install(session)
    finally:
        await session.close()


class Archiver:
    """Archives messages until it is stopped, a tenth of them in transactions that end late."""

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
    """A process that runs pipelines on command, all at the same time."""

    def __init__(self, engine: str, dsns: Mapping[str, str], folder: Path) -> None:
        command = [sys.executable, __file__, "--engine", engine, "--folder", str(folder)]
        self._log = (folder / "log").open("ab")
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "NOTIFYQ_DSNS": json.dumps(dict(dsns)), "PYTHONPATH": str(_TESTS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def receive(self) -> str:
        """Return the next line; an empty one means that the process has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def begin(self, seed: int, names: Iterable[str]) -> None:
        assert self._process.stdin is not None
        # receive() reports a process that has ended.
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{seed} {' '.join(names)}\n")
            self._process.stdin.flush()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def working(self, ended: threading.Event) -> int | None:
        """Await one of its Python workers that has something in hand."""
        return working(self._process.pid, ended)


def working(root: int, ended: threading.Event) -> int | None:
    """Await a Python worker below a process that has something in hand; None: it ended before."""
    before: dict[int, str] = {}
    while not ended.wait(0.01):
        for pid in workers(root):
            # Its time on a processor: one that waits for work uses none.
            with suppress(OSError):
                used = Path(f"/proc/{pid}/schedstat").read_text().split()[0]
                if before.setdefault(pid, used) != used:
                    return pid
    return None


def workers(root: int) -> Iterator[int]:
    """Find the Python workers of Spark below a process: what their daemon has forked."""
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
        line, above = (Path(f"/proc/{it}/cmdline").read_bytes() for it in (pid, parent))
        # The daemon is not a worker. The JVM has its name too, in its arguments.
        return line == above and b"daemon" in line
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


def serve(engine: str, folder: Path) -> None:
    """Be the process that may be killed."""
    from notifyq.spark.session import session

    short = {
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.pollingDelay": "20ms",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = None
    if engine == "spark":
        spark = session("kill", master="local[2,4]", is_short=True, conf=short)
        spark.range(4).rdd.map(str).count()  # a worker is there
    pipelines = {
        name: ALL[name](dsn, folder / name)
        for name, dsn in json.loads(os.environ["NOTIFYQ_DSNS"]).items()
    }
    _say("ready")
    with ThreadPoolExecutor(len(pipelines)) as pool:
        for line in sys.stdin:
            seed, *names = line.split()
            for name in names:
                pool.submit(_run, pipelines[name], int(seed), spark)


def _run(pipeline: Pipeline, seed: int, spark: Any) -> None:
    try:
        pipeline.run(seed, spark)
        _say(f"{pipeline.name} done")
    except Exception as error:  # noqa: BLE001  any error is reported
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        _say(f"{pipeline.name} failed: {reason[:1000]}")


def _say(line: str) -> None:
    # In one piece: threads may speak at the same time.
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("local", "spark"), required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    serve(given.engine, given.folder)
