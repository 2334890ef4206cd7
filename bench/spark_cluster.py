"""Export by a standalone cluster relative to `local[2]`: `python -m bench.spark_cluster`.

A master and two workers of one core each run on this machine, from the package of PySpark. A driver
of each kind exports the archive of the database into new lakes, in turns, after a first export that
does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.lake_store import compare, measure

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOST = "127.0.0.1"
_STARTED = "Starting Spark master at "


def drive(dsn: str, master: str) -> None:
    """Export once for each line of the input; print messages a second."""
    from notifyq.spark.pipelines import SparkEngine, session

    conf = {"spark.executor.memory": "1g", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC"}
    engine = SparkEngine(session("bench", master=master, conf=conf))
    for _ in sys.stdin:
        with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
            rows, seconds = measure(dsn, f"{folder}/lake", engine)
        sys.stdout.write(f"{rows / seconds}\n")
        sys.stdout.flush()


@contextmanager
def cluster() -> Iterator[str]:
    """Run a master and two workers; give the address of the master."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}

    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
        log = Path(folder) / "master.log"

        def run(kind: str, *words: str) -> None:
            program = [str(home / "bin/spark-class"), f"org.apache.spark.deploy.{kind}"]
            given = ["--host", _HOST, "--port", "0", "--webui-port", "0", *words]
            with log.open("ab") as output:
                process = subprocess.Popen(  # noqa: S603
                    [*program, *given], env=environment, stdout=output, stderr=output
                )
            stack.callback(process.wait)
            stack.callback(process.terminate)

        run("master.Master")
        while not (address := log.read_text().partition(_STARTED)[2].partition("\n")[0]):
            time.sleep(0.1)
        for number in range(2):
            work = str(Path(folder) / f"work-{number}")
            run("worker.Worker", "--cores", "1", "--memory", "1g", "--work-dir", work, address)
        yield address
        stack.close()  # before the folder goes


def main() -> None:
    """Print messages in a second of both, and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_cluster", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.master:
        drive(given.dsn, given.master)
        return
    os.environ["NOTIFYQ_DSN"] = given.dsn
    with cluster() as address:
        words = [sys.executable, "-m", "bench.spark_cluster", "--master"]
        drivers = {
            name: subprocess.Popen(  # noqa: S603  this program
                [*words, master],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name, master in (("local[2]", "local[2]"), ("cluster", address))
        }
        rates: dict[str, list[float]] = {name: [] for name in drivers}
        for number in range(given.rounds + 1):
            for name, driver in drivers.items():
                assert driver.stdin and driver.stdout  # noqa: S101, PT018  they are pipes
                driver.stdin.write("\n")
                driver.stdin.flush()
                rate = float(driver.stdout.readline())
                sys.stderr.write(f"{number} {name} {rate:,.0f}\n")
                if number:  # the first one starts executors and imports libraries
                    rates[name].append(rate)
        for driver in drivers.values():
            driver.communicate()
    compare(rates)


if __name__ == "__main__":
    main()
