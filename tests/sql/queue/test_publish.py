"""Publishing: by plain insert, by function, by COPY; in a transaction, later, or only once."""

from datetime import UTC, datetime, timedelta
from io import BytesIO

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError, QueueNotFoundError
from support.database import (
    Connection,
    Notifications,
    alive,
    claim_one,
    live,
    lock_of,
    make_due,
    publish,
    rows,
    value,
)


async def copy(connection: Connection, lines: list[str]) -> None:
    await connection.copy_to_table(
        "message",
        schema_name="messages",
        columns=["queue", "message"],
        source=BytesIO("".join(f"{line}\n" for line in lines).encode()),
    )


async def count(connection: Connection) -> int:
    return int(await connection.fetchval("select count(*) from messages.message"))


NEVER = datetime.max.replace(tzinfo=UTC)  # infinity, for the driver


async def test_inserting_a_message_alone_is_a_full_publish(
    connection: Connection, notifications: Notifications
) -> None:
    await connection.execute("""insert into messages.message (message) values ('["hello"]')""")

    (notification,) = await notifications.received()
    message = await live(connection, notification.ids[0])
    assert notification.payload == f"default:{notification.ids[0]}"
    assert message
    assert message["message"] == ["hello"]
    assert message["queue"] == "default"
    assert message["state"] == "waiting"
    assert (message["priority"], message["attempts"], message["lock_token"]) == (0, 0, 0)
    assert message["headers"] == {}
    assert (await claim_one(connection))["id"] == message["id"]


async def test_publish_returns_the_id_and_stores_every_argument(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="mail")
    id_ = await value(
        connection,
        "publish",
        queue="mail",
        message={"to": "you"},
        priority=7,
        type="letter",
        headers={"trace": "1"},
        dedup_key="k",
    )

    message = await alive(connection, id_)
    assert message["queue"] == "mail"
    assert message["message"] == {"to": "you"}
    assert message["priority"] == 7
    assert message["type"] == "letter"
    assert message["headers"] == {"trace": "1"}
    assert message["dedup_key"] == "k"
    assert await notifications.payloads() == [f"mail:{id_}"]


async def test_the_payload_comes_out_as_it_went_in(connection: Connection) -> None:
    for payload in [
        True,
        0,
        -(2**80),
        0.1,
        "",
        "naïve ☃ \U0001f40d \\ \" '",
        [],
        {},
        {"a": [1, {"b": None}], "": ""},
        ["x" * 100_000],
    ]:
        await value(connection, "publish", queue="default", message=payload)
        message = await claim_one(connection)
        await value(connection, "finish", **lock_of(message))

        (found,) = await rows(connection, "archive_find", id=message["id"])
        assert message["message"] == payload
        assert found["message"] == payload


async def test_the_json_value_null_is_a_message(connection: Connection) -> None:
    await connection.execute("select messages.publish('default', 'null')")
    stored = await connection.fetchval("select jsonb_typeof(message) from messages.claim()")
    assert stored == "null"


async def test_publish_many_keeps_the_order_of_the_array_and_notifies_once(
    connection: Connection, notifications: Notifications
) -> None:
    ids = await publish(connection, 500)

    stored = await connection.fetch("select id, message from messages.message order by id")
    assert [(row["id"], row["message"]) for row in stored] == list(
        zip(ids, range(500), strict=True)
    )
    assert await notifications.payloads() == [f"default:{ids[0]}-{ids[-1]}"]


async def test_publish_many_of_nothing_publishes_nothing(
    connection: Connection, notifications: Notifications
) -> None:
    assert await publish(connection, 0) == []
    assert await count(connection) == 0
    assert await notifications.received() == []


async def test_publish_many_applies_its_options_to_all(connection: Connection) -> None:
    await rows(
        connection,
        "publish_many",
        queue="default",
        messages=["a", "b"],
        priority=3,
        delay=timedelta(hours=1),
        type="t",
        headers={"h": 1},
    )
    found = await connection.fetch(
        "select distinct priority, state, type, headers from messages.message"
    )
    assert [tuple(row) for row in found] == [(3, "scheduled", "t", {"h": 1})]


async def test_copy_publishes_with_one_notification_for_each_queue(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="b")
    await copy(connection, [f"{queue}\t{n}" for n in range(100) for queue in ("b", "default")])

    received = await notifications.received()
    assert [notification.queue for notification in received] == ["b", "default"]
    assert [len(notification.ids) for notification in received] == [100, 100]
    assert await count(connection) == 200


