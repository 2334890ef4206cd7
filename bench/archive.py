"""The cost of queries on a large archive and on a small one: `python -m bench.archive`.

It fills two databases with messages finished over the same days, one with a hundredth of the rows
of the other, and explains in both the statements of `notifyq ls`, `show`, `dead`, `top`, the pages
of the dashboard, a scrape, a finish and maintenance. It prints the median time of the server and
the pages read, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import asyncpg

from notifyq import schema
from notifyq.database import statements as sql
from notifyq.operations.dashboard import statements as dashboard
from notifyq.operations.monitor import statements as monitor

from .server import Host, private

if TYPE_CHECKING:
    from collections.abc import Iterator

_DAY = """
insert into notifyq.{name} (
  id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
  queue, type, handled_by, message, headers, details
)
select $1 + i, at - interval '3 s', at - interval '3 s', at - interval '50 ms', at, 1, 0, 1,
  (case when i % 100 = 0 then 'failed' when i % 500 = 1 then 'rejected'
    when i % 1000 = 2 then 'lock_expired' else 'success' end)::messages.message_status,
  case
    when i = 7 then 'rare'
    when $3::boolean and i % 50 = 3 then 'closed'
    when i % 100 < 60 then 'orders' when i % 100 < 85 then 'mail' when i % 100 < 95 then 'images'
    else 'reports' end,
  'type ' || i % 5, 'worker ' || i % 20,
  jsonb_build_object('number', $1 + i, 'note', repeat('x', 60)), '{{}}',
  case when i % 100 = 0 then format('ValueError: order %s has no %s', i, i % 13)
    when i % 500 = 1 then 'it was rejected' when i % 1000 = 2 then 'the lock expired' end
from generate_series(1, $2::bigint) as i
cross join lateral (select $4::timestamptz + $5::interval * i / ($2 + 1) as at) as t
"""
_ATTEMPTS = """
insert into notifyq.{name} (
  message_id, lock_token, locked_at, ended_at, number, status, queue, handled_by, details
)
select a.id, 1, a.locked_at, a.archived_at, 1, a.status, a.queue, a.handled_by, a.details
from notifyq.{archive} as a where a.status <> 'success'
"""
_LIVE = """
insert into messages.message (queue, message, available_at)
select case when i % 2 = 0 then 'orders' else 'mail' end, to_jsonb(i),
  now() + case when i % 10 = 0 then interval '1 hour' else interval '0' end
