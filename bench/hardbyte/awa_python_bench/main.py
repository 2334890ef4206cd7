"""Awa's Python SDK in the benchmark: its Rust engine, with handlers in Python.

The checkout has an adapter in Rust, whose crates would have to be built, and none of the SDK.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import asyncpg
import uvloop
from awa import AsyncClient
from contract import Adapter, Settings

QUEUE = "long_horizon_bench"
# A partitioned table has no rows of its own.
TABLES = """
select format('%s.%s', n.nspname, c.relname)
from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where c.relkind = 'r' and n.nspname = 'awa' order by 1
"""


@dataclass
class Job:
    """The payload."""

    n: int
    at: float
    padding: str


async def main() -> None:
    settings = Settings()
    adapter = Adapter("awa-python", settings)
    # The pool of their adapter in Rust: four connections for each worker, and more.
    client = AsyncClient(settings.dsn, max_connections=min(120, settings.workers * 4 + 48))
    await client.migrate()

    @client.task(Job, queue=QUEUE)
    async def handle(job: Any) -> None:
        adapter.began(job.args.at)
        await asyncio.sleep(settings.work)
        # There is no event for a completion: it is written after this.
        adapter.finished(job.args.at)

    async def publish(jobs: list[dict[str, Any]]) -> None:
        await client.enqueue_many_copy([Job(**job) for job in jobs], queue=QUEUE)

    async def depths() -> dict[str, float]:
        mine = [it for it in await client.queue_stats() if it.queue == QUEUE]
        return {
            "queue_depth": float(sum(it.available for it in mine)),
            "running_depth": float(sum(it.running for it in mine)),
        }

    connection = await asyncpg.connect(settings.dsn)
    tables = [row[0] for row in await connection.fetch(TABLES)]
    await connection.close()
    adapter.describe(f"awa-pg {version('awa-pg')}", "current", tables)
    ending = asyncio.Event()

    async def work() -> None:
        await client.start([(QUEUE, settings.workers)])
        await ending.wait()
        await client.shutdown(timeout_ms=2000)

    await adapter.run(publish, depths, work(), ending.set)


if __name__ == "__main__":
    uvloop.run(main())
