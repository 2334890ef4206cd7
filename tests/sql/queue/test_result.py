"""Results of messages, and the notification of their end."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from notifyq.errors import MessageNotFoundError
from support.database import (
    Connect,
    Connection,
    Notifications,
    archived,
    claim_one,
    expire,
    live,
    lock_of,
    make_due,
    publish,
    rows,
    until_blocked,
    value,
)

ONE_HOUR = timedelta(hours=1)


async def report(connection: Connection, id_: int, function: str = "result") -> dict[str, Any]:
    [row] = await rows(connection, function, id=id_)
    return dict(row)


async def finish(connection: Connection, message: asyncpg.Record, **outcome: Any) -> bool:
    return bool(await value(connection, "finish", **lock_of(message), **outcome))


@pytest.fixture
async def ends(connect: Connect) -> Notifications:
    """Give a listener to what is finished."""
    notifications = Notifications(await connect(), "new_message", "finished_message")
    await notifications.listen()
    return notifications


async def test_result_reports_state_and_result_of_a_message(connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    assert (await report(connection, id_))["state"] == "waiting"
    message = await claim_one(connection)
    locked = await report(connection, id_)
    assert (locked["state"], locked["attempts"], locked["archived_at"]) == ("locked", 1, None)
    await finish(connection, message, result={"paid": True})
    (row,) = await archived(connection, id_)
    assert await report(connection, id_) == {
        "id": id_,
        "queue": "default",
        "state": "success",
        "attempts": 1,
        "available_at": row["available_at"],
        "archived_at": row["archived_at"],
        "details": None,
        "result": {"paid": True},
    }
    (scheduled,) = await rows(
        connection, "publish_many", queue="default", messages=[1], delay=ONE_HOUR
    )
    assert (await report(connection, scheduled[0]))["state"] == "scheduled"


@pytest.mark.parametrize("function", ["result", "await_result"])
async def test_an_unknown_message_is_an_error(connection: Connection, function: str) -> None:
    with pytest.raises(MessageNotFoundError, match="there is no message 77"):
        await report(connection, 77, function)
    (id_,) = await publish(connection, 1)
    await finish(connection, await claim_one(connection), status="failed")
    await connection.execute("select messages.dead_delete($1)", id_)
    with pytest.raises(MessageNotFoundError):
        await report(connection, id_, function)
    with pytest.raises(MessageNotFoundError, match="null"):
        await connection.fetchval(f"select state from messages.{function}(null)")


async def test_only_awaited_messages_notify_their_end(
    connection: Connection, ends: Notifications
) -> None:
    ids = await publish(connection, 4)
    for id_ in ids[1:3]:
        assert (await report(connection, id_, "await_result"))["state"] == "waiting"
    messages = await rows(connection, "claim", quantity=4)
    await ends.received()
    await connection.fetch(
        "select messages.finish_many($1, $2, array_fill('success'::messages.message_status, "
        "array[4]))",
        [m["id"] for m in messages],
        [m["lock_token"] for m in messages],
    )
    assert await ends.payloads("finished_message") == [f"default:{ids[1]}-{ids[2]}"]


async def test_every_status_notifies(connection: Connection, ends: Notifications) -> None:
    for end in ("finish", "cancel", "reap", "take"):
        (id_,) = await publish(connection, 1)
        await report(connection, id_, "await_result")
        if end == "finish":
            await finish(connection, await claim_one(connection), status="rejected")
        elif end == "cancel":
            await value(connection, "cancel", id=id_)
        elif end == "take":
            await rows(connection, "take", queue="default")
        else:
            await claim_one(connection)
            await expire(connection, id_)
            await value(connection, "reap")
        assert await ends.ids("finished_message") == [[id_]]
        assert (await report(connection, id_, "await_result"))["archived_at"] is not None


async def test_a_message_that_is_retried_stays_awaited(
    connection: Connection, ends: Notifications
) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=2)
    (id_,) = await publish(connection, 1)
    await report(connection, id_, "await_result")
    first = await claim_one(connection)
    await value(connection, "retry", id=id_, lock_token=first["lock_token"])
    assert await ends.received("finished_message") == []
    await make_due(connection, id_)
    await finish(connection, await claim_one(connection))
    assert await ends.ids("finished_message") == [[id_]]


async def test_await_result_notifies_a_claim_that_skipped_the_locked_row(
    connection: Connection, connect: Connect, ends: Notifications
) -> None:
    (id_,) = await publish(connection, 1)
    other = await connect()
    await ends.received()
    async with other.transaction():
        await report(other, id_, "await_result")
        assert await rows(connection, "claim") == []
    assert await ends.ids("new_message") == [[id_]]
    # Once marked nothing is written, and nobody has to be called.
    before = await live(connection, id_)
    await report(other, id_, "await_result")
    assert await live(connection, id_) == before
    assert await ends.received("new_message") == []


async def test_await_result_waits_for_an_open_finish_and_finds_the_result(
    connection: Connection, connect: Connect
) -> None:
    waiter, observer = await connect(), await connect()
    (id_,) = await publish(connection, 1)
    message = await claim_one(connection)
    async with connection.transaction():
        assert await finish(connection, message, result=5)
        marking = asyncio.ensure_future(report(waiter, id_, "await_result"))
        await until_blocked(observer, waiter)
    assert (await marking)["result"] == 5


async def test_a_finish_waits_for_an_open_await_result_and_notifies(
    connection: Connection, connect: Connect, ends: Notifications
) -> None:
    waiter, observer = await connect(), await connect()
    (id_,) = await publish(connection, 1)
    message = await claim_one(connection)
    async with waiter.transaction():
        assert (await report(waiter, id_, "await_result"))["state"] == "locked"
        finishing = asyncio.ensure_future(finish(connection, message))
        await until_blocked(observer, connection)
    assert await finishing
    assert await ends.ids("finished_message") == [[id_]]
