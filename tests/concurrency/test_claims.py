"""Several sessions claim at once: no message has two holders, and nobody waits."""

import asyncio

import asyncpg
import pytest

from support.database import (
    Connect,
    Connection,
    make_due,
    open_session,
    publish,
    rows,
    session,
)


async def claim_ids(connection: Connection, quantity: int, worker: str = "w") -> list[int]:
    claimed = await rows(connection, "claim", quantity=quantity, worker=worker)
    return [row["id"] for row in claimed]


async def test_many_claimers_share_a_backlog_without_loss_or_doubles(
    connection: Connection, connect: Connect
) -> None:
    ids = await publish(connection, 1000)
    later = await publish(connection, 200)
    await connection.execute(
        "update messages.message set state = 'scheduled' where id = any ($1)", later
    )
    await make_due(connection, *later)

    async def drain() -> list[int]:
        worker = await connect()
        mine: list[int] = []
        while claimed := await claim_ids(worker, 7):
            mine += claimed
        return mine

    shares = await asyncio.gather(*(drain() for _ in range(8)))
    left = await claim_ids(connection, 10_000)
    claimed = [id_ for share in (*shares, left) for id_ in share]
    assert sorted(claimed) == sorted([*ids, *later])


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_claims_work_where_the_database_defaults_to_another_isolation(
    connection: Connection, connect: Connect, database: str, isolation: str
) -> None:
    name = await connection.fetchval("select current_database()")
    await connection.execute(
        f'alter database "{name}" set default_transaction_isolation = {isolation!r}'
    )
    async with session(database) as fresh:
        assert await fresh.fetchval("show transaction_isolation") == isolation
    ids = await publish(connection, 600)

    async def drain() -> list[int]:
        worker = await open_session(database)
        mine: list[int] = []
        try:
            while True:
                async with worker.transaction(isolation="read_committed"):
                    claimed = await claim_ids(worker, 5)
                if not claimed:
                    return mine
                async with worker.transaction(isolation="read_committed"):
                    finished = await rows(
                        worker,
                        "finish_many",
                        ids=claimed,
                        lock_tokens=[1] * len(claimed),
                        statuses=["success"] * len(claimed),
                    )
                assert len(finished) == len(claimed)
                mine += claimed
        finally:
            await worker.close()

    shares = await asyncio.gather(*(drain() for _ in range(6)))
    assert sorted(id_ for share in shares for id_ in share) == ids
    assert await connection.fetchval("select count(*) from messages.message_archive") == 600


async def test_a_serialization_failure_differs_from_a_lost_lock(
    connection: Connection, connect: Connect
) -> None:
    """At a stricter isolation the server refuses; it never hands a message out twice."""
    ids = await publish(connection, 2)
    strict = await connect()
    transaction = strict.transaction(isolation="repeatable_read")
    await transaction.start()
    await strict.fetch("select 1 from messages.queue")
    assert await claim_ids(connection, 1) == ids[:1]
    with pytest.raises(asyncpg.SerializationError):
        await claim_ids(strict, 1)
    await transaction.rollback()
    assert await claim_ids(strict, 2) == ids[1:]
