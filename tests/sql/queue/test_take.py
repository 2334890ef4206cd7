"""Taking: a message out of the queue and its effects in one transaction of the caller."""

from datetime import timedelta

import pytest

from notifyq.errors import QueueNotFoundError
from support.database import Connect, Connection, archived, make_due, publish, rows, value


async def take(connection: Connection, quantity: int, queue: str = "default") -> list[int]:
    return [row["id"] for row in await rows(connection, "take", queue=queue, quantity=quantity)]


async def test_take_returns_the_messages_and_archives_them_as_success(
    connection: Connection,
) -> None:
    ids = await publish(connection, 3)
    taken = await rows(connection, "take", queue="default", quantity=10)

    assert [(row["id"], row["message"]) for row in taken] == list(zip(ids, range(3), strict=True))
    assert await rows(connection, "message_list") == []
    for id_ in ids:
        (row,) = await archived(connection, id_)
        assert (row["status"], row["locked_at"], row["attempts"]) == ("success", None, 0)
    assert await take(connection, 10) == []


async def test_a_claimed_message_is_not_taken_and_a_taken_one_cannot_be_finished(
    connection: Connection,
) -> None:
    first, second = await publish(connection, 2)
    await rows(connection, "claim")
    assert await take(connection, 10) == [second]
    assert await value(connection, "finish", id=second, lock_token=0) is False
    assert await value(connection, "finish", id=second, lock_token=1) is False
    assert await value(connection, "finish", id=first, lock_token=1) is True
    assert [len(await archived(connection, id_)) for id_ in (first, second)] == [1, 1]


async def test_take_gives_nothing_of_a_paused_queue(connection: Connection) -> None:
    ids = await publish(connection, 1)
    await value(connection, "pause_queue", name="default")
    assert await take(connection, 1) == []
    await value(connection, "resume_queue", name="default")
    assert await take(connection, 1) == ids


async def test_take_returns_scheduled_messages_when_due(connection: Connection) -> None:
    id_ = await value(connection, "publish", queue="default", message=1, delay=timedelta(hours=1))
    assert await take(connection, 1) == []
    await make_due(connection, id_)
    assert await take(connection, 1) == [id_]


async def test_take_from_an_unknown_queue_is_refused(connection: Connection) -> None:
    with pytest.raises(QueueNotFoundError, match="'nope'"):
        await take(connection, 1, "nope")


async def test_cancel_archives_a_message_that_is_not_locked(connection: Connection) -> None:
    (waiting,) = await publish(connection, 1)
    later = await value(connection, "publish", queue="default", message=1, delay=timedelta(hours=1))
    for id_ in (waiting, later):
        assert await value(connection, "cancel", id=id_) is True
        (row,) = await archived(connection, id_)
        assert (row["status"], row["details"], row["attempts"]) == ("rejected", "cancelled", 0)
        assert await value(connection, "cancel", id=id_) is False
        assert len(await archived(connection, id_)) == 1
    assert await rows(connection, "message_list") == []


async def test_cancel_leaves_a_locked_message_to_its_worker(
    connection: Connection, connect: Connect
) -> None:
    (id_,) = await publish(connection, 1)
    other = await connect()
    await other.execute("set lock_timeout = '50ms'")
    async with connection.transaction():
        await rows(connection, "claim")
        assert await value(other, "cancel", id=id_) is False
    assert await value(other, "cancel", id=id_) is False
    assert await value(connection, "finish", id=id_, lock_token=1) is True
    assert await value(other, "cancel", id=10**9) is False


async def test_cancel_ends_a_message_that_waits_for_its_next_attempt(
    connection: Connection,
) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=3)
    (id_,) = await publish(connection, 1)
    await rows(connection, "claim")
    await value(connection, "retry", id=id_, lock_token=1, details="no luck")
    assert await value(connection, "cancel", id=id_) is True
    (row,) = await archived(connection, id_)
    assert (row["status"], row["attempts"]) == ("rejected", 1)
