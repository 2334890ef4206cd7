"""Holding on to a lock, and giving it up."""

from datetime import timedelta

from support.database import (
    Connect,
    Connection,
    Notifications,
    alive,
    claim_one,
    live,
    lock_of,
    make_due,
    one_row,
    publish,
    rows,
    value,
)


async def test_release_puts_the_message_back_as_if_it_had_not_been_claimed(
    connection: Connection, notifications: Notifications
) -> None:
    first, second = await publish(connection, 2)
    before = await live(connection, first)
    message = await claim_one(connection)
    await notifications.received()
    assert await value(connection, "release", id=first, lock_token=message["lock_token"]) is True

    after = await live(connection, first)
    assert before
    assert after
    assert {**after, "lock_token": 0} == dict(before)
    assert after["lock_token"] > message["lock_token"]
    assert await notifications.payloads() == [f"default:{first}"]
    assert [row["id"] for row in await rows(connection, "claim", quantity=2)] == [first, second]


async def test_release_with_a_delay_schedules_and_only_one_of_zero_notifies(
    connection: Connection, notifications: Notifications
) -> None:
    await publish(connection, 1)
    message = await claim_one(connection)
    await notifications.received()
    before = await connection.fetchval("select clock_timestamp()")
    await value(connection, "release", **lock_of(message), delay=timedelta(minutes=5))

    after = await alive(connection, message["id"])
    assert (after["state"], after["attempts"]) == ("scheduled", 0)
    assert before <= after["available_at"] - timedelta(minutes=5)
    assert await notifications.received() == []
    assert await rows(connection, "claim") == []
    await make_due(connection, message["id"])
    message = await claim_one(connection)
    assert message["attempts"] == 1
    await value(connection, "release", **lock_of(message), delay=timedelta(0))
    assert (await alive(connection, message["id"]))["state"] == "waiting"
    assert await notifications.ids() == [[message["id"]]]


async def test_release_many_notifies_each_queue_once_and_returns_the_released_ids(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "create_queue", name="other")
    ids = await publish(connection, 3)
    others = await publish(connection, 2, "other")
    await rows(connection, "claim", quantity=5)
    await notifications.received()
    released = await rows(
        connection,
        "release_many",
        ids=[others[1], ids[2], ids[0], ids[1], others[0], 10**9],
        lock_tokens=[1, 1, 1, 7, 1, 1],
    )

    assert [row[0] for row in released] == sorted([*others, ids[0], ids[2]])
    assert sorted(await notifications.payloads()) == [
        f"default:{ids[0]},{ids[2]}",
        f"other:{others[0]}-{others[1]}",
    ]
    (kept,) = await rows(connection, "message_list", state="locked")
    assert (kept["id"], kept["attempts"]) == (ids[1], 1)


async def test_extend_uses_the_duration_of_the_queue_by_default(connection: Connection) -> None:
    await value(connection, "create_queue", name="slow", lock_duration=timedelta(hours=3))
    await publish(connection, 1, "slow")
    message = await claim_one(connection)
    before = await connection.fetchval("select clock_timestamp()")
    await value(connection, "extend", **lock_of(message))
    after = await alive(connection, message["id"])
    assert timedelta(hours=3) <= after["lock_expires_at"] - before < timedelta(hours=3, seconds=9)


async def test_extend_many_returns_the_ids_whose_locks_are_held(connection: Connection) -> None:
    ids = await publish(connection, 4)
    await rows(connection, "claim", quantity=3)
    held = await rows(
        connection,
        "extend_many",
        ids=[ids[2], ids[3], ids[0], ids[1]],
        lock_tokens=[1, 0, 1, 5],
        lock_duration=timedelta(days=1),
    )
    assert sorted(row[0] for row in held) == [ids[0], ids[2]]
    longer = await connection.fetch(
        "select id from messages.message "
        "where lock_expires_at > now() + interval '1 hour' order by id"
    )
    assert [row["id"] for row in longer] == [ids[0], ids[2]]


async def test_a_heartbeat_writes_no_index(connection: Connection, connect: Connect) -> None:
    ids = await publish(connection, 100)
    await rows(connection, "claim", quantity=100)
    await connection.execute("vacuum messages.message")
    worker = await connect()
    async with worker.transaction():
        await rows(worker, "extend_many", ids=ids[:20], lock_tokens=[1] * 20)
        counts = await one_row(
            worker,
            "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables "
            "where relid = 'messages.message'::regclass",
        )
    assert tuple(counts) == (20, 20)


async def test_release_orphans_releases_messages_unknown_to_the_worker(
    connection: Connection, notifications: Notifications
) -> None:
    ids = await publish(connection, 5)
    await rows(connection, "claim", quantity=3, worker="me")
    await rows(connection, "claim", quantity=1, worker="somebody else")
    await notifications.received()

    assert await value(connection, "notifyq.release_orphans", worker="me", known=[ids[1]]) == 2
    locked = await rows(connection, "message_list", state="locked")
    assert [row["id"] for row in locked] == [ids[1], ids[3]]
    assert await notifications.payloads() == [f"default:{ids[0]},{ids[2]}"]
    assert await value(connection, "notifyq.release_orphans", worker="me", known=[ids[1]]) == 0
    assert await value(connection, "notifyq.release_orphans", worker="me", known=[]) == 1
