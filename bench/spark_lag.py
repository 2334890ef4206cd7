"""The lag of a stream in a lake: `python -m bench.spark_lag`.

It publishes events at a steady rate while executors carry them. The lag of an event is the time
from its `created_at` until its batch is part of the lake.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

_STREAM = "bench lag"
_PERIOD = 0.05
_WARM = 20.0
"""Seconds that do not count: the first batches compile the code of all others."""


def publish(dsn: str, rate: int, seconds: float) -> int:
    """Publish at the rate; return how many events are missing at the end."""
    import psycopg

    statement = (
        "select count(*) from messages.publish_many(%s, array("
        "select jsonb_build_object('order', i, 'note', repeat('x', 140)) "
        "from generate_series(1, %s) as i))"
    )
    each = max(1, round(rate * _PERIOD))
    since, done = time.monotonic(), 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        while (now := time.monotonic() - since) < seconds:
            if done * _PERIOD > now:
                time.sleep(done * _PERIOD - now)
            connection.execute(statement, (_STREAM, each))
            done += 1
    return max(0, round(seconds / _PERIOD) - done) * each


def measure(dsn: str, rate: int, seconds: float, every: float) -> tuple[list[list[float]], int]:
    """Return the lags of events by thirds of the time, and how many events were not published."""
    import psycopg

    from notifyq.spark.engine import SparkEngine
    from notifyq.spark.session import session
    from notifyq.spark.streaming import stream_to_lake

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select messages.drop_stream(name) from messages.stream "
                           "where name = %s", (_STREAM,))  # fmt: skip
        connection.execute("select messages.create_stream(%s)", (_STREAM,))
    committed: list[datetime] = []
    engine = SparkEngine(session("bench", master="local[2]"))
    with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
        lake = Path(folder) / "lake"
        stop = threading.Event()

        def carry(*, once: bool) -> None:
            stream_to_lake(
                dsn, lake, _STREAM, engine=engine, every=every, once=once,
                stop=None if once else stop,
                on_batch=lambda *_: committed.append(datetime.now(UTC)),
            )  # fmt: skip

        carrier = threading.Thread(target=carry, kwargs={"once": False}, daemon=True)
        carrier.start()
        begun = datetime.now(UTC)
        behind = publish(dsn, rate, _WARM + seconds)
        stop.set()
        carrier.join()
        carry(once=True)
        thirds = _thirds(dsn, lake, committed, begun, seconds)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select messages.forget_lake(l.id) from messages.lakes() as l where l.location = %s",
            (str(lake),),
        )
        connection.execute("select messages.drop_stream(%s)", (_STREAM,))
    return thirds, behind


def _thirds(
    dsn: str, location: Path, committed: list[datetime], begun: datetime, seconds: float
) -> list[list[float]]:
    import pyarrow.parquet as pq

    from notifyq.spark.lake.lake import Lake
    from notifyq.spark.streaming import table_of

    lake = Lake(dsn, location)
    files: list[Any] = [it for it in lake.files(table_of(_STREAM)) if it.rows]
    batches = sorted({file.batch for file in files})
    at = dict(zip(batches, committed[-len(batches) :], strict=True))
    thirds: list[list[float]] = [[], [], []]
    for file in files:
        column = pq.ParquetFile(lake.storage.name(file.path)).read(["created_at"])["created_at"]
        for created in column.to_pylist():
            third = ((created - begun).total_seconds() - _WARM) / seconds * 3
            if 0 <= third < 3:
                thirds[int(third)].append((at[file.batch] - created).total_seconds())
    return thirds


def main() -> None:
    """Measure, and print a line for each third of the time."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_lag", description=__doc__)
    parser.add_argument("--dsn", default=os.environ.get("NOTIFYQ_DSN"), help="default: NOTIFYQ_DSN")
    parser.add_argument("--rate", type=int, default=2000, help="events a second")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=1, help="pause in seconds")
    given = parser.parse_args()
    if not given.dsn:
        parser.error("no database: give --dsn or set NOTIFYQ_DSN")
    thirds, behind = measure(given.dsn, given.rate, given.seconds, given.every)
    for number, lags in enumerate(thirds, 1):
        cuts = quantiles(lags, n=20)
        sys.stdout.write(
            f"third {number}: {len(lags)} events, lag p50 {cuts[9]:.2f} s, p95 {cuts[18]:.2f} s, "
            f"longest {max(lags):.2f} s\n"
        )
    sys.stdout.write(f"{behind} events were not published in time\n")


if __name__ == "__main__":
    main()
