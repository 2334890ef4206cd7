"""Retention by queue and by status: what is removed, what stays, and that no finish waits."""

import asyncio
from datetime import datetime, timedelta

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError
from sql.archive.test_partitions import days, home, maintain, name_of, today
from support.database import Connect, Connection, publish, rows, value

ARCHIVE = """
    insert into messages.message_archive (
      id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
      message, headers
    ) values ($1, $2, $2, $2, 1, 0, 1, $3, $4, '1', '{}')
"""
ATTEMPT = """
    insert into messages.attempt (
      message_id, lock_token, locked_at, ended_at, number, status, queue
    ) values ($1, 1, $2, $2, 1, 'failed', $3)
"""
INDEXES = """
    select regexp_replace(pg_get_indexdef(i.indexrelid), '^.* USING ', '') as definition,
      i.indisvalid, exists (select from pg_inherits as h where h.inhrelid = i.indexrelid)
    from pg_index as i where i.indrelid = format('notifyq.%I', $1::text)::regclass order by 1
"""


async def archive(
    connection: Connection,
    id_: int,
    when: datetime,
    queue: str = "default",
    status: str = "success",
) -> None:
    await connection.execute(ARCHIVE, id_, when, status, queue)


async def kept(connection: Connection) -> list[int]:
    found = await connection.fetch("select id from messages.message_archive order by id")
    return [row["id"] for row in found]


async def settle(connection: Connection) -> None:
    """Do maintenance until nothing is left to remove, a step each time."""
    for _ in range(6):
        await maintain(connection)


async def queue(connection: Connection, name: str, **policy: timedelta) -> None:
    await value(connection, "create_queue", name=name, **policy)


@pytest.fixture
async def old(connection: Connection) -> datetime:
    """Give an instant late on a day ten days ago, whose partition is there."""
    await queue(connection, "short", retention=timedelta(days=3))
    await queue(connection, "safe", retention=timedelta(days=3), retention_dead=timedelta(days=60))
    instant = await today(connection) - timedelta(days=9, minutes=1)
    await archive(connection, 999, instant)
    await connection.execute(ATTEMPT, 999, instant, "default")
    await value(connection, "notifyq.make_partitions")
    await connection.execute("delete from messages.message_archive where id = 999")
    return instant


async def test_each_queue_keeps_its_messages_for_its_own_retention(
    connection: Connection, old: datetime
) -> None:
    await archive(connection, 1, old)
    await archive(connection, 2, old, "short")
    await archive(connection, 3, old + timedelta(days=7, hours=-1), "short")
    await archive(connection, 4, old, "dropped long ago")
    await connection.execute(ATTEMPT, 2, old, "short")
    before = await connection.fetch("select * from messages.message_archive where id = 1")
    table = await home(connection, 1)
    indexes = await connection.fetch(INDEXES, table)

    await settle(connection)
    assert await kept(connection) == [1, 3, 4]
    # The table was made anew, and is as the one before.
    assert await home(connection, 1) == table
    assert await connection.fetch(INDEXES, table) == indexes
    assert await connection.fetch("select * from messages.message_archive where id = 1") == before
    attempts = await connection.fetch("select message_id from messages.attempt")
    assert [row[0] for row in attempts] == [999]


async def test_a_message_stays_until_all_of_its_day_is_past_the_retention(
    connection: Connection,
) -> None:
    await queue(connection, "short", retention=timedelta(days=3))
    first = await today(connection)
    # Of the day three days ago the first second is older than three days, but not the last.
    await archive(connection, 1, first - timedelta(days=3), "short")
    await archive(connection, 2, first - timedelta(days=4), "short")
    await archive(connection, 3, first - timedelta(days=5), "short")
    await settle(connection)
    assert await kept(connection) == [1]
    # Nothing is left of the others, though the day is not past the retention of all queues.
    assert name_of(first - timedelta(days=4)) not in await days(connection)


