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
DEFAULT = "default" in sys.argv
ROW = (
    "row('bench', 'bench', 0, null, null, (@payload@)::jsonb, null)::procrastinate_job_to_defer_v1"
)

app = App(
    connector=PsycopgConnector(conninfo=DSN, **({} if DEFAULT else {"max_size": CONCURRENCY + 2}))
)


@app.task(name="bench", queue="bench")
async def handle(n: int | None = None, data: str = "") -> None:
    """Do nothing; print the start time of a message with a number."""
    begun = time.time()
    if n is not None:
        print("BENCH", os.getpid(), n, begun, flush=True)


async def prepare() -> dict[str, str]:
    """Install the schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
    return {
        "publish": f"select procrastinate_defer_jobs_v1(array[{ROW}])",
        "bulk": f"select cardinality(procrastinate_defer_jobs_v1("
        f"array(select {ROW} from generate_series(1, @n@))))",
        "waiting": "procrastinate_jobs where status in ('todo', 'doing')",
        "tables": "procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers",
    }


async def work() -> None:
    """Consume until the process is ended."""
    async with app.open_async():
        tuned = {} if DEFAULT else {"concurrency": CONCURRENCY, "delete_jobs": "successful"}
        await app.run_worker_async(queues=["bench"], **tuned)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(json.dumps(asyncio.run(prepare())))
    else:
        uvloop.run(work())
