"""PgQueuer: `prepare` installs its schema and prints how to publish; `work` runs its consumer."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.persistence.queries import Queries
from pgqueuer.db import AsyncpgDriver

DSN = os.environ["BENCH_DSN"]
BATCH = 500
DEFAULT = "default" in sys.argv


async def prepare() -> dict[str, str]:
    """Install the schema; the library builds the statement that publishes."""
    connection = await asyncpg.connect(DSN)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    await connection.close()
    return {
        "publish": filled(queries, "array[convert_to(@payload@, 'UTF8')]", "1"),
        "bulk": filled(queries, "array_fill(convert_to(@payload@, 'UTF8'), array[@n@])", "@n@"),
        "waiting": "pgqueuer",
        "tables": "pgqueuer, pgqueuer_log, pgqueuer_statistics",
    }


def filled(queries: Queries, payloads: str, number: str) -> str:
    """Return the library's statement with SQL for its six array parameters."""
    arrays = {
        "$1": f"array_fill(0, array[{number}])",
        "$2": f"array_fill('bench'::text, array[{number}])",
        "$3": payloads,
        "$4": f"array_fill(interval '0', array[{number}])",
        "$5": f"array_fill(null::text, array[{number}])",
        "$6": f"array_fill(null::jsonb, array[{number}])",
    }
    statement = queries.qbq.build_enqueue_query()
    for parameter, array in arrays.items():
        statement = statement.replace(parameter, array)
    return " ".join(line for line in statement.splitlines() if not line.strip().startswith("--"))


async def work() -> None:
    """Consume until the process is ended."""
    pool = await asyncpg.create_pool(DSN, min_size=2, max_size=10)
    queuer = PgQueuer.from_asyncpg_pool(pool)

    @queuer.entrypoint("bench")
    async def handle(job: Any) -> None:
        begun = time.time()
        if (number := json.loads(job.payload).get("n")) is not None:
            print("BENCH", os.getpid(), number, begun, flush=True)

    await queuer.run(**({} if DEFAULT else {"batch_size": BATCH}))


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(json.dumps(asyncio.run(prepare())))
    else:
        uvloop.run(work())
