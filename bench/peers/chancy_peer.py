"""Chancy: `prepare` installs its schema and prints how to publish; `work` runs a worker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

import uvloop
from chancy import Chancy, Queue, Worker

sys.path.insert(0, str(Path(__file__).parent))
DSN = os.environ["BENCH_DSN"]
TUNED = (
    {}
    if "default" in sys.argv
    else {"concurrency": 1000, "eager_polling": True, "polling_interval": 1}
)
# As the library makes them: the time comes first, so ids are in the order of publication.
ID = (
    "(lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || "
    "substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid"
)
INSERT = (
    "with pushed as (insert into chancy_jobs (id, queue, func, kwargs, limits, meta, priority, "
    f"max_attempts, scheduled_at) select {ID}, 'bench', 'chancy_peer.handle', {{}}::json, '[]', "
    "'{{}}', 0, 1, now() from generate_series(1, {}) returning id), counted as (select count(*) "
    'from pushed) select pg_notify(\'chancy_events\', \'{{"t":"queue.pushed","q":"bench"}}\') '
    "from counted"
)


async def handle(n: int | None = None, data: str = "") -> None:
    """Do nothing; print the start time of a message with a number."""
    begun = time.time()
    if n is not None:
        print("BENCH", os.getpid(), n, begun, flush=True)


def library() -> Chancy:
    """Return the app, with a logger that does not log each message."""
    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    return Chancy(DSN, log=log)


async def prepare() -> dict[str, str]:
    """Install the schema."""
    async with library() as chancy:
        await chancy.migrate()
    return {
        "publish": INSERT.format("@payload@", "1"),
        "bulk": INSERT.format("@payload@", "@n@"),
        "waiting": "chancy_jobs where queue = 'bench' and state not in ('succeeded', 'failed')",
        "tables": "chancy_jobs",
    }


async def work() -> None:
    """Consume until the process is ended."""
    async with library() as chancy:
        queue = Queue(name="bench", executor=Chancy.Executor.Async, **TUNED)
        await chancy.declare(queue, upsert=True)
        async with Worker(chancy) as worker:
            await worker.wait_for_shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(json.dumps(asyncio.run(prepare())))
    else:
        uvloop.run(work())