@pytest.mark.parametrize("shorter", [*range(4), None])
async def test_days_are_retained_from_the_shortest_retention_to_the_longest(
    connection: Connection, shorter: int | None
) -> None:
    """One of the four retentions is 3 days, and the others are 5."""
    await value(connection, "alter_queue", name="default", retention=timedelta(days=5))
    keep = [timedelta(days=3 if index == shorter else 5) for index in range(4)]
    await value(connection, "alter_archive", retention=keep[0], retention_dead=keep[1])
    await queue(connection, "other", retention=keep[2], retention_dead=keep[3])
    first = await today(connection)
    for ago in range(2, 8):
        await archive(connection, ago, first - timedelta(days=ago))
    await value(connection, "notifyq.make_partitions")
    # Days are those of UTC, whatever the time zone of the session.
    await connection.execute("set timezone = 'America/New_York'")
    found = await connection.fetch("select notifyq.days_to_retain($1)", first)
    expected = [] if shorter is None else [5, 4, 3]
    assert [row[0] for row in found] == [name_of(first - timedelta(days=it)) for it in expected]


async def test_dead_messages_may_have_a_retention_of_their_own(
    connection: Connection, old: datetime
) -> None:
    await queue(connection, "hasty", retention_dead=timedelta(days=2))
    for id_, (name, status) in enumerate(
        [
            ("safe", "success"),
            ("safe", "failed"),
            ("safe", "lock_expired"),
            ("hasty", "success"),
            ("hasty", "rejected"),
        ],
        1,
    ):
        await archive(connection, id_, old, name, status)
    await maintain(connection)
    assert await kept(connection) == [2, 3, 4]
    await value(connection, "alter_queue", name="hasty", retention_dead=timedelta(0))
    assert (await rows(connection, "queue_info", queue="hasty"))[0]["retention_dead"] is None
    with pytest.raises(InvalidArgumentError):
        await value(connection, "alter_queue", name="hasty", retention_dead=timedelta(-1))


async def test_steps_go_with_the_last_rows_of_their_day(
    connection: Connection, old: datetime
) -> None:
    await archive(connection, 1, old, "short")
    await connection.execute(
        "insert into notifyq.step_archive (message_id, number, name, kind, queue, attempt, "
        "created_at, archived_at) values (1, 1, 'a', 'step', 'short', 1, $1, $1)",
        old,
    )
    await settle(connection)
    assert await kept(connection) == []
    assert await connection.fetchval("select count(*) from notifyq.step_archive") == 0


async def test_a_day_with_many_kept_rows_is_swept_in_steps(
    connection: Connection, old: datetime
) -> None:
    await connection.execute(
        """
        insert into messages.message_archive (
          id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
          message, headers)
        select n, $1, $1, $1, 1, 0, 1, (case when n % 5 = 0 then 'failed' else 'success' end)
          ::messages.message_status, case when n % 2 = 0 then 'default' else 'safe' end, '1', '{}'
        from generate_series(1, 1000) as g (n)
        """,
        old,
    )
    await connection.execute("insert into notifyq.redrive values (5, 10001), (10, 10002)")
    steps = []
    while removed := await value(connection, "notifyq.retain", quantity=50, few=10):
        steps.append(removed)
        await connection.execute("update notifyq.retention_day set next_at = now()")
    assert len(steps) > 2
    assert sum(steps) == 400
    assert max(steps) <= 5 * 200  # blocks of at most so many rows
    expected = [n for n in range(1, 1001) if n % 2 == 0 or n % 5 == 0]
    assert await kept(connection) == expected
    [removed] = await connection.fetch(
        "select removed from notifyq.retention_day where relation ~ '^message' and removed > 0"
    )
    assert removed[0] == 400


async def test_redrives_are_forgotten_with_their_messages_only(
    connection: Connection, old: datetime
) -> None:
    await archive(connection, 1, old, status="failed")
    await archive(connection, 2, old, "short", "failed")
    await connection.execute("insert into notifyq.redrive values (1, 10001), (2, 10002)")
    await maintain(connection)
    assert await kept(connection) == [1]
    assert await connection.fetchval("select array_agg(archive_id) from notifyq.redrive") == [1]
    await value(connection, "alter_queue", name="default", retention=timedelta(days=1))
    await settle(connection)
    assert await kept(connection) == []
    assert await connection.fetchval("select count(*) from notifyq.redrive") == 0