async def test_a_delayed_message_is_scheduled_and_sends_no_notification(
    connection: Connection, notifications: Notifications
) -> None:
    before = await connection.fetchval("select clock_timestamp()")
    id_ = await value(connection, "publish", queue="default", message=1, delay=timedelta(minutes=5))
    after = await connection.fetchval("select clock_timestamp()")

    message = await alive(connection, id_)
    assert message["state"] == "scheduled"
    assert before <= message["available_at"] - timedelta(minutes=5) <= after
    assert await rows(connection, "claim") == []
    assert await notifications.received() == []


async def test_a_delay_counts_from_the_call_not_from_the_start_of_the_transaction(
    connection: Connection,
) -> None:
    async with connection.transaction():
        before = await connection.fetchval("select clock_timestamp()")
        id_ = await value(
            connection, "publish", queue="default", message=1, delay=timedelta(minutes=5)
        )
    message = await alive(connection, id_)
    assert message["available_at"] >= before + timedelta(minutes=5)


async def test_a_message_due_within_a_minute_notifies_sleeping_workers(
    connection: Connection, notifications: Notifications
) -> None:
    next_due = "select notifyq.next_due(array['default', 'default'])"
    await value(connection, "publish", queue="default", message=1, available_at=NEVER)
    assert await connection.fetchval(next_due) is None
    soon = await value(
        connection, "publish", queue="default", message=1, delay=timedelta(seconds=50)
    )
    late = await value(connection, "publish", queue="default", message=2, delay=timedelta(hours=1))
    assert await notifications.ids() == [[soon]]
    assert timedelta(seconds=20) < await connection.fetchval(next_due) < timedelta(seconds=50)
    await make_due(connection, soon)
    # As for a worker that polled shortly before it was due.
    assert await connection.fetchval(
        "select notifyq.next_due('{default}', since => '1 minute') < '0'"
    )
    assert timedelta(minutes=59) < await connection.fetchval(next_due) < timedelta(hours=1)
    await value(connection, "cancel", id=late)
    assert await connection.fetchval(next_due) is None


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(seconds=-1)])
async def test_a_delay_of_zero_publishes_at_once_and_notifies(
    connection: Connection, notifications: Notifications, delay: timedelta
) -> None:
    id_ = await value(connection, "publish", queue="default", message=1, delay=delay)

    message = await alive(connection, id_)
    assert message["state"] == "waiting"
    assert await notifications.ids() == [[id_]]


async def test_a_message_for_an_instant_waits_for_it(
    connection: Connection, notifications: Notifications
) -> None:
    instant = datetime(2999, 1, 1, tzinfo=UTC)
    id_ = await value(connection, "publish", queue="default", message=1, available_at=instant)

    message = await alive(connection, id_)
    assert (message["state"], message["available_at"]) == ("scheduled", instant)
    assert await rows(connection, "claim") == []
    assert await notifications.received() == []
    await make_due(connection, id_)
    assert (await claim_one(connection))["id"] == id_


async def test_an_instant_in_the_past_means_at_once(
    connection: Connection, notifications: Notifications
) -> None:
    instant = datetime(2000, 1, 1, tzinfo=UTC)
    id_ = await value(connection, "publish", queue="default", message=1, available_at=instant)

    assert await notifications.ids() == [[id_]]
    assert (await claim_one(connection))["id"] == id_


async def test_a_plain_insert_may_be_scheduled_too(
    connection: Connection, notifications: Notifications
) -> None:
    await connection.execute(
        "insert into messages.message (message, available_at) "
        "values ('1', now() + interval '1 hour'), ('2', now())"
    )
    states = await connection.fetch("select state from messages.message order by id")
    (notification,) = await notifications.received()
    assert [row["state"] for row in states] == ["scheduled", "waiting"]
    assert (await claim_one(connection))["message"] == 2
    assert len(notification.ids) == 1


