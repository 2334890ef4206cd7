"""Unique messages: how long a key is taken, and what becomes of the message that has it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from notifyq.errors import InvalidArgumentError, MessageLimitError, QueueNotFoundError
from support.database import Connect, Notifications, lock_of, rows, until_blocked, value

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    from support.database import Connection

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


async def publish(connection: Connection, message: Any = 1, **options: Any) -> int:
    options = {"queue": "default", "dedup_key": "k"} | options
    return int(await value(connection, "publish", message=message, **options))


async def publish_many(
    connection: Connection, keys: Sequence[str | None], **options: Any
) -> list[int]:
    published = await rows(
        connection,
        "publish_many",
        queue=options.pop("queue", "default"),
        messages=options.pop("messages", list(range(len(keys)))),
        dedup_keys=keys,
        **options,
    )
    return [row[0] for row in published]


async def claim(connection: Connection) -> asyncpg.Record:
    (message,) = await rows(connection, "claim", worker="w")
    return message


async def finish(connection: Connection, message: asyncpg.Record) -> None:
    assert await value(connection, "finish", **lock_of(message))


async def live(connection: Connection) -> list[tuple[int, Any]]:
    found = await connection.fetch("select id, message from messages.message order by id")
    return [(row["id"], row["message"]) for row in found]


async def noted(connection: Connection, call: str) -> list[tuple[int, bool]]:
    found = await connection.fetch(
        f"select p.id, messages.is_duplicate(p.id) from messages.{call} as p (id)"
    )
    return [(row[0], row[1]) for row in found]


ONE: list[tuple[str, bool]] = [
    ("dedup_key => 'k'", True),
    ("dedup_key => 'k', dedup_scope => 'waiting'", True),
    ("dedup_key => 'k', dedup_window => '1 h'", True),
    ("dedup_key => 'k', on_duplicate => 'replace'", True),
    ("dedup_key => 'other'", False),
    ("dedup_key => 'other', dedup_window => '1 h'", False),
    ("key => 'k'", False),
]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(("options", "is_duplicate"), ONE)
async def test_sql_knows_that_a_message_is_a_duplicate(
    connection: Connection, options: str, is_duplicate: bool, *, durable: bool
) -> None:
    if not durable:
        await value(connection, "create_queue", name="rough", durable=False)
    queue = "default" if durable else "rough"
    first = await noted(connection, f"publish('{queue}', '1', dedup_key => 'k')")
    assert first == [(first[0][0], False)]
    ((again, is_noted),) = await noted(connection, f"publish('{queue}', '2', {options})")
    assert (is_noted, again == first[0][0]) == (is_duplicate, is_duplicate)


async def test_sql_knows_which_of_many_are_duplicates(connection: Connection) -> None:
    there = await publish(connection, dedup_key="b")
    many = "publish_many('default', '{1,2,3,4,5}', dedup_keys => array['a', 'b', 'a', null, 'c'])"
    published = await noted(connection, many)
    assert [id_ == there for id_, _ in published] == [is_noted for _, is_noted in published]
    assert published[0] == published[2]
    again = await noted(connection, many)
    assert [is_noted for _, is_noted in again] == [True, True, True, False, True]
    [(_, is_noted)] = await noted(connection, "publish('default', '1')")
    assert not is_noted


async def test_what_was_published_in_this_transaction_can_be_a_duplicate(
    connection: Connection,
) -> None:
    async with connection.transaction():
        assert [is_noted for _, is_noted in await noted(connection, "publish('default', '1')")] == [
            False
        ]
        for expected in (False, True):
            published = await noted(connection, "publish('default', '1', dedup_key => 'k')")
            assert [is_noted for _, is_noted in published] == [expected]
    published = await noted(connection, "publish('default', '1', dedup_key => 'new')")
    assert [is_noted for _, is_noted in published] == [False]


async def test_an_event_is_never_a_duplicate(connection: Connection) -> None:
    await value(connection, "create_stream", name="orders")
    await publish(connection)
    assert [is_noted for _, is_noted in await noted(connection, "publish('orders', '1')")] == [
        False
    ]


async def test_a_key_of_scope_live_is_taken_while_its_message_is_locked(
    connection: Connection,
) -> None:
    first = await publish(connection)
    message = await claim(connection)
    assert await publish(connection, 2) == first
    assert await publish(connection, 2, dedup_scope="live") == first
    await finish(connection, message)
    assert await publish(connection, 2) != first


async def test_a_key_of_scope_waiting_is_free_when_its_message_is_claimed(
    connection: Connection,
) -> None:
    first = await publish(connection, dedup_scope="waiting")
    assert await publish(connection, 2, dedup_scope="waiting") == first
    assert await publish(connection, 2) == first  # the window of the existing message holds
    message = await claim(connection)
    assert (message["dedup_key"], message["given_up_key"]) == (None, "k")
    second = await publish(connection, 2, dedup_scope="waiting")
    assert await live(connection) == [(first, 1), (second, 2)]
    assert await value(connection, "release", id=first, lock_token=message["lock_token"])
    assert await publish(connection, 3, dedup_scope="waiting") == second
    assert [row["id"] for row in await rows(connection, "claim", quantity=2)] == [first, second]


async def test_a_released_message_has_no_key_of_scope_waiting(connection: Connection) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=9)
    for _ in range(3):
        await publish(connection, dedup_scope="waiting")
        await rows(connection, "claim", worker="w")
    for row in await connection.fetch("select id, lock_token from messages.message"):
        assert await value(connection, "retry", **row, delay=timedelta(0))
    await connection.execute("update messages.message set available_at = now(), state = 'waiting'")
    await rows(connection, "claim", quantity=9, worker="w")
    await connection.execute("update messages.message set lock_expires_at = now()")
    assert await value(connection, "reap") == 3
    assert len(await live(connection)) == 3


async def test_a_window_outlives_the_message(connection: Connection) -> None:
    first = await publish(connection, dedup_window=HOUR)
    await finish(connection, await claim(connection))
    assert await publish(connection, 2, dedup_window=HOUR) == first
    kept, other = await publish_many(connection, ["k", "l"], dedup_window=MINUTE)
    assert kept == first
    assert await live(connection) == [(other, 1)]
    await connection.execute("update notifyq.dedup set expires_at = now() where dedup_key = 'k'")
    second = await publish(connection, 3, dedup_window=HOUR)
    assert second > first
    assert await publish(connection, 4, dedup_window=HOUR) == second


async def test_a_message_that_outlives_its_window_has_its_key(connection: Connection) -> None:
    first = await publish(connection, dedup_window=HOUR)
    await connection.execute("update notifyq.dedup set expires_at = now()")
    assert await publish(connection, 2, dedup_window=HOUR) == first
    await finish(connection, await claim(connection))
    # Nothing was published, so nothing has a window.
    assert await publish(connection, 2, dedup_window=HOUR) != first


async def test_expired_windows_are_deleted_and_those_of_a_dropped_queue(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="q")
    await publish(connection, queue="q", dedup_window=HOUR)
    for key in "abc":
        await publish(connection, dedup_key=key, dedup_window=HOUR)
    await connection.execute("update notifyq.dedup set expires_at = now() where dedup_key < 'c'")
    await value(connection, "maintain")
    keys = "select array_agg(dedup_key order by dedup_key) from notifyq.dedup"
    assert await connection.fetchval(keys) == ["c", "k"]
    await value(connection, "drop_queue", name="q", force=True)
    assert await connection.fetchval(keys) == ["c"]


async def test_replace_gives_the_existing_message_the_newer_payload(
    connection: Connection, notifications: Notifications
) -> None:
    first = await publish(connection, dedup_scope="waiting", key="c", delay=HOUR)
    due = await connection.fetchval("select available_at from messages.message")
    again = await publish(
        connection, 2, on_duplicate="replace", priority=7, type="t", headers={"a": "b"}
    )
    assert again == first
    (message,) = await rows(connection, "message_list")
    assert (message["message"], message["priority"], message["type"]) == (2, 7, "t")
    assert (message["headers"], message["key"], message["dedup_key"]) == ({"a": "b"}, "c", "k")
    assert (message["available_at"], message["state"]) == (due, "scheduled")
    assert await notifications.received() == []


async def test_replace_publishes_another_beside_a_locked_one(connection: Connection) -> None:
    first = await publish(connection, on_duplicate="replace")
    await claim(connection)
    second = await publish(connection, 2, on_duplicate="replace")
    assert await publish(connection, 3, on_duplicate="replace") == second
    assert await live(connection) == [(first, 1), (second, 3)]


async def test_replace_keeps_a_locked_one_whose_scope_is_live(connection: Connection) -> None:
    first = await publish(connection, on_duplicate="replace", dedup_scope="live")
    assert await publish(connection, 2, on_duplicate="replace", dedup_scope="live") == first
    await claim(connection)
    assert await publish(connection, 3, on_duplicate="replace", dedup_scope="live") == first
    assert await live(connection) == [(first, 2)]


async def test_debounce_delays_a_waiting_message(connection: Connection) -> None:
    first = await publish(connection, on_duplicate="debounce", delay=MINUTE)
    await connection.execute(
        "update messages.message set created_at = now() - interval '50 minutes', "
        "available_at = now(), state = 'waiting'"
    )
    assert await publish(connection, 2, on_duplicate="debounce", delay=MINUTE) == first
    (message,) = await rows(connection, "message_list", state="scheduled")
    now = await connection.fetchval("select now()")
    assert timedelta(seconds=50) < message["available_at"] - now <= MINUTE
    assert message["message"] == 2


async def test_debounce_ends_with_its_window(
    connection: Connection, notifications: Notifications
) -> None:
    options: dict[str, Any] = {
        "on_duplicate": "debounce", "delay": MINUTE, "dedup_window": HOUR,
    }  # fmt: skip
    first = await publish(connection, **options)
    await connection.execute(
        "update messages.message set created_at = now() - interval '59.5 minutes'"
    )
    assert await publish(connection, 2, **options) == first
    created, due = await connection.fetchrow(  # type: ignore[misc]
        "select created_at, available_at from messages.message"
    )
    assert due - created == HOUR
    assert await notifications.received() == []
    await connection.execute(
        "update messages.message set created_at = now() - interval '61 minutes'"
    )
    assert await publish(connection, 3, **options) == first
    (notification,) = await notifications.received()
    assert notification.ids == [first]
    assert (await claim(connection))["message"] == 3


async def test_in_an_array_replace_publishes_the_last_and_keep_the_first_of_a_key(
    connection: Connection, notifications: Notifications
) -> None:
    first = await publish(connection, "old", dedup_key="b")
    keys = ["a", "b", None, "a", "b"]
    kept = await publish_many(connection, keys, dedup_scope="waiting")
    assert kept == [kept[0], first, kept[2], kept[0], first]
    assert await live(connection) == [(first, "old"), (kept[0], 0), (kept[2], 2)]
    *_, notification = await notifications.received()  # which may have only some of the ids
    assert set(notification.ids) <= {kept[0], kept[2]}
    renewed = await publish_many(connection, keys, on_duplicate="replace")
    assert renewed == [kept[0], first, renewed[2], kept[0], first]
    assert await live(connection) == [(first, 4), (kept[0], 3), (kept[2], 2), (renewed[2], 2)]
    assert await publish_many(connection, [], on_duplicate="replace") == []


async def test_in_an_array_all_messages_of_a_key_get_the_existing_id(
    connection: Connection,
) -> None:
    first = await publish(connection, "old", dedup_key="b")
    keys = ["b", "a", "a", "b"]
    ids = await publish_many(connection, keys, dedup_window=HOUR)
    assert ids == [first, ids[1], ids[1], first]
    assert await publish_many(connection, keys[::-1], dedup_window=HOUR) == ids[::-1]
    taken = await connection.fetch("select dedup_key, id from notifyq.dedup")
    assert [tuple(row) for row in taken] == [("a", ids[1])]


async def test_a_plain_insert_meets_both_scopes(connection: Connection) -> None:
    insert = (
        "insert into messages.message (message, dedup_key) values ('2', 'k') "
        "on conflict do nothing returning id"
    )
    await publish(connection, dedup_scope="waiting")
    assert await connection.fetchval(insert) is None
    await claim(connection)
    second = await connection.fetchval(insert)
    assert await publish(connection, 3, dedup_scope="waiting") == second


async def test_options_that_exclude_each_other_are_refused(connection: Connection) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"on_duplicate": "drop"}, "on_duplicate must be keep, replace or debounce, not drop"),
        ({"on_duplicate": None}, "on_duplicate must not be null"),
        ({"dedup_scope": "always"}, "dedup_scope must be live or waiting, not always"),
        ({"dedup_window": timedelta(0)}, "dedup_window must be longer than zero"),
        ({"dedup_key": None, "dedup_window": HOUR}, "need a dedup_key"),
        ({"dedup_key": None, "on_duplicate": "replace"}, "need a dedup_key"),
        ({"on_duplicate": "replace", "dedup_window": HOUR}, "does not go with replace"),
        ({"on_duplicate": "debounce"}, "debounce needs a delay"),
    ]
    for options, why in cases:
        with pytest.raises(InvalidArgumentError, match=why):
            await publish(connection, **options)
        key = options.pop("dedup_key", "k")
        with pytest.raises(InvalidArgumentError, match=why):
            await publish_many(connection, [key], **options) if key else await rows(
                connection, "publish_many", queue="default", messages=[1], **options
            )
        assert await live(connection) == []


@pytest.mark.parametrize(
    "options", [{"dedup_window": HOUR}, {"on_duplicate": "replace"}, {"dedup_scope": "waiting"}]
)
async def test_limits_and_queues_hold_for_what_is_published_once(
    connection: Connection, options: dict[str, Any]
) -> None:
    with pytest.raises(QueueNotFoundError):
        await publish(connection, queue="nope", **options)
    with pytest.raises(MessageLimitError, match="dedup_key has more than 1000 bytes"):
        await publish(connection, dedup_key="k" * 1001, **options)
    await publish(connection, **options)
    if "dedup_window" not in options:
        with pytest.raises(MessageLimitError):
            await publish(connection, "x" * 2_000_000, **options)
    assert [message for _, message in await live(connection)] == [1]


@pytest.mark.parametrize("window", [None, HOUR])
async def test_keys_are_locked_in_order(connection: Connection, window: timedelta | None) -> None:
    """Whatever their order in the call: two calls with the same keys would end in a deadlock."""
    keys = ["c", "a", "d", "b"]
    ids = await connection.fetch(
        "select messages.publish_many('default', array_fill('1'::jsonb, array[4]), "
        "dedup_keys => $1, dedup_window => $2) as id",
        keys,
        window,
    )
    order = "select array_agg(dedup_key order by ctid) from "
    assert await connection.fetchval(order + "messages.message") == sorted(keys)
    if window is not None:
        assert await connection.fetchval(order + "notifyq.dedup") == sorted(keys)
    found = await connection.fetch("select id, dedup_key from messages.message")
    assert [{row["id"]: row["dedup_key"] for row in found}[row["id"]] for row in ids] == keys


async def test_a_key_that_another_transaction_rolls_back_is_published(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    transaction = connection.transaction()
    await transaction.start()
    (given_up,) = await publish_many(connection, ["k"])
    publishing = asyncio.ensure_future(publish_many(other, ["j", "k"]))
    await until_blocked(await connect(), other)
    await transaction.rollback()
    ids = await publishing
    assert given_up not in ids
    found = await connection.fetch("select dedup_key from messages.message order by id")
    assert [row[0] for row in found] == ["j", "k"]


async def test_keys_and_messages_must_have_the_same_length(connection: Connection) -> None:
    for messages, keys in (([1], ["a", "b"]), ([1, 2], ["a"]), ([1], [])):
        with pytest.raises(InvalidArgumentError, match="dedup_keys"):
            await rows(
                connection, "publish_many", queue="default", messages=messages, dedup_keys=keys
            )
    assert await publish_many(connection, []) == []
    with pytest.raises(QueueNotFoundError):
        await publish_many(connection, ["a"], queue="nope")
    assert await live(connection) == []
