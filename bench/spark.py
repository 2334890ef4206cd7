"""The pipelines on Spark beside the ways there are without them: `python -m bench.spark`.

Not part of `notifyq bench`: it wants the extra `spark`, Java 17, and a database that it may fill
with a sample. Each way runs in a process of its own, once cold and then `--rounds` times; what is
printed is rows in a second of the median, the seconds of processors that the client and the server
used (which other work on the machine changes less), and the most memory that its processes held
together. All ways read the same columns. JDBC is measured where a driver is (Debian:
libpostgresql-jdbc-java). For the lag of a stream see `python -m bench.spark_lag`.
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
from bench.footprint import memory, processors

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
# Whatever a lake has: a way that reads less is not quicker, it does less.
_QUERY = f"select {_COLUMNS} from messages.message_archive"
_PARTS = 4


def limit(dsn: str, folder: Path) -> None:
    """ADBC, Arrow, Parquet, in one thread: what no pipeline is quicker than."""
    import pyarrow.parquet as pq
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(_QUERY)
        reader = cursor.fetch_record_batch()
        with pq.ParquetWriter(folder / "limit.parquet", reader.schema, compression="zstd") as sink:
            for batch in reader:
                sink.write_batch(batch)


def export_local(dsn: str, folder: Path) -> None:
    """`notifyq spark export --engine local` into a lake of its own."""
    from notifyq.spark.export import export

    export(dsn, folder / "lake")


def export_spark(dsn: str, folder: Path) -> None:
    """`notifyq spark export --engine spark`, after the start of the session."""
    from notifyq.spark.engine import SparkEngine
    from notifyq.spark.export import export

    export(dsn, folder / "lake", engine=SparkEngine(_session()))


def jdbc_export(dsn: str, folder: Path) -> None:
    """Spark's own reader by JDBC, written as Parquet."""
    _jdbc(dsn).write.option("compression", "zstd").parquet(str(folder / "jdbc"))


def jdbc_read(dsn: str, _: Path) -> None:
    """Spark's own reader by JDBC, into nothing."""
    _jdbc(dsn).write.format("noop").mode("overwrite").save()


def source_read(dsn: str, _: Path) -> None:
    """The data source `notifyq`, into nothing."""
    source = _session().read.format("notifyq").option("dsn", dsn)
    frame = source.option("partitions", str(_PARTS)).load()
    frame.write.format("noop").mode("overwrite").save()


def publish_copy(dsn: str, folder: Path) -> float:
    """COPY by psql into the table of messages."""
    file = folder / "rows.csv"
    with file.open("w", encoding="utf-8") as sink:
        csv.writer(sink).writerows(("bench", message) for message in _payloads())
    return _published(
        dsn,
        lambda: subprocess.run(  # noqa: S603
            ["psql", "-q", "-d", dsn, "-c", f"\\copy {_TARGET} from '{file}' with (format csv)"],  # noqa: S607
            check=True,
        ),
    )


def publish_write(dsn: str, folder: Path) -> float:
    """`df.write.format("notifyq")`, the rows from a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / "rows.parquet"
    pq.write_table(pa.table({"message": pa.array(_payloads())}), file, row_group_size=50_000)
    writer = _session().read.parquet(file.as_uri()).write.format("notifyq").mode("append")
    options = {"dsn": dsn, "load": f"bench {time.time_ns()}", "queue": "bench"}
    return _published(dsn, writer.options(**options).save)


def rollup(dsn: str, folder: Path) -> float:
    """`notifyq spark rollup --engine spark` of a lake that has everything."""
    from notifyq.spark.engine import SparkEngine
    from notifyq.spark.rollup import rollup

    export_local(dsn, folder)
    return rollup(dsn, folder / "lake", engine=SparkEngine(_session())).seconds


def _payloads() -> list[str]:
    padding = "x" * 140
    return [f'{{"order": {number}, "note": "{padding}"}}' for number in range(PUBLISHED)]


def _published(dsn: str, publish: Callable[[], Any]) -> float:
    """How long it takes; the queue is empty before, and again after it."""
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
        raise SystemExit(f"published were {row}")
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
"""Each returns the seconds that count, if not all of its own do."""


def _session() -> Any:
    from notifyq.spark.session import session

    jar = {"spark.driver.extraClassPath": str(DRIVER)} if DRIVER.exists() else {}
    return session("bench", master="local[2]", conf=jar)


def _jdbc(dsn: str) -> Any:
    if not DRIVER.exists():
        raise SystemExit(f"no driver of JDBC in {DRIVER}")
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


def _rows(dsn: str) -> int:
    import psycopg

    with psycopg.connect(dsn) as connection:
        row = connection.execute("select count(*) from messages.message_archive").fetchone()
    return int(row[0]) if row else 0


def run(way: str, dsn: str, rounds: int) -> None:
    """Run one way, and print of each round how long it took, and what it cost on either side."""
    server = _postmaster(dsn)

    def used() -> tuple[float, float]:
        return processors(os.getpid()), processors(server) if server else 0.0

    if way not in {"limit", "export-local", "publish-copy"}:
        _session()
    told = []
    for _ in range(rounds + 1):
        with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
            begun, before = time.monotonic(), used()
            counted = WAYS[way](dsn, Path(folder))
            seconds = counted or time.monotonic() - begun
            told.append((seconds, *(b - a for a, b in zip(before, used(), strict=True))))
            _forget(dsn)
    sys.stdout.write(json.dumps(told) + "\n")


def _forget(dsn: str) -> None:
    """The next export begins anew."""
    import psycopg

    with psycopg.connect(dsn) as connection:
        connection.execute(
            "select notifyq.forget_rollup(l.id), messages.forget_lake(l.id) "
            "from messages.lakes() as l"
        )


def _peak(process: subprocess.Popen[str], most: list[int]) -> None:
    """Watch how much memory a process and all below it hold."""
    while process.poll() is None:
        most[0] = max(most[0], memory(process.pid))
        time.sleep(0.2)


def _postmaster(dsn: str) -> int | None:
    """Find the process of the server, where it is one of this machine and tells."""
    import psycopg

    try:
        with psycopg.connect(dsn) as connection:
            row = connection.execute("select pg_read_file('postmaster.pid')").fetchone()
    except psycopg.Error:
        return None
    pid = int(row[0].split()[0]) if row else 0
    return pid if Path(f"/proc/{pid}").exists() else None


def main() -> None:
    """Fill the database if it is empty, run each way, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"), help="else NOTIFYQ_DSN")
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
        from notifyq.spark.sample import sample

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
            told, _ = ran.communicate()
            watcher.join()
        if ran.returncode:
            sys.stdout.write(f"{way:>14}  failed\n")
            continue
        cold, *warm = json.loads(told.splitlines()[-1])
        done = PUBLISHED if way.startswith("publish-") else rows
        taken, here, there = map(median, zip(*(warm or [cold]), strict=True))
        sys.stdout.write(
            f"{way:>14}  {done / taken:>9.0f} rows/s  {taken:>6.1f} s  (cold {cold[0]:.1f} s)  "
            f"processors {here:.1f} + {there:.1f} s  {most[0] / 2**20:.0f} MB\n"
        )
        sys.stdout.flush()
        rates[way] = done / taken
    if given.chart is not None:
        draw_rates(rates, f"{rows:,} archived messages, {given.rounds} rounds", given.chart)


if __name__ == "__main__":
    main()
