"""Queues: created, changed, paused and dropped, each with its policy."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifyq.errors import (
    InvalidArgumentError,
    QueueNotEmptyError,
    QueueNotFoundError,
    StreamNotFoundError,
)
from support.database import (
    Connect,
    Connection,
    Notifications,
    archived,
    one_row,
    publish,
    rows,
    until_blocked,
    value,
)


async def policy(connection: Connection, name: str) -> dict[str, Any]:
    row = await one_row(connection, "select * from messages.queue where name = $1", name)
    return dict(row)


async def test_a_new_queue_has_the_given_options(connection: Connection) -> None:
    wanted = {
        "lock_duration": timedelta(seconds=5),
        "max_attempts": 7,
        "backoff": timedelta(seconds=1),
        "backoff_max": timedelta(seconds=9),
        "notify": "off",
        "retention": timedelta(days=2),
    }
    assert await value(connection, "create_queue", name="q", **wanted) is True
    found = await policy(connection, "q")
    assert {key: found[key] for key in wanted} == wanted
    assert found["paused"] is False


async def test_a_new_queue_has_defaults_also_where_null_is_given(connection: Connection) -> None:
    await value(connection, "create_queue", name="plain")
    await value(
        connection,
        "create_queue",
        name="nulls",
        lock_duration=None,
        max_attempts=None,
        backoff=None,
        backoff_max=None,
        notify=None,
        retention=None,
    )
    plain, nulls, default = [await policy(connection, it) for it in ("plain", "nulls", "default")]
    for found in (plain, nulls, default):
        del found["name"], found["created_at"]
    assert plain == nulls == default
    assert plain["max_attempts"] == 1
    assert plain["lock_duration"] == timedelta(minutes=1)


async def test_a_long_backoff_raises_its_bound(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", backoff=timedelta(hours=1))
    assert (await policy(connection, "q"))["backoff_max"] == timedelta(hours=1)


async def test_creating_a_queue_again_changes_nothing_and_returns_false(
    connection: Connection,
) -> None:
    assert await value(connection, "create_queue", name="q", max_attempts=3) is True
    before = await policy(connection, "q")
    assert await value(connection, "create_queue", name="q", max_attempts=9) is False
    assert await policy(connection, "q") == before


async def test_a_name_may_have_any_characters_up_to_200_bytes(
    connection: Connection, notifications: Notifications
) -> None:
    for name in ("a", "é" * 100, "x" * 200, "two words", "Ä/ö.#'\"%"):
        assert await value(connection, "create_queue", name=name) is True
        (id_,) = await publish(connection, 1, name)
        assert await notifications.payloads() == [f"{name}:{id_}"]
        assert len(await rows(connection, "claim", queues=[name])) == 1
        with pytest.raises(QueueNotEmptyError):
            await value(connection, "drop_queue", name=name)


async def test_a_name_that_a_notification_cannot_carry_is_refused(connection: Connection) -> None:
    too_long = ["x" * 201, "é" * 101]
    for name in ("", " ", " a", "a ", "a:b", ":", "a\nb", "\t", "\x7f", *too_long, None):
        with pytest.raises(InvalidArgumentError, match="name"):
            await value(connection, "create_queue", name=name)
    assert await connection.fetchval("select count(*) from messages.queue") == 1


BAD_POLICIES: list[dict[str, Any]] = [
    {"lock_duration": timedelta(0)},
    {"max_attempts": 0},
    {"max_attempts": 1001},
    {"backoff": timedelta(seconds=-1)},
    {"backoff": timedelta(seconds=10), "backoff_max": timedelta(seconds=9)},
    {"notify": "sometimes"},
    {"retention": timedelta(0)},
    {"aging": timedelta(seconds=-1)},
    {"aging": timedelta(days=366_001)},
    *(
        {"aging": timedelta(minutes=1), limit: value}
        for limit, value in {
            "concurrency": 1,
            "key_concurrency": 1,
            "rate": 1,
            "key_rate": 1,
            "ordered": True,
            "fair": True,
        }.items()
    ),
]


async def test_an_invalid_option_is_refused(connection: Connection) -> None:
    for bad in BAD_POLICIES:
        before = await policy(connection, "default")
        with pytest.raises(InvalidArgumentError):
            await value(connection, "create_queue", name="q", **bad)
        with pytest.raises(InvalidArgumentError):
            await value(connection, "alter_queue", name="default", **bad)
        assert await connection.fetchval("select count(*) from messages.queue") == 1
        assert await policy(connection, "default") == before


async def test_alter_queue_changes_what_is_given_and_nothing_else(connection: Connection) -> None:
    await value(connection, "create_queue", name="q", max_attempts=3, notify="always")
    for change in (
        {"lock_duration": timedelta(seconds=5)},
        {"max_attempts": 1000},
        {"backoff": timedelta(0)},
        {"backoff_max": timedelta(days=1)},
        {"notify": "off"},
        {"retention": timedelta(days=1)},
    ):
        before, other = await policy(connection, "q"), await policy(connection, "default")
        (returned,) = await rows(connection, "alter_queue", name="q", **change)
        assert await policy(connection, "q") == {**before, **change} == dict(returned)
        assert await policy(connection, "default") == other


async def test_an_unknown_queue_is_refused(connection: Connection) -> None:
    for function in ("alter_queue", "drop_queue", "pause_queue", "resume_queue"):
        with pytest.raises(QueueNotFoundError, match="'nope'"):
            await value(connection, function, name="nope")


async def test_live_messages_follow_the_new_policy(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    await rows(connection, "claim")
    await value(connection, "alter_queue", name="default", max_attempts=2)
    assert await value(connection, "retry", id=id_, lock_token=1) is True
    assert len(await rows(connection, "message_find", id=id_)) == 1


async def test_pausing_and_resuming_return_whether_they_changed_anything(
    connection: Connection,
) -> None:
    assert await value(connection, "resume_queue", name="default") is False
    assert await value(connection, "pause_queue", name="default") is True
    assert await value(connection, "pause_queue", name="default") is False
    assert await value(connection, "resume_queue", name="default") is True
    assert await value(connection, "resume_queue", name="default") is False


async def test_a_pause_ends_at_its_instant(
    connection: Connection, notifications: Notifications
) -> None:
    ids = await publish(connection, 2)
    await notifications.received()
    now = await connection.fetchval("select clock_timestamp()")
    for until in (now + timedelta(hours=1), now + timedelta(hours=2)):
        assert await value(connection, "pause_queue", name="default", until=until) is True
        assert await value(connection, "pause_queue", name="default", until=until) is False
    (info,) = await rows(connection, "queue_info")
    assert (info["paused"], info["resumes_at"]) == (True, until)
    assert await rows(connection, "claim") == []
    assert await rows(connection, "take", queue="default") == []
    due = await value(connection, "notifyq.next_due", queues=["default"])
    assert timedelta(hours=1, minutes=59) < due <= timedelta(hours=2)
    await rows(connection, "maintain")
    assert await notifications.received() == []

    await connection.execute("update messages.queue set resumes_at = clock_timestamp()")
    (info,) = await rows(connection, "queue_info")
    assert (info["paused"], info["resumes_at"]) == (False, None)
    assert [row["id"] for row in await rows(connection, "claim")] == ids[:1]
    await rows(connection, "maintain")
    assert await notifications.payloads() == [f"default:{ids[1]}"]
    (row,) = await connection.fetch("select paused, resumes_at from messages.queue")
    assert tuple(row) == (False, None)


async def test_an_instant_that_is_over_is_refused(connection: Connection) -> None:
    now = await connection.fetchval("select clock_timestamp()")
    with pytest.raises(InvalidArgumentError, match="until must be in the future"):
        await value(connection, "pause_queue", name="default", until=now)
    (info,) = await rows(connection, "queue_info")
    assert info["paused"] is False


async def test_a_pause_without_an_end_replaces_one_with_an_end(connection: Connection) -> None:
    now = await connection.fetchval("select clock_timestamp()")
    hour = now + timedelta(hours=1)
    for until in (hour, None, hour, datetime.max.replace(tzinfo=UTC)):
        assert await value(connection, "pause_queue", name="default", until=until) is True
    assert await value(connection, "resume_queue", name="default") is True
    (info,) = await rows(connection, "queue_info")
    assert (info["paused"], info["resumes_at"]) == (False, None)


@pytest.mark.parametrize("waiting", [0, 3])
async def test_resuming_notifies_for_waiting_messages_only(
    connection: Connection, notifications: Notifications, waiting: int
) -> None:
    await value(connection, "pause_queue", name="default")
    ids = await publish(connection, waiting)
    assert await notifications.received() == []
    await value(connection, "resume_queue", name="default")
    assert await notifications.payloads() == [f"default:{id_}" for id_ in ids[:1]]


async def test_an_empty_queue_is_dropped(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    assert await value(connection, "drop_queue", name="q") == 0
    with pytest.raises(QueueNotFoundError):
        await publish(connection, 1, "q")
    assert await value(connection, "create_queue", name="q") is True


async def test_a_queue_with_messages_is_dropped_by_force_only(connection: Connection) -> None:
    await value(connection, "create_queue", name="q")
    ids = await publish(connection, 5, "q")
    (kept,) = await publish(connection, 1)
    await rows(connection, "claim_id", id=ids[0])
    await value(connection, "finish", id=ids[0], lock_token=1)
    await rows(connection, "claim_id", id=ids[1])

    with pytest.raises(QueueNotEmptyError) as caught:
        await value(connection, "drop_queue", name="q")
    assert "force" in (caught.value.hint or "")
    assert len(await rows(connection, "message_list", queue="q")) == 4

    assert await value(connection, "drop_queue", name="q", force=True) == 4
    assert [row["id"] for row in await rows(connection, "message_list")] == [kept]
    assert await value(connection, "finish", id=ids[1], lock_token=1) is False
    assert len(await archived(connection, ids[0])) == 1


@pytest.mark.parametrize("is_committed", [True, False])
async def test_dropping_waits_for_an_open_publisher(
    connection: Connection, connect: Connect, *, is_committed: bool
) -> None:
    await value(connection, "create_queue", name="q")
    publisher, observer = await connect(), await connect()
    await publisher.execute("begin")
    await publish(publisher, 3, "q")
    dropping = asyncio.ensure_future(value(connection, "drop_queue", name="q"))
    await until_blocked(observer, connection)

    if is_committed:
        await publisher.execute("commit")
        with pytest.raises(QueueNotEmptyError):
            await dropping
        assert len(await rows(observer, "message_list", queue="q")) == 3
    else:
        await publisher.execute("rollback")
        assert await dropping == 0
        assert await rows(observer, "queue_info", queue="q") == []


@pytest.mark.parametrize("is_committed", [True, False])
async def test_a_publisher_waits_for_an_open_drop_and_then_finds_no_queue(
    connection: Connection, connect: Connect, *, is_committed: bool
) -> None:
    await value(connection, "create_queue", name="q")
    publisher, observer = await connect(), await connect()
    await connection.execute("begin")
    await value(connection, "drop_queue", name="q")
    publishing = asyncio.ensure_future(publish(publisher, 1, "q"))
    await until_blocked(observer, publisher)
    if is_committed:
        await connection.execute("commit")
        with pytest.raises(QueueNotFoundError):
            await publishing
    else:
        await connection.execute("rollback")
        await publishing
    assert len(await rows(observer, "message_list")) == (0 if is_committed else 1)


async def test_publishers_of_one_queue_do_not_wait_for_each_other(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    await other.execute("set lock_timeout = '50ms'")
    async with connection.transaction():
        await publish(connection, 1)
        await publish(other, 1)


async def test_durations_are_kept_exactly_in_every_interval_style(connection: Connection) -> None:
    for style in ("postgres", "postgres_verbose", "sql_standard", "iso_8601"):
        await connection.execute(f"set intervalstyle = {style}")
        await connection.execute(
            "select messages.create_queue('q', lock_duration => '1 month -3 days 00:00:01.000001');"
            "select messages.alter_queue('q', rate_period => '1 year 2 days -04:05:06.7')"
        )
        assert await connection.fetchval(
            "select lock_duration::text = interval '1 month -3 days 00:00:01.000001'::text "
            "and rate_period::text = interval '1 year 2 days -04:05:06.7'::text "
            "from messages.queue where name = 'q'"
        )
        await value(connection, "drop_queue", name="q")


async def test_an_unknown_name_gets_a_similar_one(connection: Connection) -> None:
    await connection.execute("""
        select messages.create_queue(q) from unnest(array['billing', 'it''s', 'invoices']) as q;
        select messages.create_stream('orders');
    """)
    for given, meant in (
        ("biling", "did you mean 'billing'? Or create it"),
        ("ordres", "did you mean 'orders'? Or create it"),
        ("Billing", "did you mean 'billing'? Or create it"),
        ("it s", "did you mean 'it''s'? Or create it"),
        ("mail", "create it"),
        ("", "create it"),
        ("x" * 100_000, "create it"),
    ):
        for call in ("publish($1, '1')", "pause_queue($1)", "alter_stream($1)"):
            with pytest.raises((QueueNotFoundError, StreamNotFoundError)) as caught:
                await connection.execute(f"select messages.{call}".replace("$1", quoted(given)))
            assert str(caught.value.hint).startswith(meant), call


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
