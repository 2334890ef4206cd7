"""`notifyq worker --processes N`: N workers, one command, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.programs import Notifyq, Result, Running, Terminal
from notifyq.chaos.proxy import Proxy
from notifyq.cli.processes import Supervisor
from support.database import Connection, publish, until_equal, value
from support.running import statuses

PROGRAM = """
import asyncio, os, time
from pathlib import Path
import notifyq
if Path("kill").exists():
    os.kill(os.getpid(), 9)
app = notifyq.App(pool_size=1)

@app.handler("pids")
async def pids(_: int) -> tuple[int, list[str]]:
    await asyncio.sleep(0.05)
    return os.getpid(), [name for name in os.environ if "SLOT" in name]

kept = []

@app.handler("grow")
async def grow(_: int) -> None:
    kept.append(b"x" * (500 << 20))
    while not Path("go").exists():
        await asyncio.sleep(0.01)

@app.handler("slow", max_attempts=2)
async def slow(seconds: float) -> None:
    print(f"{os.getpid()} begins", flush=True)
    await asyncio.sleep(seconds)

@app.handler("blocked", max_attempts=2)
async def blocked(seconds: float) -> None:
    print(f"{os.getpid()} begins", flush=True)
    time.sleep(seconds)
"""
STARTED = re.compile(r"\[(\d)\] .* worker [^:]+:(\d+):\S+ has started")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "handlers.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such luck')\n")
    return tmp_path


class Workers(Running):
    """A supervisor with its workers."""

    def __init__(self, dsn: str, folder: Path, number: int, *options: str, **more: str) -> None:
        args = ("worker", "handlers:app", "--processes", str(number), *options)
        # A process group of their own, as a shell gives to each command.
        super().__init__(dsn, *args, cwd=folder, process_group=0, env=more)
        self.pids: dict[int, int] = {}
        for _ in range(number):
            self.receive_start()

    def receive_start(self) -> tuple[int, int]:
        """Wait for a worker to start: its number and its pid."""
        found = STARTED.match(self.logged(" has started"))
        assert found is not None
        number, pid = map(int, found.groups())
        self.pids[number] = pid
        return number, pid

    def signal_all(self, number: int) -> None:
        """Send a signal to the process group, as Ctrl-C does."""
        os.killpg(self.process.pid, number)

    def end(self) -> Result:
        """Wait for the end of all: each of them holds the pipes of the output."""
        return super().end()


@contextmanager
def running(dsn: str, folder: Path, number: int, *options: str, **more: str) -> Iterator[Workers]:
    with Workers(dsn, folder, number, *options, **more) as workers:
        try:
            yield workers
        finally:
            if workers.process.poll() is None:
                workers.signal_all(signal.SIGKILL)


async def states(connection: Connection) -> list[tuple[str, int]]:
    found = await connection.fetch("select state::text, attempts from messages.message")
    return [tuple(row) for row in found]


async def test_all_processes_work_and_one_signal_stops_them(
    database: str, connection: Connection, folder: Path
) -> None:
    with running(database, folder, 3, "-c", "1") as workers:
        assert workers.pids.keys() == {1, 2, 3}
        assert len({*workers.pids.values(), workers.process.pid}) == 4
        await publish(connection, 60, "pids")
        await until_equal(
            lambda: statuses(connection), {"success": 60}, "all messages are handled", 30
        )
        result = workers.stop(signal.SIGTERM)
    assert (result.code, result.out) == (0, "")
    found = await connection.fetch("select distinct result from messages.message_archive")
    assert sorted(row[0] for row in found) == sorted([pid, []] for pid in workers.pids.values())
    (own,) = [line for line in result.err.splitlines() if not line.startswith("[")]
    assert own.endswith(" SIGTERM: every worker stops")
    assert result.err.count(" has stopped: ") == 3


async def test_a_process_above_its_memory_ends_what_it_has_and_is_replaced(
    database: str, connection: Connection, folder: Path
) -> None:
    with running(database, folder, 2, "-c", "1", "--max-memory", "400MB") as workers:
        before = dict(workers.pids)
        await publish(connection, 1, "grow")
        workers.logged("more than --max-memory: it stops, to be started again")
        (folder / "go").touch()
        workers.logged(" ended with exit code 75, another one follows in ")
        number, pid = workers.receive_start()
        assert pid != before[number]
        assert await statuses(connection) == {"success": 1}
        result = workers.stop(signal.SIGTERM)
    assert (result.code, result.out) == (0, "")


@pytest.mark.parametrize(
    ("number", "to_all"), [(signal.SIGTERM, False), (signal.SIGINT, True)], ids=["stop", "Ctrl-C"]
)
async def test_a_signal_lets_running_handlers_end(
    database: str, connection: Connection, folder: Path, number: int, to_all: bool
) -> None:
    with running(database, folder, 2, "-c", "1") as workers:
        await value(connection, "publish_many", queue="slow", messages=[1, 1])
        began = {workers.line(), workers.line()}
        if to_all:
            workers.signal_all(number)
        else:
            workers.process.send_signal(number)
        assert workers.end().code == 0
    assert began == {f"{pid} begins\n" for pid in workers.pids.values()}
    assert await statuses(connection) == {"success": 2}


@pytest.mark.parametrize("to_all", [False, True], ids=["supervisor", "group"])
async def test_a_second_signal_releases_at_once(
    database: str, connection: Connection, folder: Path, to_all: bool
) -> None:
    with running(database, folder, 2, "-c", "1", "--grace", "10m") as workers:
        await value(connection, "publish_many", queue="slow", messages=[600, 600])
        workers.line(), workers.line()
        send = workers.signal_all if to_all else workers.process.send_signal
        send(signal.SIGTERM)
        workers.logged(" is stopping")
        workers.logged(" is stopping")
        send(signal.SIGINT)
        assert workers.end().code == 0
    assert await states(connection) == [("waiting", 0)] * 2


async def test_a_third_signal_kills_a_worker_that_does_not_stop(
    database: str, connection: Connection, folder: Path
) -> None:
    with running(database, folder, 2, "-c", "1") as workers:
        await value(connection, "publish_many", queue="blocked", messages=[600, 600])
        workers.line(), workers.line()
        for how in ("stops", "stops at once"):
            workers.process.send_signal(signal.SIGTERM)
            workers.logged(f"SIGTERM: every worker {how}\n")
        result = workers.stop(signal.SIGTERM)
    assert result.code == 128 + signal.SIGTERM
    assert result.err.count(" while it was stopping") == 2


def test_ctrl_c_in_a_terminal_stops_all_processes(
    shared_database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with Terminal(shared_database, "worker", "handlers:app", "--processes", "2") as terminal:
        terminal.show("[1] ")
        terminal.show("[2] ")
        terminal.type("\x03")
        assert terminal.end() == 0


async def test_a_killed_worker_is_replaced(
    database: str, connection: Connection, folder: Path
) -> None:
    with running(database, folder, 2) as workers:
        old = workers.pids[2]
        os.kill(old, signal.SIGKILL)
        line = workers.logged("another one follows in ")
        assert f"worker process 2 (pid {old}) ended with signal 9, " in line
        number, new = workers.receive_start()
        assert number == 2
        assert new != old
        # A worker that another process stopped is replaced, too.
        os.kill(new, signal.SIGTERM)
        assert "ended with exit code 0, " in workers.logged("another one follows in ")
        assert workers.receive_start()[0] == 2
        assert workers.stop(signal.SIGTERM).code == 0


def test_a_stop_does_not_wait_for_the_next_worker(shared_database: str, folder: Path) -> None:
    (folder / "kill").touch()
    args = ("worker", "handlers:app", "--processes", "2")
    with Running(shared_database, *args, cwd=folder) as running:
        for _ in range(3):
            assert "worker process 1 " in running.logged("another one follows in ")
        assert running.stop(signal.SIGTERM).code == 0
    assert "worker process 2 " not in running.stderr


async def test_workers_of_a_killed_supervisor_stop(
    database: str, connection: Connection, folder: Path
) -> None:
    with running(database, folder, 2, "-c", "1") as workers:
        await value(connection, "publish_many", queue="slow", messages=[1, 1])
        workers.line(), workers.line()
        result = workers.stop(signal.SIGKILL)
    assert result.code == -signal.SIGKILL
    assert result.err.count("the supervisor is gone: this worker stops") == 2
    assert result.err.count(" has stopped: ") == 2
    assert await statuses(connection) == {"success": 2}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (("broken:app",), "cannot be imported: RuntimeError: no such luck"),
        (("handlers:app", "-q", "other"), "no handler for queue 'other'"),
        (("handlers:app", "--poll", "0s"), "setting poll: "),
        (("handlers:app", "--dsn", "postgresql://127.0.0.1:1/x"), "is the server running?"),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_an_error_of_all_workers_is_printed_once(
    notifyq: Notifyq, folder: Path, args: tuple[str, ...], why: str
) -> None:
    env = {"NOTIFYQ_RETRY_FOR": "0"}
    assert why in notifyq.refused("worker", *args, "--processes", 3, folder=folder, env=env)


def test_wrong_usage_is_printed_once(notifyq: Notifyq, folder: Path) -> None:
    assert "not MODULE:APP" in notifyq.refused("worker", "app", "--processes", 2, code=2)
    assert "'--processes'" in notifyq.refused("worker", "m:a", "--processes", 0, code=2)
    line = notifyq.refused("worker", "m:a", env={"NOTIFYQ_PROCESSES": "0"})
    assert "setting processes: " in line


def test_a_worker_that_cannot_start_again_ends_all(shared_database: str, folder: Path) -> None:
    with running(shared_database, folder, 2) as workers:
        (folder / "handlers.py").write_text("import no_such_thing\n")
        os.kill(workers.pids[2], signal.SIGKILL)
        result = workers.end()
    assert result.code == 1
    why = "notifyq: module 'handlers' cannot be imported: No module named 'no_such_thing'"
    assert result.err.count(f"{why} ({folder / 'handlers.py'}, line 1)") == 1
    assert result.err.count(" has stopped: ") == 1


async def test_a_full_server_ends_no_worker(database: str, folder: Path) -> None:
    async with Proxy(database) as proxy:
        start = asyncio.to_thread(Workers, proxy.dsn, folder, 2)
        with await start as workers:
            proxy.is_closed = True
            os.kill(workers.pids[1], signal.SIGKILL)
            await asyncio.to_thread(workers.logged, "another one follows in ")
            # It waits for the server, and ends neither itself nor the others.
            await asyncio.to_thread(workers.logged, ", attempt 2 follows in ")
            proxy.is_closed = False
            assert (await asyncio.to_thread(workers.receive_start))[0] == 1
            assert (await asyncio.to_thread(workers.stop, signal.SIGTERM)).code == 0
    assert "worker process 1 " in workers.stderr
    assert "worker process 2 " not in workers.stderr


async def test_json_has_the_number_in_a_field(database: str, folder: Path) -> None:
    options = ("worker", "handlers:app", "--log-format", "json")
    env = {"NOTIFYQ_PROCESSES": "2"}
    with Running(database, *options, cwd=folder, env=env) as running:
        for _ in range(2):
            running.logged(" has started")
        result = running.stop(signal.SIGINT)
    assert result.code == 0
    lines = [json.loads(line) for line in result.err.splitlines()]
    started = [line for line in lines if line.get("event") == "WorkerStarted"]
    assert {line["process"] for line in started} == {1, 2}


def test_one_process_has_no_supervisor(shared_database: str, folder: Path) -> None:
    args = ("worker", "handlers:app", "--processes", "1")
    env = {"NOTIFYQ_PROCESSES": "3"}
    with Running(shared_database, *args, cwd=folder, env=env) as running:
        line = running.logged(" has started")
        assert f":{running.process.pid}:" in line
        assert not line.startswith("[")
        assert running.stop(signal.SIGTERM).code == 0
    assert running.stderr.count(" has started") == 1


async def test_far_more_processes_than_cores_log_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cores = os.cpu_count() or 1
    with caplog.at_level(logging.WARNING):
        Supervisor(4 * cores)
        assert not caplog.records
        Supervisor(4 * cores + 1)
    assert f"{4 * cores + 1} worker processes on {cores} cores" in caplog.text
