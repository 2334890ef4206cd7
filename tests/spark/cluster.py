"""A standalone cluster of Spark on one machine, whose workers are as on another.

A master, two workers and a driver, each a process. The workers have a network of their own, with a
loopback of its own, and a folder that is empty there, whatever the driver has in it. As a program
this is the driver, which makes one call for each line that it reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(_TESTS))

_FAST = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_LONG = 60
_WORKER = """
set -e
mount -t tmpfs tmpfs "$PRIVATE"
exec "$SPARK_CLASS" org.apache.spark.deploy.worker.Worker --host "$THERE" --webui-port 0 \
  --cores 1 --memory 600m --work-dir "$WORK" "$MASTER"
"""


def until(what: str, is_so: Callable[[], Any]) -> Any:
    """Wait for a state, and return its result."""
    end = time.monotonic() + _LONG
    while not (found := is_so()):
        assert time.monotonic() < end, f"{what}: not in {_LONG} s"
        time.sleep(0.02)
    return found


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie has no command."""
    with suppress(OSError):
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    return False


class Cluster:
    """The processes; `shared` is the same folder for all of them, `private` is not."""

    def __init__(self, folder: Path, server: str) -> None:
        self.shared, self.private = folder / "shared", folder / "private"
        self.workers: list[subprocess.Popen[str]] = []
        self._folder = folder
        self._server = urlsplit(server)
        self._stack = ExitStack()
        for made in (self.shared, self.private):
            made.mkdir(parents=True)

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            self._stack = stack
            self._start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def dsn(self, database: str) -> str:
        """Return the address at which workers reach a database of the test's server."""
        given = urlsplit(database)
        host = f"{given.username}:{given.password}@{self.here}:{self._port}"
        return given._replace(netloc=host).geturl()

    def call(self, function: str, **given: Any) -> Any:
        """Have the driver call a function of this module; its error is an AssertionError here."""
        self.begin(function, **given)
        return self.result()

    def begin(self, function: str, **given: Any) -> None:
        assert self.driver.stdin is not None
        self.driver.stdin.write(json.dumps([function, given]) + "\n")
        self.driver.stdin.flush()

    def result(self) -> Any:
        assert self.driver.stdout is not None
        output = self.driver.stdout.readline()
        assert output, f"the driver has ended, see {self._folder / 'driver.log'}"
        answer = json.loads(output)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def inside(self, number: int, command: str) -> None:
        """Run a command of the shell where a worker is."""
        where = ["nsenter", "-t", str(self.workers[number].pid), "-m", "-n"]
        subprocess.run([*where, "sh", "-ec", command], check=True)

    def executor(self, number: int) -> int | None:
        """Find the process of the executor that a worker has started."""
        pid = self.workers[number].pid
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                for child in children.read_text().split():
                    if b"CoarseGrainedExecutor" in Path(f"/proc/{child}/cmdline").read_bytes():
                        return int(child)
        return None

    def executors(self) -> int:
        """Await an executor of each worker that lives, and count them."""
        living = [n for n, worker in enumerate(self.workers) if worker.poll() is None]
        until("executors", lambda: all(self.executor(number) for number in living))
        return len(living)

    def log(self, name: str) -> str:
        """Give what a process has written."""
        return (self._folder / f"{name}.log").read_text()

    def _start(self) -> None:
        import pyspark

        # Without the archive of pyspark, which each kind of Python worker would compile anew.
        home = self._folder / "home"
        home.mkdir()
        for part in ("bin", "jars"):
            (home / part).symlink_to(Path(pyspark.__file__).parent / part)
        number = os.getpid() % 16_000
        self.here = f"10.{192 + number // 1000}.{number % 1000 // 4}.{number % 4 * 64 + 1}"
        there = f"{self.here.rpartition('.')[0]}.{number % 4 * 64 + 2}"
        # The pair of interfaces goes with the network of this process.
        network = self._run("network", ["unshare", "--net", "sleep", "infinity"])
        until("a network", lambda: _network(network.pid) != _network(os.getpid()))
        name, other = f"nq{number}a", f"nq{number}b"
        inner = ["nsenter", "-t", str(network.pid), "-n"]
        for command in (
            ["ip", "link", "add", name, "type", "veth", "peer", other, "netns", str(network.pid)],
            ["ip", "address", "add", f"{self.here}/30", "dev", name],
            ["ip", "link", "set", name, "up"],
            [*inner, "ip", "address", "add", f"{there}/30", "dev", other],
            [*inner, "ip", "link", "set", other, "up"],
            [*inner, "ip", "link", "set", "lo", "up"],
        ):
            subprocess.run(command, check=True)
        environment = {
            **{k: v for k, v in os.environ.items() if k not in {"NOTIFYQ_DSN", "PYTHONPATH"}},
            "SPARK_HOME": str(home),
            "SPARK_CLASS": str(home / "bin/spark-class"),
            "SPARK_DAEMON_JAVA_OPTS": _FAST,
            "SPARK_DAEMON_MEMORY": "256m",
            "PRIVATE": str(self.private),
            "THERE": there,
        }
        master = self._run(
            "master",
            [
                *(str(home / "bin/spark-class"), "org.apache.spark.deploy.master.Master"),
                *("--host", self.here, "--port", "0", "--webui-port", "0"),
            ],
            environment | {"SPARK_LOCAL_IP": self.here},
        )
        to = f"{self._server.hostname}:{self._server.port}"
        forwarder = self._run(
            "forwarder", [sys.executable, __file__, "forward", self.here, to], environment
        )
        self.master = until(
            "a master", lambda: self._log_line("master", "Starting Spark master at ")
        )
        self.driver = self._run(
            "driver",
            [sys.executable, __file__, "drive", self.master],
            # What it has in its temporary folder, or relative to its own, is nowhere else.
            environment | {"TMPDIR": str(self.private), "PYTHONPATH": str(_TESTS)},
            cwd=self.shared,
        )
        for name in ("first", "second"):
            self.workers.append(
                self._run(
                    name,
                    [*inner, "unshare", "--mount", "sh", "-c", _WORKER],
                    environment
                    | {"MASTER": self.master, "SPARK_LOCAL_IP": there}
                    | {"WORK": str(self._folder / name)},
                )
            )
        assert forwarder.stdout is not None
        self._port = int(forwarder.stdout.readline())
        assert master.poll() is None
        self.executors()

    def _log_line(self, name: str, what: str) -> str | None:
        return self.log(name).partition(what)[2].partition("\n")[0].strip() or None

    def _run(
        self,
        name: str,
        command: Sequence[str],
        environment: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return process


def _network(pid: int) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    return ""


def _end(process: subprocess.Popen[str]) -> None:
    # Executors are in the group of their worker.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            pipe.close()  # type: ignore[union-attr]


async def _forward(host: str, to: str) -> None:
    """Carry connections on: the server of the tests listens on a loopback only."""
    target, _, port = to.rpartition(":")

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(target, int(port))
        await asyncio.gather(carry(reader, back), carry(there, writer))

    server = await asyncio.start_server(serve, host, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class Driver:
    """What the driver can be called for."""

    def __init__(self, master: str) -> None:
        from notifyq.spark.lake import export
        from notifyq.spark.session import session

        export._LEAST_BLOCKS = 1  # a small table is shared out as a large one is
        self.spark = session(
            "cluster",
            master=master,
            is_short=True,
            conf={
                "spark.driver.memory": "700m",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": _FAST,
                "spark.sql.shuffle.partitions": "2",
                "spark.sql.codegen.wholeStage": "false",
                "spark.sql.streaming.pollingDelay": "20ms",
                "spark.ui.enabled": "false",
                "spark.default.parallelism": "4",
            },
        )

    def facts(self) -> dict[str, Any]:
        """Return what executors get, and on which machines they run."""
        context = self.spark.sparkContext

        def there(_: int) -> tuple[str, str]:
            import notifyq.spark.machines

            return notifyq.spark.machines.this_machine(), sys.executable

        found = set(context.parallelize(range(8), 8).map(there).collect())
        return {
            "host": context.getConf().get("spark.driver.host"),
            "python": context.pythonExec,
            "machines": sorted(found),
        }

    def run(self, pipeline: str, dsn: str, folder: str) -> None:
        """Run a pipeline of those that are killed elsewhere."""
        from spark.killed import ALL

        ALL[pipeline](dsn, Path(folder)).run(0, self.spark)

    def load(self, dsn: str, name: str, files: list[str], queue: str) -> int:
        """Load files into a queue."""
        from notifyq.spark import pipelines

        engine = pipelines.SparkEngine(self.spark)
        mapping = pipelines.mapping(queue, {}, None)
        return pipelines.load(dsn, name, files, mapping, engine=engine).published

    def read(self, dsn: str) -> int:
        """Count the archive by the data source."""
        options = {"dsn": dsn, "columns": "id", "partitions": "4"}
        return int(self.spark.read.format("notifyq").options(**options).load().count())

    def frame(self, dsn: str, lake: str) -> int:
        """Count a lake as a DataFrame."""
        from notifyq.spark.lake.lake import Lake

        return int(Lake(dsn, lake).frame(self.spark, ["id"]).count())

    def command(self, words: list[str], dsn: str) -> int:
        """Run a command of the pipelines in this session."""
        from notifyq.cli.main import _invoke

        os.environ["NOTIFYQ_DSN"] = dsn
        return int(_invoke(["spark", *words], debug=False))

    def gated(self, dsn: str, lake: str, gate: str) -> int:
        """Export by tasks that wait once after writing and before reporting their files."""
        from notifyq.spark.engine import SparkEngine
        from notifyq.spark.lake.export import export

        class Gated(SparkEngine):
            def run(self, tasks: Any, work: Any, **given: Any) -> Any:
                def waiting(task: Any) -> Any:
                    from pyspark import TaskContext

                    context = TaskContext.get()
                    assert context is not None
                    done = work(task)
                    if done and context.attemptNumber() == 0:
                        Path(gate, str(os.getpid())).touch()
                        while not Path(gate, "open").exists():
                            time.sleep(0.02)
                    return done

                return super().run(tasks, waiting, **given)

        return export(dsn, lake, engine=Gated(self.spark)).rows


def _drive(master: str) -> None:
    # Commands write to stdout as well.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    driver = Driver(master)
    for line in sys.stdin:
        function, given = json.loads(line)
        try:
            answer = {"result": getattr(driver, function)(**given)}
        except Exception as error:  # noqa: BLE001  any error is reported
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["forward", host, to]:
            asyncio.run(_forward(host, to))
        case ["drive", master]:
            _drive(master)
