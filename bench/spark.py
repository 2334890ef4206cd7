"""The pipelines on Spark and their alternatives: `python -m bench.spark`.

Not part of `notifyq bench`: it needs the extra `spark`, Java 17, and a database that it may fill
with a sample. Each way runs in a process of its own, once cold and then `--rounds` times. It prints
the median of rows a second, the CPU seconds of client and server (which other work on the machine
affects less), and the peak memory of its processes. All ways read the same columns. JDBC needs a
driver (Debian: libpostgresql-jdbc-java). For the lag of a stream see `python -m bench.spark_lag`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.charts import draw_rates
from bench.machine import cpu_seconds, memory, parent
from notifyq.dsn import options_of, url_of

if TYPE_CHECKING:
    from collections.abc import Callable

DRIVER = Path("/usr/share/java/postgresql.jar")
PUBLISHED = 500_000
_TARGET = "messages.message (queue, message)"
_COLUMNS = """
id, type, status::text as status, priority, attempts, max_attempts, key, dedup_key, created_at,
available_at, locked_at, archived_at, lock_token, xid::text::bigint as xid, handled_by, subscriber,
event_id, message::text as message, headers::text as headers, details, result::text as result, queue
"""
# The columns of a lake: a way that reads fewer is not comparable.
_QUERY = f"select {_COLUMNS} from messages.message_archive"
_PARTS = 4


def limit(dsn: str, folder: Path) -> None:
    """ADBC, Arrow and Parquet in one thread: the upper bound for pipelines."""
    import pyarrow.parquet as pq
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(_QUERY)
        reader = cursor.fetch_record_batch()
        file = folder / "limit.parquet"
        with pq.ParquetWriter(file, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)


def export_local(dsn: str, folder: Path) -> None:
    """`notifyq spark export --engine local` into a new lake."""
    from notifyq.spark.lake.export import export

    export(dsn, folder / "lake")


def export_spark(dsn: str, folder: Path) -> None:
    """`notifyq spark export --engine spark`, without the start of the session."""
    from notifyq.spark.engine import SparkEngine
    from notifyq.spark.lake.export import export

    export(dsn, folder / "lake", engine=SparkEngine(_session()))


def jdbc_export(dsn: str, folder: Path) -> None:
    """Spark's JDBC reader, written as Parquet."""
    _jdbc(dsn).write.option("compression", "zstd").parquet(str(folder / "jdbc"))


def jdbc_read(dsn: str, _: Path) -> None:
    """Spark's JDBC reader, without output."""
    _jdbc(dsn).write.format("noop").mode("overwrite").save()


def source_read(dsn: str, _: Path) -> None:
    """The data source `notifyq`, without output."""
    source = _session().read.format("notifyq").option("dsn", dsn)
    frame = source.option("partitions", str(_PARTS)).load()
    frame.write.format("noop").mode("overwrite").save()


def publish_copy(dsn: str, folder: Path) -> float:
    """COPY by psql into the message table."""
    file = folder / "rows.csv"
    with file.open("w", encoding="utf-8") as rows:
        csv.writer(rows).writerows(("bench", message) for message in _payloads())
    options = options_of(dsn)
    # Not in the arguments, which every user of the machine sees.
    env = {**os.environ, "PGPASSWORD": options.pop("password", "")}
    copy = f"\\copy {_TARGET} from '{file}' with (format csv)"
    return _published(
        dsn,
        lambda: subprocess.run(  # noqa: S603
            ["psql", "-q", "-d", url_of(options), "-c", copy],  # noqa: S607
            env=env,
            check=True,
        ),
    )


