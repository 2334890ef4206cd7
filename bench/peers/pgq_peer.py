"""PgQ: `prepare` makes a queue and prints how to publish; `work` reads its batches with plain SQL.

A ticker on a connection of its own replaces the daemon pgqd, which ticks once a second at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time

import asyncpg

DSN = os.environ["BENCH_DSN"]
TICK = 0.01
"""Seconds between two ticks: the reader sees an event half of that later, on average."""


async def prepare() -> dict[str, str]:
    """Create extension, queue and subscriber."""
    connection = await asyncpg.connect(DSN)
    await connection.execute(
        """
        create extension pgq;
        select pgq.create_queue('bench');
        select pgq.set_queue_config('bench', 'ticker_max_count', '10000');
        select pgq.set_queue_config('bench', 'ticker_max_lag', '10 milliseconds');
        select pgq.set_queue_config('bench', 'ticker_idle_period', '1 second');
        select pgq.register_consumer('bench', 'bench');
        """
    )
    await connection.close()
    return {
        "publish": "select pgq.insert_event('bench', 'bench', @payload@)",
        "bulk": "select count(pgq.insert_event('bench', 'bench', @payload@)) "
        "from generate_series(1, @n@)",
        # Events that the subscriber's last finished tick does not see. Event ids do not help: a
        # tick has the snapshot, which excludes open transactions.
        "waiting": "(select from pgq.event_1 as e, (select t.tick_snapshot as seen "
        "from pgq.subscription join pgq.tick as t on t.tick_queue = sub_queue "
        "and t.tick_id = sub_last_tick) as reader where e.ev_txid >= txid_snapshot_xmin(seen) "
        "and not txid_visible_in_snapshot(e.ev_txid, seen)) as behind",
        "tables": "pgq.event_1_0, pgq.event_1_1, pgq.event_1_2",
    }


async def tick() -> None:
    """Close a batch every TICK seconds."""
    connection = await asyncpg.connect(DSN)
    while True:
        await connection.fetchval("select pgq.ticker('bench')")
        await asyncio.sleep(TICK)


async def read() -> None:
    """Take batch after batch: all of its events, then one call that moves the position."""
    connection = await asyncpg.connect(DSN)
    while True:
        batch = await connection.fetchval("select pgq.next_batch('bench', 'bench')")
        if batch is None:
            await asyncio.sleep(TICK / 2)
            continue
        for event in await connection.fetch("select ev_data from pgq.get_batch_events($1)", batch):
            begun = time.time()
            if (number := json.loads(event[0]).get("n")) is not None:
                print("BENCH", os.getpid(), number, begun, flush=True)
        await connection.fetchval("select pgq.finish_batch($1)", batch)


async def work() -> None:
    """Consume until the process is ended."""
    await asyncio.gather(tick(), read())


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        print(json.dumps(asyncio.run(prepare())))
    else:
        with contextlib.suppress(ImportError):
            import uvloop

            uvloop.install()
        asyncio.run(work())
