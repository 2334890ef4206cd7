"""Finishing and retrying: one archive row under the right token, nothing under any other."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError
from support.database import (
    Connection,
    Notifications,
    alive,
    archived,
    claim_one,
    expire,
    live,
    lock_of,
    make_due,
    one_row,
    publish,
    rows,
    value,
)

STATUSES = ("success", "rejected", "failed", "lock_expired")


async def settle(connection: Connection, function: str, id_: int, token: int) -> bool:
    return bool(await value(connection, function, id=id_, lock_token=token))


async def publish_with_attempts(connection: Connection, attempts: int, **policy: Any) -> int:
    await value(connection, "alter_queue", name="default", max_attempts=attempts, **policy)
    (id_,) = await publish(connection, 1)
    return id_


@pytest.mark.parametrize("status", STATUSES)
async def test_finish_moves_the_whole_message_to_the_archive(
    connection: Connection, status: str
) -> None:
    await value(
        connection,
        "publish",
        queue="default",
        message={"n": 1},
        priority=4,
        type="t",
        headers={"h": 1},
        dedup_key="k",
    )
    message = await claim_one(connection, "w1")
    before = await connection.fetchval("select clock_timestamp()")
    done = await value(
        connection, "finish", **lock_of(message), status=status, details="why", result={"r": 1}
    )

    assert done is True
    assert await live(connection, message["id"]) is None
    (row,) = await archived(connection, message["id"])
    same = set(row.keys()) & set(message.keys()) - {"details"}
    assert {key: row[key] for key in same} == {key: message[key] for key in same}
    assert row["handled_by"] == "w1"
    assert (row["status"], row["details"], row["result"]) == (status, "why", {"r": 1})
    assert before <= row["archived_at"] <= await connection.fetchval("select clock_timestamp()")


async def test_success_is_the_default(connection: Connection) -> None:
    await publish(connection, 1)
    message = await claim_one(connection)
    assert await settle(connection, "finish", message["id"], message["lock_token"])
    (row,) = await archived(connection, message["id"])
    assert (row["status"], row["details"], row["result"]) == ("success", None, None)


async def test_only_the_present_token_settles(connection: Connection) -> None:
    for function in ("finish", "retry", "release", "extend"):
        mine, foreign = await publish(connection, 2)
        await connection.execute(
            "update messages.message set lock_token = 40 where id = $1", foreign
        )
        await rows(connection, "claim", quantity=2)
        (waiting,) = await publish(connection, 1)
        before = [await live(connection, id_) for id_ in (mine, foreign, waiting)]

        for token in (0, 2, 41, -1, 2**63 - 1):
            assert await settle(connection, function, mine, token) is False
        for nothing in ((10**9, 1), (waiting, 0)):
            assert await settle(connection, function, *nothing) is False
        assert [await live(connection, id_) for id_ in (mine, foreign, waiting)] == before
        assert await archived(connection, mine) == []
        assert await settle(connection, function, mine, 1) is True
        await connection.execute("delete from messages.message")


@pytest.mark.parametrize("first", ["finish", "retry", "release"])
@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_a_lock_ends_once(connection: Connection, first: str, max_attempts: int) -> None:
    id_ = await publish_with_attempts(connection, max_attempts)
    message = await claim_one(connection)
    assert await settle(connection, first, id_, message["lock_token"]) is True
    after = (await live(connection, id_), await archived(connection, id_))
    for second in ("finish", "retry", "release", "extend"):
        assert await settle(connection, second, id_, message["lock_token"]) is False, second
        assert (await live(connection, id_), await archived(connection, id_)) == after


async def test_an_expired_lock_still_finishes_until_it_is_reaped(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    message = await claim_one(connection)
    await expire(connection, id_)
    assert await settle(connection, "finish", id_, message["lock_token"]) is True
    assert await value(connection, "reap") == 0
    assert [row["status"] for row in await archived(connection, id_)] == ["success"]


async def test_finish_many_returns_the_ids_that_were_locked_under_their_tokens(
    connection: Connection,
) -> None:
    ids = await publish(connection, 5)
    await rows(connection, "claim", quantity=4)
    finished = await rows(
        connection,
        "finish_many",
        ids=[ids[3], ids[1], ids[0], ids[4], 10**9, ids[2]],
        lock_tokens=[1, 1, 9, 1, 1, 1],
        statuses=["failed", "success", "success", "success", "success", "rejected"],
        details=["f", None, None, None, None, "r"],
        results=[1, 2, 3, 4, 5, {"six": 6}],
    )

    assert {row[0] for row in finished} == {ids[1], ids[2], ids[3]}
    found = await connection.fetch(
        "select id, status, details, result from messages.message_archive order by id"
    )
    assert [tuple(row) for row in found] == [
        (ids[1], "success", None, 2),
        (ids[2], "rejected", "r", {"six": 6}),
        (ids[3], "failed", "f", 1),
    ]
    assert [row["id"] for row in await rows(connection, "message_list")] == [ids[0], ids[4]]


async def test_finish_many_without_details_and_results_leaves_them_empty(
    connection: Connection,
) -> None:
    ids = await publish(connection, 2)
    await rows(connection, "claim", quantity=2)
    await rows(
        connection, "finish_many", ids=ids, lock_tokens=[1, 1], statuses=["failed", "success"]
    )
    found = await rows(connection, "archive_list")
    assert {(row["details"], row["result"]) for row in found} == {(None, None)}


@pytest.mark.parametrize(("tokens", "statuses"), [([1], ["success"] * 2), ([1, 1], ["success"])])
async def test_finish_many_refuses_lists_of_unequal_length(
    connection: Connection, tokens: list[int], statuses: list[str]
) -> None:
    ids = await publish(connection, 2)
    await rows(connection, "claim", quantity=2)
    with pytest.raises(InvalidArgumentError, match="same length"):
        await rows(connection, "finish_many", ids=ids, lock_tokens=tokens, statuses=statuses)
    assert len(await rows(connection, "message_list", state="locked")) == 2


async def test_a_status_must_be_given(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    await claim_one(connection)
    with pytest.raises((asyncpg.NotNullViolationError, InvalidArgumentError)):
        await value(connection, "finish", id=id_, lock_token=1, status=None)
    assert await live(connection, id_)


async def test_the_archive_has_the_transaction_id_of_the_finish(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    message = await claim_one(connection)
    async with connection.transaction():
        await settle(connection, "finish", id_, message["lock_token"])
        xid = await connection.fetchval("select pg_current_xact_id()")
    (row,) = await archived(connection, id_)
    assert row["xid"] == xid


@pytest.mark.parametrize("status", ["failed", "rejected"])
async def test_a_retried_message_can_be_claimed_until_its_attempts_are_used_up(
    connection: Connection, status: str
) -> None:
    for max_attempts in (1, 2, 4):
        id_ = await publish_with_attempts(connection, max_attempts)
        for attempt in range(1, max_attempts + 1):
            message = await claim_one(connection)
            assert (message["id"], message["attempts"]) == (id_, attempt)
            assert message["details"] == (None if attempt == 1 else f"no. {attempt - 1}")
            assert await value(
                connection,
                "retry",
                id=id_,
                lock_token=message["lock_token"],
                details=f"no. {attempt}",
                status=status,
            )
            if attempt < max_attempts:
                waiting = await alive(connection, id_)
                assert waiting["state"] == "scheduled"
                assert waiting["locked_by"] is None
                assert waiting["lock_token"] > message["lock_token"]
                assert await archived(connection, id_) == []
                await make_due(connection, id_)

        assert await live(connection, id_) is None
        (row,) = await archived(connection, id_)
        assert (row["status"], row["attempts"]) == (status, max_attempts)
        assert row["details"] == f"no. {max_attempts}"


async def test_the_backoff_doubles_up_to_its_bound_less_at_most_half(
    connection: Connection,
) -> None:
    for attempts, least, most in [
        (1, 1, 2),
        (2, 2, 4),
        (3, 4, 8),
        (5, 15, 30),
        (30, 15, 30),
        (1000, 15, 30),
        (0, 1, 2),
    ]:
        found = await one_row(
            connection,
            "select min(d.delay), max(d.delay), count(distinct d.delay) from ("
            "  select notifyq.backoff('2 seconds', '30 seconds', $1) as delay"
            "  from generate_series(1, 500)"
            ") as d",
            attempts,
        )
        shortest, longest, different = found
        assert timedelta(seconds=least) <= shortest < timedelta(seconds=least * 1.1)
        assert timedelta(seconds=most * 0.9) < longest <= timedelta(seconds=most)
        assert different > 400


@pytest.mark.parametrize(("delay", "least", "most"), [(None, 4, 9), (3600, 3600, 3609)])
async def test_retry_waits_for_its_own_delay_or_the_backoff_of_the_queue(
    connection: Connection, delay: int | None, least: int, most: int
) -> None:
    eight = timedelta(seconds=8)
    id_ = await publish_with_attempts(connection, 3, backoff=eight, backoff_max=eight)
    message = await claim_one(connection)
    before = await connection.fetchval("select clock_timestamp()")
    given = {"delay": timedelta(seconds=delay)} if delay else {}
    await value(connection, "retry", **lock_of(message), **given)
    waiting = await alive(connection, id_)
    assert timedelta(seconds=least) <= waiting["available_at"] - before < timedelta(seconds=most)


@pytest.mark.parametrize(
    ("minutes", "notifications_sent", "claimed"), [(0, 1, 1), (0.5, 1, 0), (2, 0, 0)]
)
async def test_retry_notifies_at_once_or_sleeping_workers(
    connection: Connection,
    notifications: Notifications,
    minutes: float,
    notifications_sent: int,
    claimed: int,
) -> None:
    id_ = await publish_with_attempts(connection, 2)
    message = await claim_one(connection)
    await notifications.received()
    await value(connection, "retry", **lock_of(message), delay=timedelta(minutes=minutes))
    assert await notifications.payloads() == [f"default:{id_}"] * notifications_sent
    assert [row["attempts"] for row in await rows(connection, "claim")] == [2] * claimed


async def retried(connection: Connection, messages: list[asyncpg.Record], **more: Any) -> list[int]:
    arguments = {
        "ids": [message["id"] for message in messages],
        "lock_tokens": [message["lock_token"] for message in messages],
    }
    return [row[0] for row in await rows(connection, "retry_many", **arguments | more)]


async def claim_all(connection: Connection, quantity: int) -> list[asyncpg.Record]:
    return await rows(connection, "claim", queues=["default"], quantity=quantity, worker="w")


async def test_many_retries_notify_a_queue_once(
    connection: Connection, notifications: Notifications
) -> None:
    await publish_with_attempts(connection, 2)
    ids = await publish(connection, 9)
    await notifications.received()
    messages = await claim_all(connection, 10)
    assert len(await retried(connection, messages, delays=[timedelta(0)] * 10)) == 10
    (notification,) = await notifications.received()
    assert notification.payload == f"default:{ids[0] - 1}-{ids[-1]}"


async def test_many_last_attempts_are_archived_with_one_notification(
    connection: Connection, notifications: Notifications
) -> None:
    await publish(connection, 10)
    messages = await claim_all(connection, 10)
    assert len(await retried(connection, messages)) == 10
    assert len(await notifications.received("dead_message")) == 1


async def test_each_of_many_retries_goes_by_its_own_token_and_values(
    connection: Connection,
) -> None:
    await publish_with_attempts(connection, 2)
    await publish(connection, 4)
    again, gives_up, rejected, lost, twice = await claim_all(connection, 5)
    await value(connection, "release", **lock_of(lost))
    messages = [twice, rejected, again, lost, gives_up, twice]
    held = await retried(
        connection,
        messages,
        delays=[timedelta(hours=1), None, timedelta(minutes=1), None, None, timedelta(hours=2)],
        details=["twice", "rejected", "again", "lost", "gives up", "second"],
        statuses=[None, "rejected", None, None, "failed", None],
        error_types=["T", "R", "A", "L", "G", "S"],
        errors=["t", "r", None, "l", "g", "s"],
        tracebacks=["tt", "rr", "aa", "ll", "gg", "ss"],
        give_ups=[False, True, None, True, True, False],
    )
    assert held == sorted(row["id"] for row in (again, gives_up, rejected, twice))
    found = {}
    for message in messages:
        for row in await rows(connection, "attempts", id=message["id"]):
            found[message["id"]] = (row["error_type"], row["details"], row["traceback"])
    assert found == {
        again["id"]: ("A", "again", "aa"),
        gives_up["id"]: ("G", "g", "gg"),
        rejected["id"]: ("R", "r", "rr"),
        twice["id"]: ("T", "t", "tt"),
    }
    (ended,) = await archived(connection, rejected["id"])
    assert (ended["status"], ended["details"]) == ("rejected", "rejected")
    for message, least in ((again, 59), (twice, 3599)):
        kept = await alive(connection, message["id"])
        assert kept["lock_token"] == message["lock_token"] + 1
        assert kept["available_at"] - message["locked_at"] > timedelta(seconds=least)
    assert await retried(connection, messages) == []


async def test_many_retries_refuse_arrays_of_other_lengths(connection: Connection) -> None:
    await publish(connection, 2)
    messages = await claim_all(connection, 2)
    with pytest.raises(InvalidArgumentError, match="must have the same length"):
        await retried(connection, messages, details=["one"])
    assert len(await retried(connection, messages)) == 2


async def test_arrays_that_do_not_begin_at_one_are_retried_all_the_same(
    connection: Connection,
) -> None:
    await publish(connection, 2)
    first, second = [row["id"] for row in await claim_all(connection, 2)]
    held = await connection.fetch(
        "select id from messages.retry_many("
        f"'[0:1]={{{first},{second}}}', '[0:1]={{1,1}}', details => '[-1:0]={{one,two}}')"
    )
    assert [row["id"] for row in held] == [first, second]
    for id_, details in ((first, "one"), (second, "two")):
        assert [row["details"] for row in await archived(connection, id_)] == [details]


async def test_many_expired_locks_notify_a_queue_once(
    connection: Connection, notifications: Notifications
) -> None:
    await publish_with_attempts(connection, 2, backoff=timedelta(0))
    await publish(connection, 9)
    messages = await claim_all(connection, 10)
    for message in messages:
        await expire(connection, message["id"])
    await notifications.received()
    assert await value(connection, "reap") == 10
    assert len(await notifications.received()) == 1
