"""The history of attempts, and what sets the number of attempts of a message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import InvalidArgumentError
from support.database import (
    Connect,
    Connection,
    alive,
    archived,
    claim_one,
    expire,
    make_due,
    publish,
    rows,
    value,
)


async def history(connection: Connection, id_: int) -> list[dict[str, Any]]:
    return [dict(row) for row in await rows(connection, "attempts", id=id_)]


async def published(connection: Connection, attempts: int = 1, **policy: Any) -> int:
    await value(connection, "alter_queue", name="default", max_attempts=attempts, **policy)
    (id_,) = await publish(connection, 1)
    return id_


async def fail(connection: Connection, id_: int, **arguments: Any) -> asyncpg.Record:
    """Claim the one message that there is and retry it."""
    await make_due(connection, id_)
    await value(connection, "stage_due")
    message = await claim_one(connection, "w1")
    key = {"id": id_, "lock_token": message["lock_token"]}
    assert await value(connection, "retry", **key, **arguments)
    return message


async def test_each_failed_attempt_is_kept_with_its_error_and_when_the_next_was_due(
    connection: Connection,
) -> None:
    id_ = await published(connection, 3)
    before = await connection.fetchval("select clock_timestamp()")
    first = await fail(
        connection,
        id_,
        delay=timedelta(hours=1),
        details="ValueError: a\n  at x",
        error_type="ValueError",
        error="a",
        traceback="Traceback: …",
    )
    second = await fail(connection, id_, delay=timedelta(0), details="b")
    one, two = await history(connection, id_)
    due = one.pop("retry_at") - one["ended_at"]
    assert timedelta(minutes=59) < due <= timedelta(hours=1)
    assert before < one.pop("ended_at") < two["ended_at"] <= two["retry_at"] + timedelta(seconds=1)
    assert one == {
        "message_id": id_,
        "lock_token": first["lock_token"],
        "locked_at": first["locked_at"],
        "number": 1,
        "status": "failed",
        "queue": "default",
        "handled_by": "w1",
        "error_type": "ValueError",
        "details": "a",
        "traceback": "Traceback: …",
    }
    # The message itself has the details as well.
    message = await alive(connection, id_)
    assert message["details"] == "b"
    assert (two["lock_token"], two["number"], two["details"]) == (second["lock_token"], 2, "b")
    assert two["error_type"] is two["traceback"] is None


async def test_the_last_attempt_is_kept_once_with_its_error(connection: Connection) -> None:
    id_ = await published(connection)
    await fail(connection, id_, details="KeyError: x\n  at y", error_type="KeyError", error="x")
    (archive,) = await archived(connection, id_)
    assert (archive["status"], archive["details"]) == ("failed", "KeyError: x\n  at y")
    (only,) = await history(connection, id_)
    assert (only["number"], only["retry_at"], only["error_type"], only["details"]) == (
        1,
        None,
        "KeyError",
        "x",
    )


async def test_a_message_that_succeeds_keeps_the_attempts_before(connection: Connection) -> None:
    id_ = await published(connection, 2)
    await fail(connection, id_, delay=timedelta(0))
    message = await claim_one(connection)
    assert await value(connection, "finish", id=id_, lock_token=message["lock_token"])
    assert [row["number"] for row in await history(connection, id_)] == [1]
    (archive,) = await archived(connection, id_)
    assert (archive["status"], archive["attempts"]) == ("success", 2)


async def test_success_leaves_no_history(connection: Connection) -> None:
    ids = await publish(connection, 3)
    claimed = await rows(connection, "claim", quantity=3)
    await value(connection, "finish", id=claimed[0]["id"], lock_token=1)
    await connection.fetch(
        "select messages.finish_many($1, array[1, 1], array['success', 'success']"
        "::messages.message_status[])",
        ids[1:],
    )
    await publish(connection, 1)
    await rows(connection, "take", queue="default")
    assert await connection.fetchval("select count(*) from messages.attempt") == 0


@pytest.mark.parametrize("status", ["rejected", "failed", "lock_expired"])
async def test_finishing_without_success_is_an_attempt_as_well(
    connection: Connection, status: str
) -> None:
    ids = await publish(connection, 2)
    await rows(connection, "claim", quantity=2, worker="w1")
    await value(connection, "finish", id=ids[0], lock_token=1, status=status, details="no")
    await connection.fetch(
        "select messages.finish_many(array[$1::bigint], array[1], "
        "array[$2::messages.message_status], array['no'])",
        ids[1],
        status,
    )
    for id_ in ids:
        (only,) = await history(connection, id_)
        assert (only["status"], only["details"], only["handled_by"]) == (status, "no", "w1")
        (archive,) = await archived(connection, id_)
        assert (only["ended_at"], only["retry_at"]) == (archive["archived_at"], None)


async def test_a_message_that_was_not_claimed_had_no_attempt(connection: Connection) -> None:
    id_ = await published(connection, 2)
    await fail(connection, id_, delay=timedelta(0), details="first")
    message = await claim_one(connection)
    await value(connection, "release", id=id_, lock_token=message["lock_token"])
    assert await value(connection, "cancel", id=id_)
    assert [row["details"] for row in await history(connection, id_)] == ["first"]


async def test_expired_locks_are_attempts_with_a_backoff_until_they_are_used_up(
    connection: Connection,
) -> None:
    id_ = await published(connection, 2, backoff=timedelta(minutes=5))
    for _ in range(2):
        await make_due(connection, id_)
        await value(connection, "stage_due")
        await claim_one(connection, "w1")
        await expire(connection, id_)
        assert await value(connection, "reap") == 1
    one, two = await history(connection, id_)
    assert [(row["number"], row["status"], row["details"]) for row in (one, two)] == [
        (number, "lock_expired", "lock of w1 expired") for number in (1, 2)
    ]
    assert timedelta(minutes=2) < one["retry_at"] - one["ended_at"] <= timedelta(minutes=5)
    assert two["retry_at"] is None
    (archive,) = await archived(connection, id_)
    assert (archive["status"], archive["attempts"]) == ("lock_expired", 2)


# Of the message, of the handler, of the queue; and how many there are.
PRECEDENCE = [(None, None, 2, 2), (None, 3, 2, 3), (None, 1, 2, 1), (3, 1, 2, 3), (1, 3, 2, 1)]


@pytest.mark.parametrize("end", ["retry", "reap"])
async def test_max_attempts_of_the_message_precedes_handler_and_queue(
    connection: Connection, end: str
) -> None:
    for message, handler, queue, expected in PRECEDENCE:
        await value(
            connection, "alter_queue", name="default", max_attempts=queue, backoff=timedelta(0)
        )
        id_ = await value(connection, "publish", queue="default", message=1, max_attempts=message)
        for _ in range(expected):
            assert await archived(connection, id_) == []
            claims = {"queues": ["default"], "max_attempts": [handler]}
            (held,) = await rows(connection, "claim", **claims)
            if end == "retry":
                await value(connection, "retry", id=id_, lock_token=held["lock_token"])
            else:
                await expire(connection, id_)
                await value(connection, "reap")
        (archive,) = await archived(connection, id_)
        assert archive["attempts"] == expected
        assert len(await history(connection, id_)) == expected


async def test_max_attempts_of_a_handler_holds_for_its_own_lock_only(
    connection: Connection,
) -> None:
    id_ = await published(connection, 1)
    (held,) = await rows(connection, "claim", queues=["default"], max_attempts=[5])
    await value(connection, "retry", id=id_, lock_token=held["lock_token"], delay=timedelta(0))
    # By a worker without max_attempts, such as an older one.
    await fail(connection, id_)
    assert len(await archived(connection, id_)) == 1


async def test_each_queue_of_a_claim_has_a_number_of_its_own(connection: Connection) -> None:
    await value(connection, "create_queue", name="a")
    await publish(connection, 1, "a")
    await publish(connection, 1)
    found = await rows(
        connection, "claim", queues=["default", "a"], quantity=2, max_attempts=[None, 7]
    )
    assert {row["queue"]: row["handler_attempts"] for row in found} == {"default": None, "a": 7}


async def test_a_claim_refuses_invalid_max_attempts(connection: Connection) -> None:
    for wrong in (
        {"queues": ["default"], "max_attempts": [0]},
        {"queues": ["default"], "max_attempts": [1001]},
        {"queues": ["default"], "max_attempts": [1, 1]},
        {"max_attempts": [1]},
    ):
        with pytest.raises(InvalidArgumentError, match="max_attempts must"):
            await rows(connection, "claim", **wrong)


@pytest.mark.parametrize("status", ["failed", "rejected"])
async def test_giving_up_archives_at_once(connection: Connection, status: str) -> None:
    id_ = await published(connection, 5)
    await fail(connection, id_, status=status, details="d", error="e", give_up=True)
    (archive,) = await archived(connection, id_)
    assert (archive["status"], archive["details"], archive["attempts"]) == (status, "d", 1)
    (only,) = await history(connection, id_)
    assert (only["status"], only["details"], only["retry_at"]) == (status, "e", None)


async def test_a_redriven_message_has_a_history_of_its_own(connection: Connection) -> None:
    id_ = await published(connection)
    await fail(connection, id_, details="first")
    again = await connection.fetchval("select messages.dead_retry($1)", id_)
    assert await history(connection, again) == []
    await fail(connection, again, details="second")
    assert [row["details"] for row in await history(connection, id_)] == ["first"]
    assert [row["details"] for row in await history(connection, again)] == ["second"]


async def test_deleting_a_dead_message_erases_its_attempts(connection: Connection) -> None:
    first, second = await publish(connection, 2)
    await rows(connection, "claim", quantity=2)
    for id_ in (first, second):
        await value(connection, "retry", id=id_, lock_token=1, traceback="secret")
    assert await connection.fetchval("select messages.dead_delete($1)", first) == 1
    assert await history(connection, first) == []
    assert len(await history(connection, second)) == 1


async def test_texts_of_any_length_are_cut(connection: Connection) -> None:
    id_ = await published(connection)
    text = "x" * 100_000
    await fail(connection, id_, error_type=text, error=text, traceback=text)
    (only,) = await history(connection, id_)
    assert (len(only["error_type"]), len(only["details"]), len(only["traceback"])) == (
        200,
        8000,
        32_000,
    )


async def test_a_rolled_back_retry_leaves_no_history(connection: Connection) -> None:
    id_ = await published(connection)
    await connection.execute("begin")
    await fail(connection, id_)
    await connection.execute("rollback")
    assert await history(connection, id_) == []
    # And the next one under the same token, in the same session, is kept.
    await fail(connection, id_, details="again")
    assert [row["details"] for row in await history(connection, id_)] == ["again"]


async def test_a_worker_reads_no_history_of_a_queue_that_is_not_its_own(
    connection: Connection, connect: Connect
) -> None:
    id_ = await published(connection)
    await fail(connection, id_)
    for role, is_shown in (("worker", False), ("reader", True)):
        await value(connection, "grant_queue", queue="default", role="notifyq_publisher")
        session = await connect()
        await session.execute(f"set role notifyq_{role}")
        assert bool(await history(session, id_)) is is_shown


INSERT = """
    insert into messages.attempt
      (message_id, lock_token, locked_at, ended_at, number, status, queue)
    values ($1, 1, $2, $2, 1, 'failed', 'default')
"""
HOME = """
    select split_part(tableoid::regclass::text, '.', 2) from messages.attempt where message_id = $1
"""


async def test_history_is_kept_by_day_and_dropped_with_the_retention(
    connection: Connection,
) -> None:
    today = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    kept, old = today - timedelta(days=29), today - timedelta(days=32)
    await connection.execute(INSERT, 1, kept)
    await connection.execute(INSERT, 2, old)
    assert await connection.fetchval(HOME, 2) == "attempt_default"
    report = (await rows(connection, "maintain"))[0]
    assert (report["partitions_made"], report["partitions_dropped"]) == (2, 1)
    assert await connection.fetchval(HOME, 1) == f"attempt_{kept:%Y%m%d}"
    assert await history(connection, 2) == []
    assert (await rows(connection, "maintain"))[0]["partitions_dropped"] == 0


async def test_a_new_attempt_is_in_the_partition_of_its_day(connection: Connection) -> None:
    id_ = await published(connection)
    await fail(connection, id_)
    day = await connection.fetchval(
        "select to_char(ended_at at time zone 'UTC', 'YYYYMMDD') from messages.attempts($1)", id_
    )
    assert await connection.fetchval(HOME, id_) == f"attempt_{day}"