def publish_write(dsn: str, folder: Path) -> float:
    """`df.write.format("notifyq")` of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / "rows.parquet"
    pq.write_table(pa.table({"message": pa.array(_payloads())}), file, row_group_size=50_000)
    writer = _session().read.parquet(file.as_uri()).write.format("notifyq").mode("append")
    options = {"dsn": dsn, "load": f"bench {time.time_ns()}", "queue": "bench"}
    return _published(dsn, writer.options(**options).save)


def rollup(dsn: str, folder: Path) -> float:
    """`notifyq spark rollup --engine spark` of a complete lake."""
    from notifyq.spark.analysis.rollup import rollup
    from notifyq.spark.engine import SparkEngine

    export_local(dsn, folder)
    return rollup(dsn, folder / "lake", engine=SparkEngine(_session())).seconds


def _payloads() -> list[str]:
    padding = "x" * 140
    return [f'{{"order": {number}, "note": "{padding}"}}' for number in range(PUBLISHED)]


def _published(dsn: str, publish: Callable[[], Any]) -> float:
    """Return the seconds of a publication; the queue is empty before and after it."""
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select messages.create_queue('bench')")
        connection.execute("truncate messages.message")
        begun = time.monotonic()
        publish()
        seconds = time.monotonic() - begun
        row = connection.execute("select count(*) from messages.message").fetchone()
        connection.execute("truncate messages.message")
    if row != (PUBLISHED,):
        raise SystemExit(f"expected {PUBLISHED} messages in the queue, found {row}")
    return seconds


WAYS: dict[str, Callable[[str, Path], float | None]] = {
    "limit": limit,
    "export-local": export_local,
    "export-spark": export_spark,
    "export-jdbc": jdbc_export,
    "read-source": source_read,
    "read-jdbc": jdbc_read,
    "publish-copy": publish_copy,
    "publish-write": publish_write,
    "rollup": rollup,
}
"""Each returns the seconds to count, or None for all of its own."""


def _session() -> Any:
    from notifyq.spark.session import session

    jar = {"spark.driver.extraClassPath": str(DRIVER)} if DRIVER.exists() else {}
    return session("bench", master="local[2]", conf=jar)


def _jdbc(dsn: str) -> Any:
    if not DRIVER.exists():
        raise SystemExit(f"no JDBC driver in {DRIVER}")
    parts = urlsplit(dsn)
    options = {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port or 5432}{parts.path}",
        "user": parts.username or "postgres",
        "password": parts.password or "",
        "dbtable": f"({_QUERY}) as a",
        "fetchsize": "10000",
        "partitionColumn": "id",
        "lowerBound": "1",
        "upperBound": str(_rows(dsn)),
        "numPartitions": str(_PARTS),
    }
    return _session().read.format("jdbc").options(**options).load()


def _value(dsn: str, statement: str) -> Any:
    import psycopg

    with psycopg.connect(dsn) as connection:
        row = connection.execute(statement).fetchone()
    return row and row[0]


def _rows(dsn: str) -> int:
    return int(_value(dsn, "select count(*) from messages.message_archive"))


def run(way: str, dsn: str, rounds: int) -> None:
    """Run one way and print the seconds of each round, and the CPU seconds of both sides."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        server = parent(connection.info.backend_pid)

    def used() -> list[float]:
        return [cpu_seconds([pid]) or 0.0 if pid else 0.0 for pid in (os.getpid(), server)]

    if way not in {"limit", "export-local", "publish-copy"}:
        _session()
    measured = []
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
            begun, before = time.monotonic(), used()
            counted = WAYS[way](dsn, Path(folder))
            seconds = counted or time.monotonic() - begun
            measured.append((seconds, *(b - a for a, b in zip(before, used(), strict=True))))
            _forget(dsn)
    sys.stdout.write(json.dumps(measured) + "\n")


def _forget(dsn: str) -> None:
    """Make the next export start from the beginning."""
    _value(
        dsn,
        "select notifyq.forget_rollup(l.id), messages.forget_lake(l.id) from messages.lakes() as l",
    )


def _peak(process: subprocess.Popen[str], most: list[int]) -> None:
    """Record the peak memory of a process and its descendants."""
    while process.poll() is None:
        most[0] = max(most[0], memory(process.pid))
        time.sleep(0.2)


def main() -> None:
    """Fill the database if it is empty, run each way, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"), help="default: NOTIFYQ_DSN")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--way", action="append", choices=WAYS, help="only this; repeatable")
    parser.add_argument("--chart", type=Path, help="a PNG file to draw the rates into")
    parser.add_argument("--in-process", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.dsn:
        parser.error("no database: give --dsn or set NOTIFYQ_DSN")
    if given.in_process:
        run(given.in_process, given.dsn, given.rounds)
        return
    if not _rows(given.dsn):
        from notifyq.spark.analysis.sample import sample

        made = sample(given.dsn, messages=given.messages)
        sys.stdout.write(f"sample: {made.messages / made.seconds:.0f} rows/s\n")
    rows = _rows(given.dsn)
    rates: dict[str, float] = {}
    for way in given.way or WAYS:
        command = [sys.executable, "-m", "bench.spark", "--in-process", way]
        command += ["--rounds", str(given.rounds)]
        environment = os.environ | {"NOTIFYQ_DSN": given.dsn}
        most = [0]
        with subprocess.Popen(  # noqa: S603  this program
            command, stdout=subprocess.PIPE, text=True, env=environment
        ) as ran:
            watcher = threading.Thread(target=_peak, args=(ran, most))
            watcher.start()
            output, _ = ran.communicate()
            watcher.join()
        if ran.returncode:
            sys.stdout.write(f"{way:>14}  failed\n")
            continue
        cold, *warm = json.loads(output.splitlines()[-1])
        done = PUBLISHED if way.startswith("publish-") else rows
        taken, here, there = map(median, zip(*(warm or [cold]), strict=True))
        sys.stdout.write(
            f"{way:>14}  {done / taken:>9.0f} rows/s  {taken:>6.1f} s  (cold {cold[0]:.1f} s)  "
            f"CPU {here:.1f} + {there:.1f} s  {most[0] / 2**20:.0f} MB\n"
        )
        sys.stdout.flush()
        rates[way] = done / taken
    if given.chart is not None:
        draw_rates(rates, f"{rows:,} archived messages, {given.rounds} rounds", given.chart)


if __name__ == "__main__":
    main()
