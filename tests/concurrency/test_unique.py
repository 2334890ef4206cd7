"""Publishers of a key meet each other and the worker that has its message."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from support.database import Connect, Connection, lock_of, rows, until_blocked, value

HOUR = timedelta(hours=1)


async def publish(connection: Connection, message: Any = 1, **options: Any) -> int:
    options = {"queue": "default", "dedup_key": "k"} | options
    return int(await value(connection, "publish", message=message, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dedup_window": HOUR},
        {"dedup_scope": "waiting"},
        {"on_duplicate": "replace"},
        {"on_duplicate": "debounce", "delay": HOUR},
    ],
)
async def test_forty_publishers_of_a_key_at_once_publish_one_message(
    connection: Connection, connect: Connect, options: dict[str, Any]
) -> None:
    sessions = [await connect() for _ in range(40)]
    ids = await asyncio.gather(*(publish(it, n, **options) for n, it in enumerate(sessions)))
    assert len(set(ids)) == 1
    assert [row["id"] for row in await rows(connection, "message_list")] == ids[:1]


@pytest.mark.parametrize("options", [{}, {"dedup_window": HOUR}])
async def test_a_publisher_that_rolls_back_leaves_the_key_free(
    connection: Connection, connect: Connect, options: dict[str, Any]
) -> None:
    second, observer = await connect(), await connect()
    await connection.execute("begin")
    first = await publish(connection, **options)
    publishing = asyncio.ensure_future(publish(second, **options))
    await until_blocked(observer, second)
    await connection.execute("rollback")
    assert await publishing != first
    assert [row["id"] for row in await rows(connection, "message_list")] == [publishing.result()]


@pytest.mark.parametrize("on_duplicate", ["keep", "replace", "debounce"])
async def test_a_publisher_beside_a_claim_publishes_another_once_it_commits(
    connection: Connection, connect: Connect, on_duplicate: str
) -> None:
    options: dict[str, Any] = {"dedup_scope": "waiting", "on_duplicate": on_duplicate}
    if on_duplicate == "debounce":
        options["delay"] = HOUR
    second, observer = await connect(), await connect()
    first = await publish(connection, dedup_scope="waiting")
    async with connection.transaction():
        await rows(connection, "claim")
        publishing = asyncio.ensure_future(publish(second, 2, **options))
        await until_blocked(observer, second)
    assert await publishing != first
    assert [row["message"] for row in await rows(connection, "message_list")] == [1, 2]


async def test_publishers_never_wait_for_a_message_that_a_worker_has_locked(
    connection: Connection, connect: Connect
) -> None:
    worker, observer = await connect(), await connect()
    first = await publish(connection, dedup_scope="waiting")
    (claimed,) = await rows(worker, "claim")
    async with connection.transaction():
        second = await publish(connection, 2, on_duplicate="replace")
        assert second != first
        # Nor the worker for the publisher, however long that takes.
        assert await value(worker, "finish", id=first, lock_token=claimed["lock_token"])
    assert [row["id"] for row in await rows(observer, "message_list")] == [second]


async def test_replacing_the_same_keys_in_another_order_does_not_deadlock(
    connection: Connection, connect: Connect
) -> None:
    one, two = await connect(), await connect()
    keys = [str(number) for number in range(300)]

    async def replace(session: Connection, order: list[str]) -> list[int]:
        found = await rows(
            session,
            "publish_many",
            queue="default",
            messages=order,
            dedup_keys=order,
            on_duplicate="replace",
        )
        return [row[0] for row in found]

    for _ in range(5):
        ids = await asyncio.gather(replace(one, keys), replace(two, keys[::-1]))
        assert ids[0] == ids[1][::-1]
    assert len(await rows(connection, "message_list", quantity=1000)) == 300


OPTIONS: list[dict[str, Any]] = [
    {"dedup_scope": "waiting"},
    {"on_duplicate": "replace"},
    {"on_duplicate": "debounce", "delay": timedelta(milliseconds=1)},
    {"dedup_scope": "waiting", "dedup_window": timedelta(milliseconds=20)},
    {"on_duplicate": "replace", "dedup_scope": "live"},
]


async def let_expire(session: Connection, lock: dict[str, int]) -> None:
    await session.execute(
        "update messages.message set lock_expires_at = locked_at "
        "where id = $1 and lock_token = $2 and state = 'locked'",
        *lock.values(),
    )
    await value(session, "reap")


async def settle(session: Connection, message: asyncpg.Record, way: int) -> None:
    lock = lock_of(message)
    match way:
        case 0:
            assert await value(session, "finish", **lock)
        case 1:
            assert await value(session, "retry", **lock, delay=timedelta(0))
        case 2:
            assert await value(session, "release", **lock)
        case 3:
            await let_expire(session, lock)
        case _:
            assert await value(session, "finish", **lock, status="failed")


async def test_changing_keys_fail_no_worker_and_lose_no_message(
    connection: Connection, connect: Connect
) -> None:
    await value(connection, "alter_queue", name="default", max_attempts=1000)
    chance = random.Random(7)
    answered: set[int] = set()
    stopped = asyncio.Event()

    async def publish_on(session: Connection) -> None:
        for n in range(60):
            options = {"dedup_key": chance.choice("abc"), **chance.choice(OPTIONS)}
            answered.add(await publish(session, n, **options))

    async def work(session: Connection) -> None:
        while not stopped.is_set():
            for message in await rows(session, "claim", quantity=3, worker="w"):
                await settle(session, message, chance.randrange(5))
            await value(session, "maintain")

    workers = [asyncio.ensure_future(work(await connect())) for _ in range(4)]
    await asyncio.gather(*[publish_on(await connect()) for _ in range(8)])
    stopped.set()
    await asyncio.gather(*workers)
    found = await connection.fetch(
        "select id from messages.message union all select id from messages.message_archive"
    )
    assert sorted(row["id"] for row in found) == sorted(answered)


async def test_maintenance_does_not_wait_for_a_publisher_of_an_expired_key(
    connection: Connection, connect: Connect
) -> None:
    maintenance = await connect()
    for key in ("again", "over"):
        await publish(connection, dedup_key=key, dedup_window=HOUR)
    await connection.execute(
        "delete from messages.message; update notifyq.dedup set expires_at = now()"
    )
    await maintenance.execute("set lock_timeout = '5s'")
    async with connection.transaction():
        await publish(connection, dedup_key="again", dedup_window=HOUR)
        assert await value(maintenance, "notifyq.forget_keys", quantity=10) == 1
    assert await connection.fetchval("select array_agg(dedup_key) from notifyq.dedup") == ["again"]
