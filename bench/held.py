"""What a held snapshot costs, minute by minute: `python -m bench.held --picture held.png`.

A transaction holds a snapshot, so that vacuum removes no dead row. Meanwhile messages are
published, claimed, finished and archived, a thousand for each second that is simulated, as fast as
it goes. After some minutes of them it prints the median milliseconds of what programs call, and the
size of the table; at the end how long vacuum takes when the snapshot is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq import schema

from .charts import draw_lines
from .server import Host, private

if TYPE_CHECKING:
    from collections.abc import Mapping

_BATCH = 100
_MARKS = (0, 1, 2, 5, 10, 20, 30, 40, 50, 60)
_RUNS = 9

_PUBLISH = f"""
select count(*) from messages.publish_many('held', array_fill('"it"'::jsonb, array[{_BATCH}]))
"""
_CLAIM = f"select id, lock_token from messages.claim('{{held}}', {_BATCH}, worker => 'bench')"
_FULL_CLAIM = f"""
select id, lock_token
from messages.claim('{{held}}', {_BATCH}, worker => 'bench', full_scan => true)
"""
_FINISH = f"""
select count(*)
from messages.finish_many(
  $1::bigint[], $2::bigint[], array_fill('success'::messages.message_status, array[{_BATCH}])
)
"""
_MAINTENANCE = {
    "reap": "select messages.reap()",
    "maintain": "select messages.maintain()",
    "queue_info": "select count(*) from messages.queue_info()",
}
_MEGABYTES = "select pg_total_relation_size('messages.message') / 1e6"


class Clock:
    """The milliseconds that each kind of call took since the last `medians`."""

    def __init__(self) -> None:
        self._taken: dict[str, list[float]] = {}

    async def fetch(
        self, what: str, connection: asyncpg.Connection[Any], statement: str, *values: object
    ) -> list[asyncpg.Record]:
        """Run a statement, and note how long it took."""
        began = time.perf_counter()
        rows = await connection.fetch(statement, *values, timeout=600)
        self._taken.setdefault(what, []).append(1000 * (time.perf_counter() - began))
        return rows

    def medians(self) -> dict[str, float]:
        """Return the median of the last calls of each kind, and forget all."""
        found = {what: median(times[-200:]) for what, times in self._taken.items()}
        self._taken.clear()
        return found


async def work(
    clock: Clock, connection: asyncpg.Connection[Any], messages: int, claim: str = _CLAIM
) -> None:
    """Publish, claim and finish messages, a batch after the other."""
    what = f"claim of {_BATCH}" if claim is _CLAIM else f"claim of {_BATCH}, full scan"
    for _ in range(0, messages, _BATCH):
        await clock.fetch(f"publish {_BATCH}", connection, _PUBLISH)
        claimed = await clock.fetch(what, connection, claim)
        ids, tokens = [it["id"] for it in claimed], [it["lock_token"] for it in claimed]
        [[finished]] = await clock.fetch(f"finish {_BATCH}", connection, _FINISH, ids, tokens)
        if finished != _BATCH:
            raise SystemExit(f"{finished} of {_BATCH} messages were finished")


async def measure(dsn: str, minutes: int, per_minute: int = 60_000) -> dict[int, dict[str, float]]:
    """Hold a snapshot for some simulated minutes; return the figures at each of `_MARKS`."""
    found: dict[int, dict[str, float]] = {}
    async with Host.open(dsn) as host:
        database = await host.create_database("held")
        connection, holder = [await asyncpg.connect(database) for _ in range(2)]
        await schema.install(connection)
        await connection.execute("select messages.create_queue('held')")
        clock = Clock()
        await work(clock, connection, per_minute // 4)
        await connection.execute("vacuum analyze")
        clock.medians()
        async with holder.transaction(isolation="repeatable_read"):
            await holder.execute("select count(*) from messages.message")
            done = 0
            for mark in (it for it in _MARKS if it <= minutes):
                await work(clock, connection, (mark - done) * per_minute or 20 * _BATCH)
                for name, statement in _MAINTENANCE.items():
                    for _ in range(_RUNS):
                        await clock.fetch(name, connection, statement)
                await work(clock, connection, _RUNS * _BATCH, _FULL_CLAIM)
                size = await connection.fetchval(_MEGABYTES)
                done, found[mark] = mark, clock.medians() | {"table, MB": float(size)}
                sys.stderr.write(f"{mark} of {minutes} simulated minutes\n")
        began = time.perf_counter()
        await connection.execute("vacuum messages.message", timeout=600)
        sys.stderr.write(f"vacuum after it: {time.perf_counter() - began:.1f} s\n")
        await connection.close()
        await holder.close()
    return found


def table(found: Mapping[int, Mapping[str, float]]) -> str:
    """Return the figures as Markdown, a column for each mark."""
    lines = [
        "| minutes held | " + " | ".join(str(mark) for mark in found) + " |",
        "| --- |" + " --: |" * len(found),
    ]
    for name in next(iter(found.values())):
        cells = [
            f"{it[name]:,.1f}" if it[name] < 100 else f"{it[name]:,.0f}" for it in found.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print a table and draw it."""
    parser = argparse.ArgumentParser(prog="python -m bench.held", description=__doc__)
    parser.add_argument("--dsn", help="a server to create a database on; default: a private one")
    parser.add_argument("--minutes", type=int, default=60, help="that are simulated")
    parser.add_argument("--picture", type=Path, help="a PNG file to draw the milliseconds into")
    given = parser.parse_args()
    if given.dsn:
        found = asyncio.run(measure(given.dsn, given.minutes))
    else:
        with private() as dsn:
            found = asyncio.run(measure(dsn, given.minutes))
    sys.stdout.write(table(found))
    if given.picture:
        lines = {name: [it[name] for it in found.values()] for name in next(iter(found.values()))}
        lines.pop("table, MB")
        draw_lines(
            list(found), lines, ("simulated minutes of a held snapshot", "ms"), given.picture
        )


if __name__ == "__main__":
    main()
