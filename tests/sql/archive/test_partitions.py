"""The archive's days: created in advance, filled from the default partition, dropped when old."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from support.database import Connect, Connection, expire, publish, rows, until_blocked, value

DAYS = """
    select c.relname::text, pg_get_expr(c.relpartbound, c.oid)
    from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'messages.message_archive'::regclass and c.relname ~ '\\d{8}$'
    order by c.relname
"""

ARCHIVE = """
    insert into messages.message_archive (
      id, created_at, available_at, archived_at, lock_token, priority, attempts, status, queue,
      message, headers
    ) values ($1, now(), now(), $2, 1, 0, 1, 'success', 'default', '1', '{}')
"""


async def today(connection: Connection) -> datetime:
    day: datetime = await connection.fetchval(
        "select date_trunc('day', now() at time zone 'UTC') at time zone 'UTC'"
    )
    return day


def name_of(day: datetime) -> str:
    return f"message_archive_{day.astimezone(UTC):%Y%m%d}"


async def days(connection: Connection) -> list[str]:
    return [row[0] for row in await connection.fetch(DAYS)]


async def home(connection: Connection, id_: int) -> str:
    found: str = await connection.fetchval(
        "select split_part(tableoid::regclass::text, '.', 2) from messages.message_archive "
        "where id = $1",
        id_,
    )
    return found


async def drop_days(connection: Connection) -> None:
    for day in await days(connection):
        await connection.execute(f"drop table notifyq.{day}")


async def maintain(connection: Connection) -> asyncpg.Record:
    (report,) = await rows(connection, "maintain")
    return report


async def test_an_install_has_partitions_for_today_and_the_next_days(
    connection: Connection,
) -> None:
    first = await today(connection)
    assert await days(connection) == [name_of(first + timedelta(days=n)) for n in range(4)]


# With the two outermost it is another day than in UTC somewhere, whenever the test runs.
ZONES = ["America/New_York", "Asia/Tokyo", "UTC", "Pacific/Kiritimati", "Etc/GMT+12"]


async def test_days_are_those_of_utc_whatever_the_time_zone_of_the_session(
    connection: Connection, connect: Connect
) -> None:
    for zone in ZONES:
        await drop_days(connection)
        session = await connect(server_settings={"timezone": zone})
        assert (await maintain(session))["partitions_made"] == 4

        await connection.execute("set timezone = 'UTC'")
        first = await today(connection)
        for n, (name, bound) in enumerate(await connection.fetch(DAYS)):
            day = first + timedelta(days=n)
            assert name == name_of(day)
            assert bound == (
                f"FOR VALUES FROM ('{day:%Y-%m-%d} 00:00:00+00') "
                f"TO ('{day + timedelta(days=1):%Y-%m-%d} 00:00:00+00')"
            )
        await session.execute(ARCHIVE, 1, first + timedelta(days=1, microseconds=-1))
        await session.execute(ARCHIVE, 2, first + timedelta(days=1))
        assert await home(session, 1) == name_of(first)
        assert await home(session, 2) == name_of(first + timedelta(days=1))


async def test_a_day_has_the_keys_and_indexes_of_the_archive(connection: Connection) -> None:
    counts = await connection.fetch(
        "select count(*) from pg_index join pg_inherits on inhrelid = indrelid "
        "where inhparent = 'messages.message_archive'::regclass group by indrelid"
    )
    expected = await connection.fetchval(
        "select count(*) from pg_index where indrelid = 'messages.message_archive'::regclass"
    )
    assert {row[0] for row in counts} == {expected}
    assert expected >= 5


async def test_maintain_makes_missing_days_once(connection: Connection) -> None:
    all_days = await days(connection)
    await connection.execute(f"drop table notifyq.{all_days[-1]}")
    assert (await maintain(connection))["partitions_made"] == 1
    assert await days(connection) == all_days
    assert (await maintain(connection))["partitions_made"] == 0


async def test_rows_without_a_day_go_to_the_default_one_and_are_moved_into_their_day(
    connection: Connection,
) -> None:
    first = await today(connection)
    await drop_days(connection)
    (id_,) = await publish(connection, 1)
    await rows(connection, "claim")
    await value(connection, "finish", id=id_, lock_token=1)
    missed = first - timedelta(days=3)
    await connection.execute(ARCHIVE, 10**6, missed + timedelta(hours=23))
    before = await connection.fetch("select * from messages.message_archive order by id")
    assert await home(connection, id_) == await home(connection, 10**6) == "message_archive_default"

    assert (await maintain(connection))["partitions_made"] == 5
    assert await home(connection, id_) == name_of(first)
    assert await home(connection, 10**6) == name_of(missed)
    assert await connection.fetch("select * from messages.message_archive order by id") == before


async def test_moving_rows_into_their_day_notifies_no_dead_message_again(
    connection: Connection, connect: Connect
) -> None:
    await drop_days(connection)
    await publish(connection, 1)
    await rows(connection, "claim")
    await value(connection, "finish", id=1, lock_token=1, status="failed")
    listener = await connect()
    received: list[Any] = []
    await listener.add_listener("dead_message", lambda *it: received.append(it))
    await maintain(connection)
    await listener.execute("select 1")
    assert received == []
    assert await value(connection, "dead_count") == 1


async def test_days_past_the_longest_retention_are_dropped(
    connection: Connection,
) -> None:
    first = await today(connection)
    await value(connection, "create_queue", name="short", retention=timedelta(days=2))
    ages = {31: False, 30: True, 29: True, 3: True}
    for age in ages:
        # Late in the day: a day goes only when all of it is old.
        instant = first - timedelta(days=age) + timedelta(hours=23, minutes=59)
        await connection.execute(ARCHIVE, age, instant)

    report = await maintain(connection)
    assert (report["partitions_made"], report["partitions_dropped"]) == (4, 1)
    found = await connection.fetch("select id from messages.message_archive")
    assert {row["id"] for row in found} == {age for age, is_kept in ages.items() if is_kept}
    assert (await maintain(connection))["partitions_dropped"] == 0


async def test_a_longer_retention_of_any_queue_keeps_the_days(connection: Connection) -> None:
    await value(connection, "create_queue", name="long", retention=timedelta(days=100))
    await connection.execute(ARCHIVE, 1, await today(connection) - timedelta(days=90))
    await connection.execute("update messages.message_archive set queue = 'long'")
    assert (await maintain(connection))["partitions_dropped"] == 0
    await value(connection, "drop_queue", name="long")
    assert (await maintain(connection))["partitions_dropped"] == 1


async def test_a_reader_of_the_archive_neither_fails_nor_blocks_the_maintenance(
    connection: Connection, connect: Connect
) -> None:
    first = await today(connection)
    all_days = await days(connection)
    await connection.execute(f"drop table notifyq.{all_days[-1]}")
    await connection.execute(ARCHIVE, 10**6, first - timedelta(days=40))
    (id_,) = await publish(connection, 1)
    await rows(connection, "claim")
    await expire(connection, id_)
    reader = await connect()
    await connection.execute("set statement_timeout = '2s'")

    async with reader.transaction():
        await reader.fetch("select * from messages.message_archive")
        report = await maintain(connection)
        assert (report["reaped"], report["partitions_made"]) == (1, 0)
        assert report["partitions_dropped"] == 0
    report = await maintain(connection)
    assert (report["partitions_made"], report["partitions_dropped"]) == (2, 1)
    assert await days(connection) == all_days


async def test_a_busy_archive_does_not_fail_the_maintenance_that_makes_its_day(
    connection: Connection, connect: Connect
) -> None:
    await drop_days(connection)
    ids = await publish(connection, 2)
    await rows(connection, "claim", quantity=2)
    worker, observer = await connect(), await connect()
    await worker.execute("begin")
    await value(worker, "finish", id=ids[0], lock_token=1)
    await expire(connection, ids[1])

    maintenance = asyncio.ensure_future(maintain(connection))
    await until_blocked(observer, connection)
    await worker.execute("commit")
    assert (await maintenance)["reaped"] == 1

    await maintain(connection)
    assert await home(connection, ids[0]) == name_of(await today(connection))
    assert len(await rows(connection, "archive_list")) == 2
