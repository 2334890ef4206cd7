"""Messages that wait for others, while sessions finish, publish, cancel and drop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import asyncpg
import pytest

from support.database import Connect, Connection, publish, rows, until_blocked, value


async def after(connection: Connection, ids: Sequence[int], **options: str) -> int:
    return int(
        await value(
            connection, "publish", queue="default", message="next", after=list(ids), **options
        )
    )


async def finish(connection: Connection, id_: int, status: str = "success") -> None:
    assert await value(connection, "finish", id=id_, lock_token=1, status=status)


async def states(connection: Connection) -> dict[int, str]:
    return {row["id"]: row["state"] for row in await rows(connection, "message_list")}


async def test_the_second_of_two_concurrent_finishes_frees_the_dependent(
    connection: Connection, connect: Connect
) -> None:
    other, observer = await connect(), await connect()
    first, second = await publish(connection, 2)
    id_ = await after(connection, [first, second])
    await rows(connection, "claim", quantity=2)
    async with connection.transaction():
        await finish(connection, first)
        finishing = asyncio.ensure_future(finish(other, second))
        await until_blocked(observer, other)
    await finishing
    assert await states(connection) == {id_: "waiting"}


@pytest.mark.parametrize("status", ["success", "failed"])
@pytest.mark.parametrize("is_first", ["finish", "publish"])
async def test_the_second_of_a_publisher_and_a_finisher_sees_what_the_first_commits(
    connection: Connection, connect: Connect, status: str, is_first: str
) -> None:
    other, observer = await connect(), await connect()
    (first,) = await publish(connection, 1)
    await rows(connection, "claim")
    one, two = (connection, other) if is_first == "finish" else (other, connection)
    calls = [finish(one, first, status), after(two, [first])]
    async with connection.transaction():
        done = [await calls.pop(is_first != "finish")]
        waiting = asyncio.ensure_future(*calls)
        await until_blocked(observer, other)
    id_ = next(filter(None, [*done, await waiting]))
    assert await states(connection) == ({id_: "waiting"} if status == "success" else {})


async def test_a_link_that_is_added_while_the_chain_is_cancelled_is_cancelled_too(
    connection: Connection, connect: Connect
) -> None:
    other, observer = await connect(), await connect()
    (first,) = await publish(connection, 1)
    second = await after(connection, [first])
    await rows(connection, "claim")
    async with connection.transaction():
        await after(connection, [second])
        finishing = asyncio.ensure_future(finish(other, first, "failed"))
        await until_blocked(observer, other)
    await finishing
    assert await states(connection) == {}


async def test_publishers_of_dependents_do_not_delay_a_finisher(
    connection: Connection, connect: Connect
) -> None:
    (first,) = await publish(connection, 1)
    following = await after(connection, [first])
    (second,) = await publish(connection, 1)
    await rows(connection, "claim", quantity=2)
    observer = await connect()
    async with asyncio.timeout(20):
        async with connection.transaction():
            await finish(connection, second)
            others = [await connect() for _ in range(6)]
            # Each wants what the end of the first message comes to, and waits for the second.
            publishing = [
                asyncio.ensure_future(after(other, [following, second])) for other in others
            ]
            for other in others:
                await until_blocked(observer, other)
            await finish(connection, first)
        await asyncio.gather(*publishing)
    assert (await states(connection))[following] == "waiting"


async def test_two_transactions_that_finish_crosswise_get_a_deadlock_error(
    connection: Connection, connect: Connect
) -> None:
    other = await connect()
    first, second, third, fourth = await publish(connection, 4)
    await after(connection, [first, fourth])
    await after(connection, [second, third])
    await rows(connection, "claim", quantity=4)
    for session in (connection, other):
        await session.execute("set deadlock_timeout = '100ms'")
    both = connection.transaction(), other.transaction()
    for transaction in both:
        await transaction.start()
    await finish(connection, first)
    await finish(other, second)
    async with asyncio.timeout(20):
        ended = await asyncio.gather(
            finish(connection, third), finish(other, fourth), return_exceptions=True
        )
    assert [type(error) for error in ended if error] == [asyncpg.DeadlockDetectedError]
    for transaction in both:
        await transaction.rollback()


async def test_a_graph_that_is_built_while_it_runs_ends_and_leaves_nothing(
    connection: Connection, connect: Connect
) -> None:
    chance = random.Random(3)
    known = await publish(connection, 5)
    stopped = asyncio.Event()

    async def publish_on(session: Connection) -> None:
        for _ in range(40):
            ids = chance.sample(known[-30:], chance.randrange(1, 5))
            known.append(
                await after(session, ids, on_failure=chance.choice(["cancel", "cancel", "run"]))
            )

    async def work(session: Connection) -> None:
        while not stopped.is_set():
            claimed = await rows(session, "claim", quantity=chance.randrange(1, 8), worker="w")
            await rows(
                session,
                "finish_many",
                ids=[row["id"] for row in claimed],
                lock_tokens=[row["lock_token"] for row in claimed],
                statuses=["failed" if chance.random() < 0.1 else "success" for _ in claimed],
            )
            await value(session, "cancel", id=chance.choice(known))
            if not claimed and publishing.done() and not await states(session):
                stopped.set()

    publishing = asyncio.gather(*[publish_on(await connect()) for _ in range(4)])
    async with asyncio.timeout(30):
        await asyncio.gather(publishing, *[work(await connect()) for _ in range(4)])
    archived = await connection.fetch("select id from messages.message_archive order by id")
    assert [row["id"] for row in archived] == sorted(known)
