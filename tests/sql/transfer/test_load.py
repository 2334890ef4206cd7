"""Loads: rows that are published all together, once for each name."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from notifyq.errors import (
    InvalidArgumentError,
    LoadNotFoundError,
    PayloadError,
    QueueDeniedError,
    QueueFullError,
    QueueNotFoundError,
    StagedRowsLostError,
)
from support.database import Connect, Connection, Notifications, one_row, until_blocked

COMMIT = "select * from notifyq.commit_load($1, $2, $3, $4)"
LIVE = "select queue, message #>> '{}' from messages.message order by id"


async def stage(
    connection: Connection, load: str, rows: list[tuple[str, str]], **more: object
) -> int:
    """Stage rows of (queue, JSON) under a new number."""
    attempt: int = await connection.fetchval("select notifyq.begin_attempt($1)", load)
    await connection.copy_records_to_table(
        "load_row",
        schema_name="notifyq",
        columns=["attempt", "position", "queue", "message", *more],
        records=[(attempt, i, *row, *more.values()) for i, row in enumerate(rows)],
    )
    return attempt


async def begin(connection: Connection, load: str = "l", epoch: int | None = None) -> bool:
    found: bool = await connection.fetchval(
        "select is_new from notifyq.begin_load($1, $2)", load, epoch
    )
    return found


async def commit(
    connection: Connection, *attempts: tuple[int, int], load: str = "l", epoch: int | None = None
) -> tuple[bool, int, int]:
    row = await one_row(
        connection, COMMIT, load, [a for a, _ in attempts], [n for _, n in attempts], epoch
    )
    return row["is_new"], row["published"], row["merged"]


async def test_a_load_publishes_its_attempts_once_in_order_and_no_others(
    connection: Connection, notifications: Notifications
) -> None:
    await connection.execute("select messages.create_queue('a'); select messages.create_queue('b')")
    assert await begin(connection)
    first = await stage(connection, "l", [("a", "1"), ("b", '"x"'), ("a", "2")])
    failed = await stage(connection, "l", [("a", "99")])
    second = await stage(connection, "l", [("a", "3")])
    assert await connection.fetch(LIVE) == []
    assert await commit(connection, (second, 1), (first, 3)) == (True, 4, 0)
    assert [tuple(row) for row in await connection.fetch(LIVE)] == [
        ("a", "3"), ("a", "1"), ("b", "x"), ("a", "2"),
    ]  # fmt: skip
    assert await commit(connection, (second, 1), (first, 3)) == (False, 4, 0)
    assert await commit(connection, (failed, 1)) == (False, 4, 0)
    assert not await begin(connection)
    assert await connection.fetchval("select count(*) from messages.message") == 4
    assert [notification.queue for notification in await notifications.received()] == ["a", "b"]


async def test_each_epoch_of_a_load_is_published_once(connection: Connection) -> None:
    for epoch in (0, 1, 1, 0, 5):
        is_new = await begin(connection, epoch=epoch)
        attempt = await stage(connection, "l", [("default", str(epoch))])
        committed = await commit(connection, (attempt, 1), epoch=epoch)
        assert committed == (is_new, {0: 1, 1: 2, 5: 3}[epoch] if is_new else 2, 0)
    assert [row[1] for row in await connection.fetch(LIVE)] == ["0", "1", "5"]


async def test_options_of_a_row_are_those_of_a_publication(connection: Connection) -> None:
    await begin(connection)
    attempt = await connection.fetchval("select notifyq.begin_attempt('l')")
    await connection.execute(
        "insert into notifyq.load_row (attempt, position, queue, message, priority, max_attempts, "
        "type, key, headers, dedup_key, delay) values "
        """($1, 1, 'default', '1', 7, 3, 't', 'k', '{"a": 1}', 'd', 3600),"""
        "($1, 2, 'default', '2', null, null, null, null, null, 'd', null),"
        "($1, 3, 'default', '3', null, null, null, null, null, null, 0)",
        attempt,
    )
    assert await commit(connection, (attempt, 3)) == (True, 2, 1)
    rows = await connection.fetch(
        "select message #>> '{}', priority, max_attempts, type, key, headers, dedup_key, state, "
        "available_at > now() + interval '59 minutes' from messages.message order by message"
    )
    assert [tuple(row) for row in rows] == [
        ("1", 7, 3, "t", "k", {"a": 1}, "d", "scheduled", True),
        ("3", 0, None, None, None, {}, None, "waiting", False),
    ]


async def test_streams_and_unlogged_queues_are_targets_too(connection: Connection) -> None:
    await connection.execute(
        "select messages.create_stream('s'); select messages.create_queue('v', durable => false)"
    )
    await begin(connection)
    attempt = await stage(
        connection, "l", [("s", "1"), ("v", "2"), ("s", "3"), ("default", "4")], type="t"
    )
    assert await commit(connection, (attempt, 4)) == (True, 4, 0)
    events = await connection.fetch("select message, type from messages.event order by id")
    assert [tuple(row) for row in events] == [(1, "t"), (3, "t")]
    assert await connection.fetchval("select message from notifyq.message_unlogged") == 2
    assert await connection.fetchval("select count(*) from only messages.message") == 1


async def test_events_keep_their_order_where_their_types_differ(connection: Connection) -> None:
    await connection.execute("select messages.create_stream('s')")
    await begin(connection)
    attempt = await connection.fetchval("select notifyq.begin_attempt('l')")
    await connection.execute(
        "insert into notifyq.load_row (attempt, position, queue, message, type, key) "
        "select $1, i, 's', i::text, case when i % 1000 = 0 then 'created' end, i::text "
        "from generate_series(1, 11000) as i",
        attempt,
    )
    assert await commit(connection, (attempt, 11000)) == (True, 11000, 0)
    assert await connection.fetchval(
        "select bool_and(e.message::text = e.number::text and e.key = e.number::text "
        "and (e.type is not null) = (e.number % 1000 = 0)) from (select e.*, "
        "row_number() over (order by e.id) as number from messages.event as e) as e"
    )


async def test_an_event_has_no_options_of_a_message(connection: Connection) -> None:
    await connection.execute("select messages.create_stream('s')")
    await begin(connection)
    attempt = await stage(connection, "l", [("s", "1")], priority=3)
    with pytest.raises(InvalidArgumentError, match="an event of a stream has no priority"):
        await commit(connection, (attempt, 1))


async def test_rows_that_are_missing_stop_the_commit(connection: Connection) -> None:
    await begin(connection)
    attempt = await stage(connection, "l", [("default", "1"), ("default", "2")])
    await connection.execute("delete from notifyq.load_row where position = 1")
    with pytest.raises(StagedRowsLostError, match="load 'l' has staged 2 rows, and only 0 exist"):
        await commit(connection, (attempt, 2))
    with pytest.raises(StagedRowsLostError):
        await commit(connection, (attempt, 1), (7, 1))
    assert await connection.fetch(LIVE) == []
    with pytest.raises(InvalidArgumentError, match="different numbers"):
        await commit(connection, (attempt, 1), (attempt, 1))


async def test_attempts_of_another_load_do_not_count(connection: Connection) -> None:
    await begin(connection)
    await begin(connection, "other")
    attempt = await stage(connection, "other", [("default", "1")])
    with pytest.raises(StagedRowsLostError):
        await commit(connection, (attempt, 1))


@pytest.mark.parametrize(
    ("setup", "queue", "error"),
    [
        ("select 1", "gone", QueueNotFoundError),
        ("select messages.create_queue('q', capacity => 1)", "q", QueueFullError),
        (
            """select messages.create_queue('q', payload_schema => '{"type": "string"}')""",
            "q",
            PayloadError,
        ),
    ],
)
async def test_a_row_that_a_queue_rejects_publishes_nothing(
    connection: Connection, setup: str, queue: str, error: type[Exception]
) -> None:
    await connection.execute(setup)
    await begin(connection)
    attempt = await stage(connection, "l", [("default", "1"), (queue, "1"), (queue, "2")])
    with pytest.raises(error):
        await commit(connection, (attempt, 3))
    assert await connection.fetch(LIVE) == []
    assert await begin(connection)


async def test_rejects_are_reported_and_removed_and_the_rest_is_published(
    connection: Connection,
) -> None:
    await connection.execute(
        """select messages.create_queue('q', payload_schema => '{"type": "integer"}')"""
    )
    await begin(connection)
    rows = [("q", str(i)) for i in range(250)]
    rows[3] = ("q", "{broken")
    rows[120] = ("q", '"text"')
    rows[121] = ("gone", "1")
    rows[249] = ("q", "null")
    attempt = await stage(connection, "l", rows)
    other = await stage(connection, "l", [("q", "7")])
    found = await connection.fetch(
        "select * from notifyq.load_rejects('l', array[$1::bigint, $2])", attempt, other
    )
    assert [(row["attempt"], row["position"], row["queue"]) for row in found] == [
        (attempt, 3, "q"), (attempt, 120, "q"), (attempt, 121, "gone"), (attempt, 249, "q"),
    ]  # fmt: skip
    assert "invalid input syntax for type json" in found[0]["reason"]
    assert "does not take this message" in found[1]["reason"]
    assert "queue" in found[2]["reason"]
    assert await commit(connection, (attempt, 246), (other, 1)) == (True, 247, 0)


async def test_only_its_owner_continues_a_load(connect: Connect, connection: Connection) -> None:
    await connection.execute(
        "create role f_one login in role notifyq_publisher; "
        "create role f_two login in role notifyq_publisher"
    )
    try:
        one, two = await connect(), await connect()
        await one.execute("set role f_one")
        await two.execute("set role f_two")
        await begin(one)
        attempt = await stage(one, "l", [("default", "1")])
        for call in (
            "notifyq.begin_load('l')",
            "notifyq.begin_attempt('l')",
            "notifyq.commit_load('l', '{}', '{}')",
            f"notifyq.drop_attempts('l', array[{attempt}])",
            f"notifyq.load_rejects('l', array[{attempt}])",
            "notifyq.drop_load('l')",
        ):
            with pytest.raises(LoadNotFoundError, match="belongs to role f_one"):
                await two.execute(f"select {call}")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await two.execute("select * from notifyq.load_row")
        await connection.execute(
            "select messages.create_queue('closed'); "
            "select messages.grant_queue('closed', 'f_two', true, false)"
        )
        with pytest.raises(QueueDeniedError):
            await one.execute("select notifyq.check_targets('{default, closed}')")
        other = await stage(one, "l", [("closed", "1")])
        with pytest.raises(QueueDeniedError):
            await commit(one, (attempt, 1), (other, 1))
        assert await commit(one, (attempt, 1)) == (True, 1, 0)
        await one.close()
        await two.close()
    finally:
        await connection.execute("drop owned by f_one, f_two; drop role f_one, f_two")


async def test_targets_are_checked_before_anything_is_staged(connection: Connection) -> None:
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select notifyq.check_targets('{default, s}')")
    with pytest.raises(QueueNotFoundError, match="gone"):
        await connection.execute("select notifyq.check_targets('{default, gone}')")


async def test_invalid_names_are_refused(connection: Connection) -> None:
    for name in ("", "x" * 201, None):
        with pytest.raises(InvalidArgumentError, match="1 to 200 bytes"):
            await connection.execute("select notifyq.begin_load($1)", name)
    for call in ("notifyq.begin_attempt('l')", "notifyq.commit_load('l', '{}', '{}')"):
        with pytest.raises(LoadNotFoundError, match="was not begun"):
            await connection.execute(f"select {call}")


async def test_maintenance_deletes_rows_of_no_open_load(connection: Connection) -> None:
    await begin(connection)
    await begin(connection, "done")
    await begin(connection, "dead")
    kept = await stage(connection, "l", [("default", "1")])
    done = await stage(connection, "done", [("default", "2")])
    await stage(connection, "dead", [("default", "3")] * 3)
    await commit(connection, (done, 1), load="done")
    await connection.execute(
        "update notifyq.load_attempt set begun_at = begun_at - interval '2 days' "
        "where load = 'dead'"
    )
    assert await connection.fetchval("select notifyq.sweep_loads(2)") == 2
    assert await connection.fetchval("select notifyq.sweep_loads(100)") == 2
    rows = await connection.fetch("select attempt from notifyq.load_row")
    assert [row[0] for row in rows] == [kept]
    await connection.execute("select notifyq.drop_load('l'), messages.maintain()")
    assert await connection.fetchval("select count(*) from notifyq.load_row") == 0
    assert await begin(connection)


async def test_rows_of_an_attempt_that_begins_meanwhile_are_not_removed(
    connect: Connect, connection: Connection
) -> None:
    await begin(connection)
    await stage(connection, "l", [("default", "1")])
    await connection.execute("select notifyq.drop_load('l')")
    await begin(connection)
    other = await connect()
    async with other.transaction():
        attempt = await stage(other, "l", [("default", "2")])
        await connection.execute("select notifyq.sweep_loads(100)")
    assert await commit(connection, (attempt, 1)) == (True, 1, 0)


async def test_old_loads_are_deleted(connection: Connection) -> None:
    await begin(connection)
    await connection.execute(
        "update notifyq.load set used_at = now() - interval '401 days', committed_at = now();"
        "select notifyq.forget_loads(10)"
    )
    assert await begin(connection)


async def test_two_commits_at_once_publish_once(connect: Connect, connection: Connection) -> None:
    await begin(connection)
    one, two = await connect(), await connect()
    mine = await stage(one, "l", [("default", "1")])
    theirs = await stage(two, "l", [("default", "1")])
    async with one.transaction():
        assert await commit(one, (mine, 1)) == (True, 1, 0)
        async with asyncio.TaskGroup() as group:
            second = group.create_task(commit(two, (theirs, 1)))
            await until_blocked(connection, two)
            await one.execute("commit")
            await one.execute("begin")
    assert second.result() == (False, 1, 0)