async def test_a_dedup_key_belongs_to_its_queue(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")
    ids = {
        await value(connection, "publish", queue=queue, message=1, dedup_key=key)
        for queue in ("default", "other")
        for key in ("a", "b", None, None)
    }
    assert len(ids) == 8


async def test_a_plain_insert_with_a_used_dedup_key_is_an_error(connection: Connection) -> None:
    insert = "insert into messages.message (message, dedup_key) values ('1', 'k')"
    await connection.execute(insert)
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute(insert)


async def test_an_unknown_queue_is_refused_and_nothing_is_stored(
    connection: Connection, notifications: Notifications
) -> None:
    for statement in [
        "insert into messages.message (queue, message) values ('nope', '1')",
        "insert into messages.message (queue, message) values ('default', '1'), ('nope', '2')",
        "select messages.publish('nope', '1')",
        "select messages.publish('nope', '1', dedup_key => 'k')",
        "select messages.publish('nope', '1', delay => '1 hour')",
        "select messages.publish_many('nope', array['1', '2']::jsonb[])",
    ]:
        with pytest.raises(QueueNotFoundError, match="'nope'") as caught:
            await connection.execute(statement)
        assert "create_queue('nope')" in (caught.value.hint or "")
        assert await count(connection) == 0
        assert await notifications.received() == []


YEARS = "between the years 1 and 9999"
MANY = "select messages.publish_many('default', array['1']::jsonb[], "
REFUSED: list[tuple[str, type[Exception], str]] = [
    ("select messages.publish_many('nope', '{}')", QueueNotFoundError, "nope"),
    (
        "select messages.publish('default', null)",
        InvalidArgumentError,
        "message must not be null",
    ),
    (
        "select messages.publish_many('default', array['1', null]::jsonb[])",
        InvalidArgumentError,
        "message 2 is null",
    ),
    (
        "insert into messages.message (message) values (null)",
        asyncpg.NotNullViolationError,
        "message",
    ),
    (
        "select messages.publish('default', '1', headers => '[1]')",
        InvalidArgumentError,
        "headers must be a JSON object",
    ),
    (
        "insert into messages.message (message, headers) values ('1', '5')",
        InvalidArgumentError,
        "headers must be a JSON object",
    ),
    (
        "select messages.publish('default', '1', available_at => '10000-01-01')",
        InvalidArgumentError,
        YEARS,
    ),
    (
        "insert into messages.message (message, available_at) values ('1', '20000-01-01')",
        InvalidArgumentError,
        YEARS,
    ),
    *(
        (
            f"{call}delay => '1 s', available_at => now())",
            InvalidArgumentError,
            "exclude each other",
        )
        for call in ("select messages.publish('default', '1', ", MANY)
    ),
    *(
        (f"{call}max_attempts => {number})", InvalidArgumentError, "max_attempts must be")
        for call in ("select messages.publish('default', '1', ", MANY)
        for number in (0, 1001)
    ),
    (f"{MANY}keys => array['a', 'b'])", InvalidArgumentError, "1 messages, but 2 keys"),
]


async def test_an_invalid_message_is_refused_with_the_reason(connection: Connection) -> None:
    for statement, error, why in REFUSED:
        with pytest.raises(error, match=why):
            await connection.execute(statement)
    assert await count(connection) == 0
    await connection.execute("select messages.publish('default', '1', available_at => 'infinity')")
    assert [row["state"] for row in await rows(connection, "message_list")] == ["scheduled"]


async def test_copy_into_an_unknown_queue_is_refused_and_nothing_is_stored(
    connection: Connection,
) -> None:
    with pytest.raises(QueueNotFoundError):
        await copy(connection, ["default\t1", "nope\t2"])
    assert await count(connection) == 0


async def test_a_message_has_a_key_and_attempts_of_its_own(connection: Connection) -> None:
    first = await value(
        connection, "publish", queue="default", message=1, key="c-1", max_attempts=3
    )
    ids = [
        row[0]
        for row in await rows(
            connection,
            "publish_many",
            queue="default",
            messages=[2, 3],
            keys=["c-2", None],
            max_attempts=7,
        )
    ]
    ids += [
        row[0]
        for row in await rows(
            connection,
            "publish_many",
            queue="default",
            messages=[4, 5],
            keys=[None, "c-5"],
            dedup_keys=["b", "a"],
        )
    ]
    found = await connection.fetch(
        "select id, message, key, max_attempts from messages.message order by id"
    )
    assert [tuple(row) for row in found] == [
        (first, 1, "c-1", 3),
        (ids[0], 2, "c-2", 7),
        (ids[1], 3, None, 7),
        (ids[2], 4, None, None),
        (ids[3], 5, "c-5", None),
    ]
