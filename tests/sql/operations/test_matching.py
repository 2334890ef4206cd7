"""Actions on all live messages that match: cancel, run now, move and amend, in steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from notifyq import (
    InvalidArgumentError,
    QueueFullError,
    QueueNotEmptyError,
    QueueNotFoundError,
)
from support.database import (
    Connect,
    Connection,
    Notifications,
    alive,
    archived,
    claim_one,
    lock_of,
    publish,
    rows,
    until_blocked,
    value,
)

LATER = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
ACTIONS = ("cancel_matching", "run_now_matching", "move_matching", "amend_matching")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "move_matching": {"queue": "other"},
    "amend_matching": {"priority": 7},
}


async def act(connection: Connection, function: str, **given: Any) -> tuple[int, int]:
    """Go through all steps, two messages each; return how many were found and changed."""
    names = ("state", "queue", "type", "key", "payload", "error", "until", "since")
    conditions = {"until": LATER} | {it: given.pop(it) for it in names if it in given}
    given = ARGUMENTS.get(function, {}) | given
    found = done = 0
    position = None
    while True:
        [step] = await rows(
            connection, function, conditions=conditions, quantity=2, position_id=position, **given
        )
        found, done, position = found + step["found"], done + step["done"], step["position_id"]
        assert step["ids"] == []
        if step["is_over"]:
            return found, done


async def move(
    connection: Connection, source: str = "default", why: list[str] | None = None, **given: Any
) -> tuple[int, int]:
    """Move what matches in the one queue into the other."""
    [step] = await rows(
        connection,
        "move_matching",
        conditions={"queue": source, "until": LATER} | given.pop("conditions", {}),
        queue=given.pop("to", "other"),
        **given,
    )
    (why if why is not None else []).extend(step["refusals"])
    return step["found"], step["done"]


async def queue_of(connection: Connection, *ids: int) -> list[str]:
    return [(await alive(connection, id_))["queue"] for id_ in ids]


@pytest.fixture
async def other(connection: Connection) -> None:
    await value(connection, "create_queue", name="other")


async def test_what_matches_is_cancelled_and_nothing_else(connection: Connection) -> None:
    first = await value(connection, "publish", queue="default", message={"n": 1}, type="a")
    later = await value(
        connection, "publish", queue="default", message={"n": 2}, delay=timedelta(days=1), type="a"
    )
    blocked = await value(
        connection, "publish", queue="default", message={"n": 3}, after=[later], type="a"
    )
    kept = await value(connection, "publish", queue="default", message={"n": 1}, type="b")
    held = await value(
        connection, "publish", queue="default", message={"n": 4}, type="a", priority=9
    )
    assert (await claim_one(connection))["id"] == held
    assert await act(connection, "cancel_matching", type="a", payload="$.n > 1") == (2, 2)
    assert await act(
        connection, "cancel_matching", type="a", reason="wrong", cancelled_by="ann"
    ) == (1, 1)
    [row] = await archived(connection, first)
    assert (row["status"], row["details"], row["cancelled_by"]) == (
        "rejected",
        "cancelled: wrong",
        "ann",
    )
    assert await archived(connection, blocked)
    assert (await alive(connection, kept))["state"] == "waiting"
    # A running one is left to its worker, unless it shall be stopped.
    assert (await alive(connection, held))["state"] == "locked"
    assert await act(connection, "cancel_matching", type="a", running=True) == (1, 1)
    assert await archived(connection, held)


async def test_scheduled_messages_are_due_at_once_and_notify_once_a_step(
    connection: Connection, notifications: Notifications
) -> None:
    day = timedelta(days=1)
    ids = [
        await value(connection, "publish", queue="default", message=n, delay=day) for n in range(3)
    ]
    blocked = await value(connection, "publish", queue="default", message=9, after=[ids[0]])
    await notifications.received()
    assert await act(connection, "run_now_matching", queue="default") == (3, 3)
    # A step ends at its quantity; the message that is not due is one of the first.
    assert await notifications.ids() == [ids[2:], ids[:2]]
    assert [(await alive(connection, it))["state"] for it in ids] == ["waiting"] * 3
    assert (await alive(connection, blocked))["blockers"] == 1
    with pytest.raises(InvalidArgumentError, match="no state 'waiting'"):
        await act(connection, "run_now_matching", state="waiting")


async def test_messages_of_unlogged_queues_are_changed_as_all_others(
    connection: Connection,
) -> None:
    await value(connection, "create_queue", name="ring", durable=False)
    for queue in ("ring", "default"):
        await value(connection, "publish", queue=queue, message=1, delay=timedelta(days=1))
    await publish(connection, 1, "ring")
    assert await act(connection, "run_now_matching") == (2, 2)
    assert await act(connection, "amend_matching", queue="ring") == (2, 2)
    assert await connection.fetchval("select sum(priority) from messages.message") == 14
    assert await act(connection, "cancel_matching") == (3, 3)
    assert await connection.fetchval("select count(*) from messages.message") == 0


async def test_the_priority_of_what_matches_is_set(connection: Connection) -> None:
    low, high = await publish(connection, 2)
    await connection.execute("update messages.message set key = 'k' where id = $1", high)
    assert await act(connection, "amend_matching", key="k") == (1, 1)
    assert (await claim_one(connection))["id"] == high
    assert (await alive(connection, low))["priority"] == 0
    assert (await alive(connection, high))["priority"] == 7


@pytest.mark.usefixtures("other")
async def test_a_moved_message_keeps_all_but_its_queue_and_wakes_that_one(
    connection: Connection, notifications: Notifications
) -> None:
    after, before = await publish(connection, 2)
    waits = await value(connection, "publish", queue="default", message=1, after=[after])
    await connection.execute("select from messages.await_result($1)", before)
    old = [dict(await alive(connection, it)) for it in (after, before)]
    await notifications.received()
    assert await move(connection, conditions={"state": "waiting"}) == (2, 2)
    [notified] = await notifications.payloads()
    assert notified.startswith("other")
    new = [dict(await alive(connection, it)) for it in (after, before)]
    assert new == [row | {"queue": "other"} for row in old]
    [held] = await rows(connection, "claim", queues=["other"])
    assert held["id"] == after
    await rows(connection, "finish", **lock_of(held))
    assert (await alive(connection, waits))["blockers"] is None
    assert await rows(connection, "claim", queues=["default"])


@pytest.mark.usefixtures("other")
async def test_a_move_obeys_what_a_publisher_into_that_queue_obeys(connection: Connection) -> None:
    ids = await publish(connection, 3)
    await value(
        connection, "alter_queue", name="other", payload_schema={"type": "integer", "minimum": 1}
    )
    why: list[str] = []
    assert await move(connection, why=why) == (3, 2)
    assert await queue_of(connection, *ids) == ["default", "other", "other"]
    assert why[0].startswith(f"message {ids[0]}: 'other' does not take")
    await value(connection, "alter_queue", name="other", payload_schema={}, max_bytes=5000)
    long = await value(connection, "publish", queue="default", message="x" * 6000)
    assert await move(connection, conditions={"since": LATER}) == (0, 0)
    assert await move(connection, why=why) == (2, 1)
    assert await queue_of(connection, long) == ["default"]
    assert "has 6004 bytes" in why[1]


@pytest.mark.usefixtures("other")
async def test_a_move_fills_a_queue_up_to_its_capacity_only(connection: Connection) -> None:
    ids, why = await publish(connection, 4), list[str]()
    await value(connection, "alter_queue", name="other", capacity=3)
    # What this transaction has reserved for its own messages does not count twice.
    async with connection.transaction():
        await publish(connection, 1, "other")
        assert await move(connection, why=why) == (4, 2)
        with pytest.raises(QueueFullError):
            async with connection.transaction():
                await publish(connection, 1, "other")
    assert await queue_of(connection, *ids) == ["other"] * 2 + ["default"] * 2
    assert why == [f"message {it}: queue 'other' is full" for it in ids[2:]]
    with pytest.raises(QueueFullError):
        await publish(connection, 1, "other")
    await rows(connection, "claim", queues=["other"], quantity=2)
    await publish(connection, 1, "other")
    assert await move(connection) == (2, 1)


@pytest.mark.usefixtures("other")
async def test_no_two_messages_of_a_queue_get_one_dedup_key(
    connection: Connection, connect: Connect
) -> None:
    def send(queue: str, key: str, by: Connection = connection, **options: Any) -> Any:
        return value(by, "publish", queue=queue, message=1, dedup_key=key, **options)

    free, taken = await send("default", "free"), await send("default", "taken")
    windowed = await send("default", "windowed")
    await send("other", "taken")
    await send("other", "windowed", dedup_window=timedelta(hours=1))
    [gone] = [
        row
        for row in await rows(connection, "claim", queues=["other"], quantity=2)
        if row["dedup_key"] == "windowed"
    ]
    await rows(connection, "finish", **lock_of(gone))
    why: list[str] = []
    assert await move(connection, why=why) == (3, 1)
    assert await queue_of(connection, free, taken, windowed) == ["other", "default", "default"]
    assert "has its dedup_key" in str(why)
    assert "the dedup_window is not over" in str(why)
    # Its own window lets a message come back.
    own = await send("default", "own", dedup_window=timedelta(hours=1))
    assert await move(connection, conditions={"dedup_key": "own"}) == (1, 1)
    assert await send("default", "own", dedup_window=timedelta(hours=1)) == own
    back = {"dedup_key": "own"}
    assert await move(connection, "other", to="default", conditions=back) == (1, 1)
    assert await send("other", "free") == free
    assert await send("default", "free") != free
    # A publisher of the key that has not committed yet is waited for.
    publisher, observer = await connect(), await connect()
    late = await send("default", "late")
    transaction = publisher.transaction()
    await transaction.start()
    await send("other", "late", publisher)
    moving = asyncio.create_task(move(connection, conditions={"dedup_key": "late"}))
    await until_blocked(observer, connection)
    await transaction.commit()
    assert await moving == (1, 0)
    assert await queue_of(connection, late) == ["default"]


@pytest.mark.usefixtures("other")
async def test_a_duplicate_replaces_no_message_that_was_moved_meanwhile(
    connection: Connection, connect: Connect
) -> None:
    moved = await value(connection, "publish", queue="default", message=1, dedup_key="k")
    publisher, observer = await connect(), await connect()
    transaction = connection.transaction()
    await transaction.start()
    assert await move(connection) == (1, 1)
    replacing = asyncio.create_task(
        value(
            publisher, "publish", queue="default", message=2, dedup_key="k", on_duplicate="replace"
        )
    )
    await until_blocked(observer, publisher)
    await transaction.commit()
    new = await replacing
    assert new != moved
    assert (await alive(connection, moved))["message"] == 1
    assert (await alive(connection, new))["message"] == 2


@pytest.mark.usefixtures("other")
async def test_what_cannot_be_moved_stays_with_a_reason(connection: Connection) -> None:
    stepped, child = await publish(connection, 2)
    held = await claim_one(connection)
    assert held["id"] == stepped
    await value(connection, "alter_queue", name="other", ordered=True)
    await connection.execute("update messages.message set key = 'k'")
    await connection.execute(
        "select from messages.await_end($1, $2, 'child', array[$3::bigint])",
        stepped,
        held["lock_token"],
        child,
    )
    why: list[str] = []
    assert await move(connection, why=why) == (2, 0)
    assert f"message {stepped}: it has recorded steps" in why
    assert f"message {child}: a message waits for its end" in str(why)
    await value(connection, "create_queue", name="ring", durable=False)
    for source, to in (("default", "ring"), ("ring", "other")):
        with pytest.raises(InvalidArgumentError, match="unlogged"):
            await move(connection, source, to=to)
    with pytest.raises(InvalidArgumentError, match="in this queue already"):
        await move(connection, to="default")
    for source, to in (("default", "nowhere"), ("nowhere", "other")):
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            await move(connection, source, to=to)
    with pytest.raises(InvalidArgumentError, match="condition queue"):
        await rows(connection, "move_matching", conditions={"until": LATER}, queue="other")


@pytest.mark.usefixtures("other")
async def test_a_message_that_was_the_first_of_its_key_lets_the_next_one_go(
    connection: Connection, notifications: Notifications
) -> None:
    await value(connection, "alter_queue", name="default", ordered=True, max_attempts=2)
    first, second = [
        await value(connection, "publish", queue="default", message=n, key="k") for n in range(2)
    ]
    held = await claim_one(connection)
    assert held["id"] == first
    assert not await rows(connection, "claim")
    await rows(connection, "retry", **lock_of(held), delay=timedelta(days=1))
    assert not await rows(connection, "claim")
    await notifications.received()
    assert await move(connection, conditions={"state": "scheduled"}) == (1, 1)
    assert await notifications.received()
    assert (await claim_one(connection))["id"] == second


@pytest.mark.usefixtures("other")
async def test_a_drop_of_the_queue_waits_for_a_move_into_it(
    connection: Connection, connect: Connect
) -> None:
    await publish(connection, 1)
    dropper, observer = await connect(), await connect()
    transaction = connection.transaction()
    await transaction.start()
    assert await move(connection) == (1, 1)
    dropping = asyncio.create_task(value(dropper, "drop_queue", name="other"))
    await until_blocked(observer, dropper)
    await transaction.commit()
    with pytest.raises(QueueNotEmptyError):
        await dropping


@pytest.mark.usefixtures("other")
async def test_what_another_transaction_has_locked_is_left_alone(
    connection: Connection, connect: Connect
) -> None:
    first, second = await publish(connection, 2)
    await connection.execute("update messages.message set available_at = now() + interval '1 day'")
    claimer = await connect()
    async with claimer.transaction():
        await claimer.execute("select from messages.message where id = $1 for update", first)
        for function in ACTIONS[1:]:
            assert await act(connection, function, queue="default") == (2, 1), function
            await connection.execute(
                "update messages.message set queue = 'default', state = 'scheduled', "
                "available_at = now() + interval '1 day' where id = $1",
                second,
            )
        assert await act(connection, "cancel_matching") == (2, 1)
    assert (await alive(connection, first))["queue"] == "default"


@pytest.mark.usefixtures("other")
async def test_a_claim_that_chose_a_message_before_its_move_leaves_it(
    connection: Connection,
) -> None:
    ids = await publish(connection, 2)
    assert await move(connection, conditions={"payload": "$ == 0"}) == (1, 1)
    locked = await value(connection, "notifyq.lock_waiting", ids=ids, queue="default")
    assert locked == ids[1:]


@pytest.mark.parametrize("policy", [{}, {"fair": True}, {"ordered": True}, {"key_concurrency": 4}])
@pytest.mark.usefixtures("other")
async def test_no_message_is_lost_or_handled_twice_while_all_run_at_once(
    connection: Connection, connect: Connect, policy: dict[str, Any]
) -> None:
    """Two workers, two moves to and fro, and a cancellation of a third: each id ends once."""
    if policy:
        await value(connection, "alter_queue", name="default", **policy)
    ids = await publish(connection, 600)
    await connection.execute("update messages.message set key = 'k' || id % 20")
    handled: Counter[int] = Counter()

    async def work() -> None:
        mine = await connect()
        while claimed := await rows(mine, "claim", quantity=7):
            done = await rows(
                mine,
                "finish_many",
                ids=[it["id"] for it in claimed],
                lock_tokens=[it["lock_token"] for it in claimed],
                statuses=["success"] * len(claimed),
            )
            handled.update(row[0] for row in done)

    async def shift(source: str, to: str) -> None:
        mine = await connect()
        for _ in range(6):
            await move(mine, source, to=to, quantity=50)
            await rows(
                mine,
                "amend_matching",
                conditions={"until": LATER, "queue": to},
                priority=2,
                quantity=20,
            )

    async def cancel() -> int:
        return (await act(await connect(), "cancel_matching", payload="$ > 400"))[1]

    *_, cancelled = await asyncio.gather(
        work(), work(), shift("default", "other"), shift("other", "default"), cancel()
    )
    await work()
    ended = await connection.fetch("select id, status from messages.message_archive")
    assert sorted(row["id"] for row in ended) == ids
    assert Counter(row["status"] for row in ended) == {"success": sum(handled.values())} | (
        {"rejected": cancelled} if cancelled else {}
    )
    assert set(handled.values()) == {1}


@pytest.mark.parametrize("function", ACTIONS)
@pytest.mark.usefixtures("other")
async def test_wrong_arguments_are_refused_and_change_nothing(
    connection: Connection, function: str
) -> None:
    await publish(connection, 1)
    given = ARGUMENTS.get(function, {})
    good = {"queue": "default", "until": LATER}
    for conditions, reason in (
        ({"queue": "default"}, "until is missing"),
        (None, "until is missing"),
        ([], "JSON object"),
        (good | {"quue": "a"}, "unknown condition 'quue'"),
        (good | {"subscriber": "s"}, "no subscriber"),
        (good | {"state": "dead"}, "no state 'dead'"),
        (good | {"until": "soon"}, "cannot be understood"),
    ):
        with pytest.raises(InvalidArgumentError, match=reason):
            await rows(connection, function, conditions=conditions, **given)
    for options in ({"quantity": 0}, {"quantity": None}, {"quantity": 100001}):
        with pytest.raises(InvalidArgumentError):
            await rows(connection, function, conditions=good, **options, **given)
    for name in given:
        with pytest.raises((InvalidArgumentError, QueueNotFoundError)):
            await rows(connection, function, conditions=good, **{name: None})
    assert await act(connection, function, key="none", queue="default") == (0, 0)


async def test_steps_stop_in_time_and_go_on_where_they_stopped(connection: Connection) -> None:
    await publish(connection, 12_000)
    conditions = {"until": LATER, "payload": "$ == 3"}
    counted = await rows(connection, "notifyq.count_live_matching", conditions=conditions)
    assert (counted[0]["found"], counted[0]["is_over"]) == (1, True)
    steps, position = 0, None
    while True:
        [step] = await rows(
            connection,
            "cancel_matching",
            conditions=conditions,
            position_id=position,
            budget=timedelta(0),
        )
        steps += 1
        if step["is_over"]:
            break
        assert position is None or step["position_id"] < position
        position = step["position_id"]
    assert steps == 121
    assert await connection.fetchval("select count(*) from messages.message_archive") == 1
    # What is published after the preview is not touched.
    until = datetime.now(UTC)
    await publish(connection, 1)
    assert await act(connection, "amend_matching", until=until.isoformat(), payload="$ == 0") == (
        1,
        1,
    )


async def test_grants_of_the_queue_and_of_the_functions_are_obeyed(connection: Connection) -> None:
    await connection.execute("set role notifyq_reader")
    counted = await rows(connection, "notifyq.count_live_matching", conditions={"until": LATER})
    assert counted[0]["found"] == 0
    await connection.execute("reset role")
    for role in ("reader", "publisher", "worker"):
        await connection.execute(f"set role notifyq_{role}")
        for function in ACTIONS:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await rows(
                    connection, function, conditions={"until": LATER}, **ARGUMENTS.get(function, {})
                )
        await connection.execute("reset role")
