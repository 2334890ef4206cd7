"""notifyq in the benchmark of PostgreSQL job queues: one process that publishes and works."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

import notifyq
import uvloop
from contract import Adapter, Settings
from notifyq.telemetry import MessageFinished, TelemetryEvent, log_events

TABLES = ["messages.message", "messages.queue", "notifyq.worker"]
# A partitioned table has no rows of its own: the harness measures its partitions.
PARTITIONS = """
select format('%s.%s', c.relnamespace::regnamespace, c.relname) as name
from pg_partition_tree('messages.message_archive') as p
join pg_class as c on c.oid = p.relid
where p.isleaf
order by 1
"""
DEPTHS = "select sum(waiting) as queue_depth, sum(locked) as running_depth from messages.backlog()"

settings = Settings()
adapter = Adapter("notifyq", settings)
app = notifyq.App(settings.dsn)
produced: dict[int, float] = {}
"""When the messages that this worker handles were produced."""


async def handle(payload: dict[str, Any], message: notifyq.Message) -> None:
    """Do the work of a job, which is to wait."""
    produced[message.id] = payload["at"]
    adapter.began(payload["at"])
    await asyncio.sleep(settings.work)


QUEUES = [f"bench_{number}" for number in range(settings.queues)]
for name in QUEUES:
    # A message of a killed worker comes back after 15 seconds, up to four times.
    app.handler(name, max_attempts=5, policy=notifyq.Policy(lock_duration=timedelta(seconds=15)))(
        handle
    )
turns = itertools.cycle(QUEUES)


def observe(event: TelemetryEvent) -> None:
    """Count a message when the server has archived it."""
    if isinstance(event, MessageFinished):
        begun = produced.pop(event.message_id, None)
        if event.status == notifyq.Status.SUCCESS:
            adapter.finished(begun)
    log_events(event)


def publish(jobs: list[dict[str, Any]]) -> Coroutine[Any, Any, object]:
    """Publish a batch to the queue whose turn it is."""
    return app.publish_many(next(turns), jobs)


async def depths() -> dict[str, float]:
    """Return how many messages wait, and how many are locked by workers."""
    [row] = await app.database.fetch(DEPTHS)
    return {name: float(value) for name, value in row.items()}


async def main() -> None:
    """Declare the queues, describe this process to the harness, and run it."""
    await app.create()
    partitions = [row["name"] for row in await app.database.fetch(PARTITIONS)]
    adapter.describe(f"notifyq {notifyq.__version__}", notifyq.__version__, TABLES + partitions)
    worker = app.worker(concurrency=settings.workers, grace=2, telemetry=observe)
    await adapter.run(publish, depths, app.work(worker), worker.stop)


if __name__ == "__main__":
    subprocess.run(
        [sys.executable, "-m", "notifyq", "init"],
        env={**os.environ, "NOTIFYQ_DSN": settings.dsn},
        stdout=sys.stderr,
        check=True,
    )
    uvloop.run(main())
