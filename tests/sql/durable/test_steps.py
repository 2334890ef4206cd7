"""The record of steps: the first value wins, under a lock, with its message for good."""

from datetime import timedelta
from typing import Any

import pytest

from notifyq import (
    InvalidArgumentError,
    LockNotHeldError,
    MessageLimitError,
    QueueDeniedError,
    StepKindError,
)
from support.database import Connect, Connection, alive, claim_one, lock_of, publish, rows, value


async def locked(connection: Connection, queue: str = "default") -> dict[str, Any]:
    """Publish and claim a message; return its lock as arguments."""
    await publish(connection, 1, queue)
    [row] = await rows(connection, "claim", queues=[queue])
    return lock_of(row)


async def names(connection: Connection, id_: int) -> list[str]:
    return [row["name"] for row in await rows(connection, "steps", id=id_)]


async def test_the_first_value_of_a_name_wins(connection: Connection) -> None:
    lock = await locked(connection)
    for value_ in ({"a": 1}, "other"):
        found = await value(connection, "step", **lock, name="charge", value=value_)
        assert found == {"a": 1}
    assert await value(connection, "step", **lock, name="second") is None
    await value(connection, "step", **lock, name="third", value=3, failed=True)
    found = await rows(connection, "steps", id=lock["id"])
    assert [(row["name"], row["kind"], row["state"], row["attempt"]) for row in found] == [
        ("charge", "step", "done", 1),
        ("second", "step", "done", 1),
        ("third", "step", "failed", 1),
    ]


async def test_steps_leave_with_their_message(connection: Connection) -> None:
    lock = await locked(connection)
    await value(connection, "step", **lock, name="charge", value=7)
    await value(connection, "finish", **lock)
    assert await names(connection, lock["id"]) == ["charge"]
    assert await connection.fetchval("select count(*) from notifyq.step") == 0
    day = await connection.fetchval("select tableoid::regclass::text from notifyq.step_archive")
    archive = "select tableoid::regclass::text from messages.message_archive"
    assert day == (await connection.fetchval(archive)).replace("message_archive", "step_archive")
    await connection.execute(
        f"select notifyq.drop_day('{day.split('.')[1]}')".replace("step", "message")
    )
    assert await names(connection, lock["id"]) == []


async def test_dead_messages_take_their_steps_along(connection: Connection) -> None:
    lock = await locked(connection)
    for name in ("one", "two", "three"):
        await value(connection, "step", **lock, name=name)
    await value(connection, "finish", **lock, status="failed")
    again = await connection.fetchval("select messages.dead_retry($1)", lock["id"])
    assert await names(connection, again) == ["one", "two", "three"]
    row = await claim_one(connection)
    assert row["root_id"] == lock["id"]
    lock = {"id": again, "lock_token": row["lock_token"]}
    await value(connection, "finish", **lock, status="failed")
    with pytest.raises(InvalidArgumentError, match="has no recorded step 'four'"):
        await value(connection, "dead_retry_from", id=again, step="four")
    third = await value(connection, "dead_retry_from", id=again, step="two")
    assert await names(connection, third) == ["one"]
    assert await value(connection, "dead_retry_from", id=again) is None
    await connection.execute("select messages.cancel($1)", third)
    fourth = await value(connection, "dead_retry_from", id=third)
    assert await names(connection, fourth) == []
    assert await connection.fetchval("select messages.dead_delete($1)", again) == 1
    assert await names(connection, again) == []


async def test_steps_of_many_messages(connection: Connection, connect: Connect) -> None:
    ids = await publish(connection, 4)
    tokens = [row["lock_token"] for row in await rows(connection, "claim", quantity=4)]
    tokens[1] += 1
    call = "select * from notifyq.record_steps($1, $2, $3, $4, $5) order by number"
    names_ = ["a"] * 5
    arguments = ([*ids, ids[0]], [*tokens, tokens[0]], [*names_[:4], "b"], [1, 2, 3, 4, 5])
    failed = [False, False, True, False, False]
    other = await connect()
    async with other.transaction():
        await other.execute("select from messages.message where id = $1 for update", ids[3])
        found = await connection.fetch(call, *arguments, failed)
    # Not the second, whose lock is lost, nor the fourth, which would have to wait.
    assert [tuple(row) for row in found] == [(1, 1, "done"), (3, 3, "failed"), (5, 5, "done")]
    found = await connection.fetch(call, ids, tokens, ["a"] * 4, [9] * 4, [False] * 4)
    assert [tuple(row) for row in found] == [(1, 1, "done"), (3, 3, "failed"), (4, 9, "done")]
    assert await names(connection, ids[0]) == ["a", "b"]
    assert await names(connection, ids[1]) == []