from generate_series(1, 2000) as i
"""


class Case(NamedTuple):
    """A statement, and the command or page that runs it."""

    of: str
    statement: str
    values: tuple[Any, ...] = ()


async def fill(connection: asyncpg.Connection[Any], rows: int, days: int) -> None:
    """Archive rows over the days before now, and publish 2,000 live messages."""
    await schema.install(connection)
    for queue in ("orders", "mail", "images", "reports", "rare", "closed"):
        await connection.execute("select messages.create_queue($1, retention => '1 year')", queue)
    now = datetime.now(UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    each, ids = rows // days, 1_000_000
    for back in range(days - 1, -1, -1):
        day = midnight - timedelta(days=back)
        lasts = min(now - day, timedelta(days=1))
        for parent, instant in (("message_archive", "archived_at"), ("attempt", "ended_at")):
            if back:
                await connection.execute(
                    "select notifyq.make_partition($1, $2, $3)", parent, instant, day.date()
                )
        archive, attempt = (f"{it}_{day:%Y%m%d}" for it in ("message_archive", "attempt"))
        await connection.execute(
            _DAY.format(name=archive), ids, each, back > days * 2 // 3, day, lasts
        )
        await connection.execute(_ATTEMPTS.format(name=attempt, archive=archive))
        ids += each
    await connection.execute(
        "select setval('messages.message_id_seq', (select max(id) from messages.message_archive))"
    )
    await connection.execute(_LIVE)
    await connection.execute("vacuum analyze")


async def cases(connection: asyncpg.Connection[Any]) -> list[Case]:
    """Return all statements with arguments that exist in the archive."""
    now = await connection.fetchval("select clock_timestamp()")
    [done, dead, rare, old] = [
        await connection.fetchval(f"select id from messages.message_archive where {it} limit 1")
        for it in (
            "queue = 'orders' and status = 'success'",
            "queue = 'orders' and status = 'failed'",
            "queue = 'rare'",
            "queue = 'closed'",
        )
    ]
    return [*_commands(now, done, dead, rare, old), *_pages(now, dead), *_maintenance()]


def _commands(now: datetime, done: int, dead: int, rare: int, old: int) -> Iterator[Case]:
    yield Case("ls", sql.QUEUE_INFO, (None,))
    yield Case("ls QUEUE", sql.MESSAGE_LIST, ("orders", None, 50))
    for queue in (None, "orders", "rare", "closed"):
        for status in (None, "success", "failed", "lock_expired"):
            of = f"ls --finished of {queue or 'all'}, {status or 'any'}"
            yield Case(of, sql.ARCHIVE_LIST, (queue, status, 50, None))
    yield Case("ls --finished, 1 hour", sql.ARCHIVE_LIST, (None, None, 50, now - _HOUR))
    for what, number in (("done", done), ("dead", dead), ("rare", rare), ("old", old)):
        yield Case(f"show, {what}", sql.ARCHIVE_FIND, (number,))
    yield Case("show, unknown", sql.ARCHIVE_FIND, (999,))
    yield Case("show, attempts", sql.ATTEMPTS, (dead,))
    yield Case("dead ls", sql.DEAD_LIST, (None, 50, 0, None))
    yield Case("dead ls of a queue", sql.DEAD_LIST, ("orders", 50, 0, None))
    yield Case("dead ls of a rare queue", sql.DEAD_LIST, ("rare", 50, 0, None))
    yield Case("dead count", sql.DEAD_COUNT, (None, None))
    yield Case("dead retry", sql.DEAD_RETRY, ([dead],))
    yield Case("archive summary, 1 hour", sql.ARCHIVE_SUMMARY, (None, now - _HOUR))
    yield Case("result", sql.RESULT, (done,))
    yield Case("archive ls", monitor.ARCHIVE_DAYS)
    yield Case("retention", monitor.RETENTION)


_HOUR = timedelta(hours=1)


def _pages(now: datetime, dead: int) -> Iterator[Case]:
    yield Case("scrape, backlog", monitor.BACKLOG, (None, 10_000))
    yield Case("scrape, lags", monitor.LAGS, (10_000,))
    yield Case("scrape, health", monitor.HEALTH)
    yield Case("workers", monitor.WORKERS, (20,))
    for hours in (1, 12, 24, 24 * 7, 24 * 30):
        for queue in (None, "orders"):
            yield Case(
                f"charts of {hours} h, {queue or 'all'}", monitor.THROUGHPUT,
                (now - hours * _HOUR, None, None, queue, False, 100_000),
            )  # fmt: skip
    searches: tuple[dict[str, Any], ...] = (
        {}, {"state": "success"}, {"state": "dead"}, {"queue": "orders"}, {"queue": "rare"},
        {"queue": "closed"}, {"type": "type 3"}, {"type": "none"}, {"key": "none"},
        {"error": "no 7"}, {"error": "nothing"}, {"payload": "$.number == 1"},
    )  # fmt: skip
    for conditions in searches:
        yield Case(
            f"search {conditions or 'anything'}", monitor.SEARCH_ARCHIVE,
            (json.dumps(conditions), 51, None, None, timedelta(milliseconds=500)),
        )  # fmt: skip
    groups = (json.dumps({}), 1000, None, None, timedelta(milliseconds=500))
    yield Case("groups of the dead", monitor.DEAD_GROUPS, groups)
    yield Case("a message", dashboard.FINISHED, (dead,))
    yield Case("relatives", monitor.RELATIVES, (dead,))
    yield Case("audit", monitor.AUDIT_LIST, (None, None, None, None, 51, None))
    yield Case("queue list", dashboard.QUEUE_LIST, (None,))


def _maintenance() -> Iterator[Case]:
    yield Case("finish", "select messages.finish(c.id, c.lock_token) from messages.claim() as c")
    yield Case("maintenance", "select messages.maintain()")


async def cost(connection: asyncpg.Connection[Any], case: Case, runs: int) -> tuple[float, int]:
    """Return the milliseconds and the pages read of a statement, which is rolled back."""
    explain = f"explain (analyze, buffers, timing off, format json) {case.statement}"
    taken: list[tuple[float, int]] = []
    for _ in range(runs + 1):
        transaction = connection.transaction()
        await transaction.start()
        [found] = json.loads(await connection.fetchval(explain, *case.values))
        await transaction.rollback()
        pages = found["Plan"]["Shared Hit Blocks"] + found["Plan"]["Shared Read Blocks"]
        taken.append((found["Planning Time"] + found["Execution Time"], pages))
    # The first run fills the caches of the session.
    return median(it[0] for it in taken[1:]), round(median(it[1] for it in taken[1:]))


async def measure(dsn: str, rows: int, days: int, runs: int) -> dict[str, list[tuple[float, int]]]:
    """Fill two databases of the server, return the costs of each case in both, and drop them."""
    costs: dict[str, list[tuple[float, int]]] = {}
    async with Host.open(dsn) as host:
        for name, number in (("small", rows // 100), ("large", rows)):
            connection = await asyncpg.connect(await host.create_database(name))
            await fill(connection, number, days)
            for case in await cases(connection):
                costs.setdefault(case.of, []).append(await cost(connection, case, runs))
            await connection.close()
    return costs


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.archive", description=__doc__)
    parser.add_argument("--dsn", help="a server to create databases on; default: a private one")
    parser.add_argument("--rows", type=int, default=6_000_000, help="of the large archive")
    parser.add_argument("--days", type=int, default=60)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        dsn = given.dsn or stack.enter_context(private())
        costs = asyncio.run(measure(dsn, given.rows, given.days, given.runs))
    few, many = given.rows // 100, given.rows
    sys.stdout.write(f"| statement | ms, {few:,} rows | pages | ms, {many:,} rows | pages |\n")
    sys.stdout.write("|---|---|---|---|---|\n")
    for of, ((small, small_pages), (large, large_pages)) in costs.items():
        sys.stdout.write(f"| {of} | {small:.1f} | {small_pages} | {large:.1f} | {large_pages} |\n")


if __name__ == "__main__":
    main()
