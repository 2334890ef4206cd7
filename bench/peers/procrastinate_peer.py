"""Procrastinate: `prepare` installs its schema and prints how to publish; `work` runs a worker."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import uvloop
from procrastinate import App, PsycopgConnector

DSN = os.environ["BENCH_DSN"]
CONCURRENCY = 20
ROW = "row('bench', 'bench', 0, null, null, {}, null)::procrastinate_job_to_defer_v1"

app = App(connector=PsycopgConnector(conninfo=DSN, max_size=CONCURRENCY + 2))


@app.task(name="bench", queue="bench")
async def handle(n: int | None = None) -> None:
    """Do nothing; print the start time of a message with a number."""
    begun = time.time()
    if n is not None:
        print("BENCH", os.getpid(), n, begun, flush=True)


async def prepare() -> dict[str, str]:
    """Install the schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    one = ROW.format("@payload@::jsonb")
    many = f"array(select {ROW.format(chr(39) + '{}' + chr(39) + '::jsonb')} "
    return {
        "publish": f"select procrastinate_defer_jobs_v1(array[{one}])",
        "bulk": f"select cardinality(procrastinate_defer_jobs_v1({many}"
        "from generate_series(1, @n@))))",
        "waiting": "procrastinate_jobs where status in ('todo', 'doing')",
        "tables": "procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers",
    }


async def work() -> None:
    """Consume until the process is ended."""
    async with app.open_async():
        await app.run_worker_async(
            queues=["bench"], concurrency=CONCURRENCY, delete_jobs="successful"
        )


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(json.dumps(asyncio.run(prepare())))
    else:
        uvloop.run(work())