async def test_a_lost_lock_writes_nothing(connection: Connection) -> None:
    lock = await locked(connection)
    lost = lock | {"lock_token": lock["lock_token"] + 1}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("step", {"name": "a"}),
        ("sleep", {"name": "a", "delay": timedelta(hours=1)}),
        ("await_signal", {"name": "a", "signal": "s"}),
        ("await_any", {"name": "a", "signals": ["s"]}),
        ("await_end", {"name": "a", "of": [lock["id"]]}),
        ("emit", {"chunk": 1}),
    ]
    for function, arguments in calls:
        with pytest.raises(LockNotHeldError, match="was lost"):
            await rows(connection, function, **lost, **arguments)
    assert await value(connection, "progress", **lost, fraction=0.5) is False
    assert await names(connection, lock["id"]) == []


async def test_limits_and_kinds(connection: Connection) -> None:
    lock = await locked(connection)
    for name in ("", "ä" * 101, None):
        with pytest.raises(InvalidArgumentError, match="1 to 200 bytes"):
            await value(connection, "step", **lock, name=name)
    await value(connection, "step", **lock, name="ä" * 100)
    with pytest.raises(MessageLimitError, match="value has"):
        await value(connection, "step", **lock, name="big", value="x" * 2_000_000)
    await value(connection, "step", **lock, name="step")
    with pytest.raises(StepKindError, match="'step' is recorded as a step"):
        await connection.fetch(
            "select messages.sleep($1, $2, 'step', delay => '1 s')", *lock.values()
        )
    await connection.execute(
        "update notifyq.step set number = 10000 where name = 'step' and message_id = $1", lock["id"]
    )
    with pytest.raises(MessageLimitError, match="has 10000 steps already"):
        await value(connection, "step", **lock, name="one more")


async def test_an_unlogged_queue_has_no_steps(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('fast', durable => false)")
    lock = await locked(connection, "fast")
    with pytest.raises(InvalidArgumentError, match="is unlogged"):
        await value(connection, "step", **lock, name="a")
    # Nothing can wait for it: it must not look as if it were received.
    with pytest.raises(InvalidArgumentError, match="is unlogged"):
        await value(connection, "signal", name="go", id=lock["id"])
    assert (await alive(connection, lock["id"]))["root_id"] is None


async def test_a_granted_queue_keeps_others_out(connection: Connection) -> None:
    await connection.execute("select messages.create_queue('vault')")
    lock = await locked(connection, "vault")
    await value(connection, "step", **lock, name="a")
    await connection.execute("select messages.grant_queue('vault', 'pg_monitor', true, true)")
    await connection.execute("set role notifyq_worker")
    try:
        with pytest.raises(QueueDeniedError):
            await value(connection, "step", **lock, name="b")
        assert await names(connection, lock["id"]) == []
    finally:
        await connection.execute("reset role")


async def test_what_has_steps_is_not_replaced_or_dropped(connection: Connection) -> None:
    await connection.execute(
        "select messages.create_queue('full', capacity => 2, overflow => 'drop_oldest')"
    )
    first = await value(connection, "publish", queue="full", message=1, dedup_key="k")
    [row] = await rows(connection, "claim", queues=["full"])
    lock = lock_of(row)
    await value(connection, "step", **lock, name="charge")
    await value(connection, "release", **lock)
    same = await value(
        connection, "publish", queue="full", message=2, dedup_key="k", on_duplicate="replace"
    )
    assert same == first
    await publish(connection, 5, "full")
    live = await rows(connection, "message_list", queue="full")
    assert (live[0]["id"], live[0]["message"]) == (first, 1)
    assert len(live) == 2
