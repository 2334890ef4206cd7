"""A stream to NATS JetStream, with this checkout and with another one in turns.

`python -m bench.relay_nats CHECKOUT DSN nats://HOST:PORT [EVENTS [RUNS]]` prints for both the
medians of events a second and of the relay's microseconds of CPU for an event, and their ratio. The
schema of the DSN must serve both.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import nats
import psycopg

HERE = Path(__file__).parents[1]
_NAME = "bench_relay"
_FILL = """
select count(messages.publish(
  %s, jsonb_build_object('order', i, 'note', repeat('x', 140)), type => 'placed', key => 'k' || i
)) from generate_series(1, %s) as i
"""


async def make_stream(url: str, *, is_new: bool) -> None:
    """Delete the stream of JetStream, and make it anew."""
    client = await nats.connect(url)
    context = client.jetstream()
    if not is_new:
        await context.delete_stream(_NAME)
    await context.add_stream(name=_NAME, subjects=[f"{_NAME}.>"])
    await client.close()


def moved(checkout: Path, dsn: str, url: str) -> tuple[float, float]:
    """Move all events by the relay of a checkout; return events a second, and CPU for each."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select messages.subscribe(%s, 'bench', 'start')", (_NAME,))
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(  # noqa: S603
            [
                *(sys.executable, "-m", "notifyq", "relay", dsn, url, "--once", "--json"),
                *("--stream", f"{_NAME}:bench:{_NAME}.placed", "--log-level", "warning"),
            ],
            cwd="/",
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
            stdout=subprocess.PIPE,
            check=True,
        )
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        connection.execute("select messages.unsubscribe(%s, 'bench')", (_NAME,))
    asyncio.run(make_stream(url, is_new=False))
    count = json.loads(done.stdout)["moved"]
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return count / took, 1e6 * cpu / count


def compare(other: Path, dsn: str, url: str, events: int, runs: int) -> None:
    """Measure both and print a line for each number."""
    asyncio.run(make_stream(url, is_new=True))
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select messages.create_stream(%s)", (_NAME,))
        connection.execute(_FILL, (_NAME, events))
        found: dict[Path, list[tuple[float, float]]] = {HERE: [], other: []}
        for _ in range(runs):
            for checkout, numbers in found.items():
                numbers.append(moved(checkout, dsn, url))
        connection.execute("select messages.drop_stream(%s, true)", (_NAME,))
    for index, name in enumerate(("events/s", "us of CPU")):
        ours, theirs = (median(it[index] for it in numbers) for numbers in found.values())
        sys.stdout.write(f"{name:12}{ours:10.0f}{theirs:10.0f}{ours / theirs:8.2f}\n")


def main() -> None:
    """Read the arguments and compare."""
    checkout, dsn, url, events, runs = [*sys.argv[1:], *("100000", "5")[len(sys.argv) - 4 :]]
    compare(Path(checkout).resolve(), dsn, url, int(events), int(runs))


if __name__ == "__main__":
    main()
