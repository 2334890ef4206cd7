"""`notifyq retention`: what it shows, and what it changes."""

from __future__ import annotations

import asyncio

from cli.programs import Notifyq
from support.database import session

OLD = """
    insert into messages.message_archive (
      id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
      message, headers
    ) select n, t, t, t, 1, 0, 1, 'success', case n when 1 then 'gone' else 'brief' end, '1', '{}'
    from generate_series(1, 3) as g (n), (select now() - interval '9 days') as w (t);
    select notifyq.make_partitions();
"""


async def fill(dsn: str | None) -> None:
    assert dsn
    async with session(dsn) as connection:
        await connection.execute(OLD)


def test_retention_is_shown_and_changed(notifyq: Notifyq) -> None:
    run = notifyq.good
    run("queues", "create", "brief", "--retention", "2d")
    run("queues", "alter", "brief", "--retention-dead", "60d")
    [brief] = [row for row in run("queues", "--json").data if row["queue"] == "brief"]
    assert (brief["retention"], brief["retention_dead"]) == (2 * 86400, 60 * 86400)
    asyncio.run(fill(notifyq.dsn))

    shown = run("retention").out
    assert "brief" in shown
    assert "rewrite" in shown
    assert "no queue of that name" in shown
    [line] = run("retention", "--dry-run").out.splitlines()
    assert "3 rows" in line
    assert line.endswith("is rewritten without what is past its retention")
    data = run("retention", "--json").data
    assert {row["queue"]: row["rows"] for row in data if "queue" in row} == {
        "brief": 2,
        "default": 0,
        "gone": 1,
    }
    assert len([row for row in data if "day" in row]) >= 5

    printed = run("retention", "set", "--retention", "14d", "--days-ahead", "5").out
    assert printed == "retention: 14 d\nretention_dead: none\ndays_ahead: 5\n"
    [policy] = run("retention", "set", "--retention", "none", "--json").data
    assert policy["retention"] is None
    run("queues", "alter", "brief", "--retention-dead", "none")
    [brief] = [row for row in run("queues", "--json").data if row["queue"] == "brief"]
    assert brief["retention_dead"] is None
    assert "is not a duration" in notifyq.refused("retention", "set", "--retention", "1x", code=2)