async def test_a_retention_of_less_than_a_day_is_exact_to_the_minute(
    connection: Connection,
) -> None:
    await queue(connection, "flash", retention=timedelta(hours=1))
    await queue(
        connection, "both", retention=timedelta(minutes=10), retention_dead=timedelta(hours=2)
    )
    now: datetime = await connection.fetchval("select clock_timestamp()")
    rows_ = [
        (1, "flash", "success", 61),
        (2, "flash", "failed", 61),
        (3, "flash", "success", 59),
        (4, "both", "success", 11),
        (5, "both", "failed", 11),
        (6, "both", "success", 9),
        (7, "both", "failed", 121),
        (8, "default", "success", 121),
    ]
    for id_, name, status, minutes in rows_:
        await archive(connection, id_, now - timedelta(minutes=minutes), name, status)
    # Shortly after midnight these are rows of two days.
    for _ in range(4):
        await maintain(connection)
    assert await kept(connection) == [3, 5, 6, 8]
    next_at = await connection.fetchval(
        "select next_at from notifyq.retention_day where relation = $1", name_of(now)
    )
    assert next_at - now < timedelta(minutes=1, seconds=20)


async def test_days_are_scanned_when_rows_may_be_due_and_after_a_change(
    connection: Connection, old: datetime
) -> None:
    await archive(connection, 1, old)
    await archive(connection, 2, old, "short")
    await settle(connection)
    assert await kept(connection) == [1]
    # A late commit: found by the scan of the next day.
    await archive(connection, 3, old, "short")
    await maintain(connection)
    assert await kept(connection) == [1, 3]
    await connection.execute("update notifyq.retention_day set next_at = now()")
    await settle(connection)
    assert await kept(connection) == [1]
    # A change of any policy, and also one by hand.
    await connection.execute("update messages.queue set retention = '5 days'")
    await settle(connection)
    assert await kept(connection) == []
    gone = await connection.fetchval(
        "select count(*) from notifyq.retention_day as r "
        "where to_regclass('notifyq.' || r.relation) is null"
    )
    assert gone == 0


async def test_the_archive_has_the_default_retention(connection: Connection, old: datetime) -> None:
    await archive(connection, 1, old, "gone")
    await archive(connection, 2, old, "gone", "failed")
    await maintain(connection)
    assert await kept(connection) == [1, 2]
    policy = await connection.fetchrow(
        "select * from messages.alter_archive(retention => '2 days', retention_dead => '90 days', "
        "days_ahead => 6)"
    )
    assert policy is not None
    assert (policy["retention"], policy["days_ahead"]) == (timedelta(days=2), 6)
    report = await maintain(connection)
    assert report["partitions_made"] == 4 * 3
    assert await kept(connection) == [2]
    await queue(connection, "new")
    assert (await rows(connection, "queue_info", queue="new"))[0]["retention"] == timedelta(days=2)
    policy = await connection.fetchrow("select * from messages.alter_archive(retention => '0')")
    assert policy is not None
    assert (policy["retention"], policy["retention_dead"]) == (None, timedelta(days=90))
    for wrong in ("retention => '-1 day'", "days_ahead => 0"):
        with pytest.raises(InvalidArgumentError):
            await connection.execute(f"select messages.alter_archive({wrong})")


async def test_retention_waits_for_each_lake(connection: Connection, old: datetime) -> None:
    await archive(connection, 1, old)
    await archive(connection, 2, old, "short")
    now: datetime = await connection.fetchval("select clock_timestamp()")
    await queue(connection, "flash", retention=timedelta(minutes=1))
    await archive(connection, 3, now - timedelta(minutes=5), "flash")
    await connection.execute("select notifyq.create_lake('/lake')")
    for _ in range(3):
        await maintain(connection)
    assert await kept(connection) == [1, 2, 3]
    due = [row["awaits"] for row in await rows(connection, "archive_info") if row["awaits"]]
    assert set(due) <= {"/lake"}

    await connection.execute("update notifyq.lake set position = messages.current_position()")
    await archive(connection, 4, now - timedelta(minutes=5), "flash")
    for _ in range(3):
        await connection.execute("update notifyq.retention_day set next_at = now()")
        await maintain(connection)
    # What came after the last export stays.
    assert await kept(connection) == [1, 4]


