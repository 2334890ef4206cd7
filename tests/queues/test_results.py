"""Results: a publisher waits for what its message comes to."""

import asyncio
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

from notifyq import (
    App,
    DatabaseUnavailableError,
    Handle,
    InvalidResultError,
    LockExpiredError,
    MessageFailedError,
    MessageNotFoundError,
    MessageRejectedError,
    Reject,
    ResultTimeoutError,
)
from notifyq.database import statements as sql
from support.database import Connect, Connection, claim_one, publish, until, value
from support.running import working


@dataclass
class Receipt:
    order: int


async def session_of(connection: Connection) -> Any:
    return await connection.fetchval(
        "select pid from pg_stat_activity where application_name = 'notifyq results' "
        "and datname = current_database()"
    )


async def finish(connection: Connection, id_: int, **outcome: Any) -> None:
    message = await claim_one(connection)
    assert message["id"] == id_
    await value(connection, "finish", id=id_, lock_token=message["lock_token"], **outcome)


async def awaited(connection: Connection, id_: int) -> None:
    """Until somebody has marked the message, which is after it listens."""
    await until(
        lambda: connection.fetchval("select awaited from messages.message where id = $1", id_),
        "the message is awaited",
    )


@pytest.fixture(autouse=True)
def _only_notifications_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifyq.queues.results._POLL", 60)
    monkeypatch.setattr("notifyq.queues.results._POLL_ONLY", 60)


async def test_it_is_what_the_handler_returned_validated(app: App) -> None:
    @app.handler("orders")
    async def bill(number: int) -> Receipt:
        return Receipt(number)

    async with working(app):
        handles = await bill.publish_many([1, 2, 3])
        results = await asyncio.gather(*(handle.result(timeout=10) for handle in handles))
        assert results == [Receipt(1), Receipt(2), Receipt(3)]
        again = await bill.publish(4)
        assert await again.result() == Receipt(4)
        # By the id alone, in whatever process.
        assert await app.result(int(again), Receipt, timeout=5) == Receipt(4)
        assert await app.result(again) == {"order": 4}
        untyped = await app.publish("orders", 5)
        assert await untyped.result(timeout=10) == {"order": 5}


async def test_a_handle_is_the_id(app: App, connection: Connection) -> None:
    handle = await app.publish("default", 1)
    assert isinstance(handle, int)
    assert isinstance(handle, Handle)
    assert f"{handle}" == repr(handle) == str(int(handle))
    assert pickle.loads(pickle.dumps(handle)) == handle
    assert await connection.fetchval("select id from messages.message where id = $1", handle) == (
        handle
    )
    assert await app.archive.cancel(handle)


async def test_a_notification_ends_the_wait_and_all_waits_share_a_session(
    app: App, connection: Connection
) -> None:
    ids = await publish(connection, 2)
    waits = [asyncio.create_task(app.result(id_, timeout=20)) for id_ in ids]
    for id_ in ids:
        await awaited(connection, id_)
    assert await session_of(connection) is not None
    for number, id_ in enumerate(ids):
        message = await connection.fetchrow("select * from messages.claim_id($1)", id_)
        assert message is not None
        await value(
            connection, "finish", id=id_, lock_token=message["lock_token"], result={"n": number}
        )
    assert await asyncio.gather(*waits) == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("rejected", MessageRejectedError),
        ("failed", MessageFailedError),
        ("lock_expired", LockExpiredError),
    ],
)
async def test_a_dead_message_has_no_result(
    app: App, connection: Connection, status: str, error: Any
) -> None:
    (id_,) = await publish(connection, 1)
    await finish(connection, id_, status=status, details="no such order")
    with pytest.raises(error, match=f"message {id_} of queue 'default' .*: no such order") as dead:
        await app.result(id_)
    assert (dead.value.details, dead.value.attempts) == ("no such order", 1)
    copy = pickle.loads(pickle.dumps(dead.value))
    assert (type(copy), str(copy)) == (type(dead.value), str(dead.value))


async def test_a_rejected_message_raises_the_reason_of_the_handler(app: App) -> None:
    @app.handler("orders")
    async def bill(number: int) -> None:
        raise Reject(f"there is no order {number}")

    async with working(app):
        handle = await bill.publish(7)
        with pytest.raises(MessageRejectedError, match="there is no order 7"):
            await handle.result(timeout=10)


async def test_a_timeout_reports_the_state_of_the_message(app: App, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    with pytest.raises(ResultTimeoutError, match=r"after 0.05 s: it is waiting in queue 'default'"):
        await app.result(id_, timeout=0.05)
    await claim_one(connection)
    with pytest.raises(TimeoutError, match="it is locked in queue 'default', 1 attempts"):
        await app.result(id_, timeout=0)


async def test_an_unknown_message_is_an_error(app: App) -> None:
    with pytest.raises(MessageNotFoundError, match="there is no message 99"):
        await app.result(99)


async def test_a_result_of_another_type_is_an_error(app: App, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    await finish(connection, id_, result={"order": "many"})
    with pytest.raises(InvalidResultError, match=f"the result of message {id_}"):
        await app.result(id_, Receipt)


async def test_a_lost_session_is_replaced_and_nothing_is_missed(
    app: App, connection: Connection, connect: Connect
) -> None:
    (id_,) = await publish(connection, 1)
    waiting = asyncio.create_task(app.result(id_, timeout=20))
    await awaited(connection, id_)
    pid = await session_of(connection)
    # The poll after the reconnection finds what ended before it.
    async with connection.transaction():
        await connection.execute("select pg_terminate_backend($1)", pid)
        await finish(connection, id_, result=1)
    assert await waiting == 1


async def test_a_forged_notification_costs_one_poll(app: App, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    waiting = asyncio.create_task(app.result(id_, timeout=20))
    await awaited(connection, id_)
    for payload in ("", "default:", f"default:{id_}", "default:x-y", "default:1-99999999999999"):
        await connection.execute("select pg_notify($1, $2)", sql.FINISHED_MESSAGE, payload)
    await finish(connection, id_, result=1)
    assert await waiting == 1


async def test_where_no_notification_arrives_polls_find_the_result(
    app: App, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.queues.results._POLL_ONLY", 0.05)
    monkeypatch.setattr("notifyq.notify.session._ARRIVES_WITHIN", 0.01)
    monkeypatch.setattr(
        "notifyq.database.statements.NOTIFY", "select true from (select $1::text) as nobody"
    )
    monkeypatch.setattr("notifyq.queues.results._wake", lambda *_: None)
    (id_,) = await publish(connection, 1)
    waiting = asyncio.create_task(app.result(id_, timeout=20))
    await awaited(connection, id_)
    await finish(connection, id_, result=1)
    assert await waiting == 1


async def test_closing_the_app_ends_the_waits(app: App, connection: Connection) -> None:
    (id_,) = await publish(connection, 1)
    waiting = asyncio.create_task(app.result(id_))
    await awaited(connection, id_)
    await app.close()
    with pytest.raises(DatabaseUnavailableError, match="the App was closed"):
        await waiting
    await finish(connection, id_, result=2)
    assert await app.result(id_) == 2