async def test_a_day_is_not_dropped_before_each_lake_has_it(connection: Connection) -> None:
    await archive(connection, 1, await today(connection) - timedelta(days=40))
    await connection.execute("select notifyq.create_lake('/lake')")
    for _ in range(2):
        assert (await maintain(connection))["partitions_dropped"] == 0
    assert await kept(connection) == [1]
    await connection.execute("update notifyq.lake set position = messages.current_position()")
    assert (await maintain(connection))["partitions_dropped"] == 1
    assert await kept(connection) == []


async def test_a_reader_that_keeps_a_day_from_being_dropped_blocks_no_finish(
    connection: Connection, connect: Connect, old: datetime
) -> None:
    await archive(connection, 1, old)
    await archive(connection, 2, old, "short")
    # Whole days to be dropped, too.
    await archive(connection, 3, old - timedelta(days=80))
    await value(connection, "notifyq.make_partitions")
    ids = await publish(connection, 60)
    reader, worker, looker = await connect(), await connect(), await connect()
    for session in (worker, looker):
        await session.execute("set lock_timeout = '15ms'")
    done = False

    async def work() -> None:
        # Slowly enough for maintenance to try again and again.
        for id_ in ids:
            await rows(worker, "claim", quantity=1)
            assert await value(worker, "finish", id=id_, lock_token=1)

    async def read() -> None:
        while not done:
            await rows(looker, "archive_list", quantity=1)

    async with reader.transaction():
        await reader.fetch("select * from messages.message_archive")
        reading = asyncio.ensure_future(read())
        working = asyncio.ensure_future(work())
        reports: list[asyncpg.Record] = []
        while not working.done() or len(reports) < 3:
            await connection.execute("update notifyq.retention_day set next_at = now()")
            reports.append(await maintain(connection))
        done = True
        await asyncio.gather(working, reading)
        assert {report["partitions_dropped"] for report in reports} == {0}
    assert 2 in await kept(connection)
    await connection.execute("update notifyq.retention_day set next_at = now()")
    assert (await maintain(connection))["partitions_dropped"] == 1
    assert await kept(connection) == [1, *ids] or await kept(connection) == [*ids, 1]


async def test_a_day_with_an_open_writer_is_left_to_the_next_run(
    connection: Connection, connect: Connect, old: datetime
) -> None:
    await archive(connection, 1, old)
    await archive(connection, 2, old, "short")
    late = await connect()
    await late.execute("begin")
    await archive(late, 3, old, "never seen")
    await maintain(connection)
    assert await kept(connection) == [1, 2]
    await late.execute("commit")
    await connection.execute("update notifyq.retention_day set next_at = now()")
    await maintain(connection)
    assert await kept(connection) == [1, 3]


async def test_the_reports_show_what_is_kept_and_what_is_removed_next(
    connection: Connection, old: datetime
) -> None:
    for id_ in range(1, 5):
        await archive(connection, id_, old, status="failed" if id_ == 1 else "success")
    await archive(connection, 5, old, "short")
    await archive(connection, 6, old, "gone")
    by_queue = {row["queue"]: row for row in await rows(connection, "retention_info")}
    assert set(by_queue) == {"default", "short", "safe", "gone"}
    assert (by_queue["default"]["rows"], by_queue["default"]["dead"]) == (4, 1)
    assert by_queue["safe"]["retention_dead"] == timedelta(days=60)
    assert (by_queue["gone"]["is_known"], by_queue["gone"]["retention"]) == (
        False,
        timedelta(days=60),
    )
    assert by_queue["short"]["first_day"] == old.date()
    assert sum(row["bytes"] for row in by_queue.values()) > 0

    def of(found: list[asyncpg.Record]) -> asyncpg.Record:
        [one] = [row for row in found if row["day"] == old.date()]
        return one

    day = of(await rows(connection, "archive_info"))
    assert (day["rows"], day["dead"], day["is_exact"]) == (6, 1, True)
    assert day["attempt_bytes"] > 0
    assert day["next_step"] == "rewrite"
    assert day["goes_at"].date() == (old + timedelta(days=61)).date()
    await maintain(connection)
    day = of(await rows(connection, "archive_info"))
    assert (day["rows"], day["removed"], day["next_step"]) == (5, 1, None)
    await connection.execute("update messages.queue set retention = '1 day', retention_dead = null")
    day = of(await rows(connection, "archive_info"))
    assert day["next_step"] == "drop"
