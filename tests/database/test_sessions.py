"""Which call goes over which session, what sessions keep, and finishes that share a statement."""

import asyncio
from typing import Any

import pytest

from notifyq import App
from notifyq.config import DatabaseSettings
from notifyq.database import pool
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.errors import DatabaseUnavailableError
from notifyq.models.outcome import Success
from notifyq.worker.fetch import Claims
from support.database import Connection, publish
from support.running import statuses

PID = "select pg_backend_pid()"


async def last_query(connection: Connection, pid: int) -> str:
    query: str = await connection.fetchval("select query from pg_stat_activity where pid = $1", pid)
    return query


async def test_all_claims_of_a_worker_use_one_dedicated_session(
    app: App, connection: Connection
) -> None:
    async with app:
        client = Claims(app.database, "me")
        pid = await client._session.value(PID)
        await publish(connection, 6)
        for _ in range(3):
            messages = await client.claim(["default"], 2)
            assert await asyncio.gather(*(client.settler.add(m, Success()) for m in messages))
            assert "messages.claim" in await last_query(connection, pid)
        assert await client._session.value(PID) == pid


async def test_a_lost_claim_session_is_replaced(app: App, connection: Connection) -> None:
    async with app:
        client = Claims(app.database, "me")
        pid = await client._session.value(PID)
        await publish(connection, 1)
        lost = await connection.fetchval("select pg_terminate_backend($1, 5000)", pid)
        assert lost
        assert len(await client.claim(["default"], 2)) == 1
        assert await client._session.value(PID) != pid


@pytest.mark.parametrize("by", [Claims, Database])
async def test_the_claim_session_is_closed(app: App, connection: Connection, by: type[Any]) -> None:
    async with app:
        client = Claims(app.database, "me")
        pid = await client._session.value(PID)
        await (client if by is Claims else app.database).close()
        left = await connection.fetchval(
            "select count(*) from pg_stat_activity where pid = $1 and query not like '%close%'", pid
        )
        assert left == 0


async def test_a_session_is_reset_after_users_but_not_after_calls(database: str) -> None:
    app = App(database, pool_size=1)
    async with app:
        await app.database.value("select set_config('notifyq.seen', 'call', false)")
        seen = "select current_setting('notifyq.seen', true)"
        assert await app.database.value(seen) == "call"
        async with app.database.connection() as lent:
            await lent.execute("set notifyq.seen = 'user'")
        assert await app.database.value(seen) != "user"
        await app.database.value("select set_config('notifyq.seen', 'again', false)")
        assert await app.database.value(seen) == "again"


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give a list that grows with every statement that finishes, by how many it does."""
    sizes: list[int] = []
    send = Database.persist

    async def persist(self: Database, statement: str, *args: Any, **options: Any) -> Any:
        if statement == sql.FINISH_MANY:
            sizes.append(len(args[0]))
        return await send(self, statement, *args, **options)

    monkeypatch.setattr(Database, "persist", persist)
    return sizes


async def test_concurrent_finishes_share_a_statement(
    app: App, connection: Connection, batches: list[int]
) -> None:
    async with app:
        client = Claims(app.database, "me")
        await publish(connection, 61)
        *messages, last = await client.claim(["default"], 61)
        answers: list[asyncio.Future[Any]] = []
        for message in messages:
            answers.append(client.settler.add(message, Success()))
            if message.id % 10 == 0:
                await asyncio.sleep(0)
        assert await client.settler.add(last, Success())
    assert [it.result() for it in answers] == [True] * 60
    # One, unless the machine has stood still in between.
    assert len(batches) < 6
    assert await statuses(connection) == {"success": 61}


async def test_a_single_finish_is_sent_at_once(
    app: App, connection: Connection, batches: list[int]
) -> None:
    async with app:
        client = Claims(app.database, "me")
        await publish(connection, 2)
        messages = await client.claim(["default"], 2)
        for message in messages:
            assert await client.settler.add(message, Success())
    assert batches == [1, 1]


async def test_a_server_that_stops_answering_does_not_block_the_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hanging:
        async def close(self, *, timeout: float | None = None) -> None:
            async with asyncio.timeout(timeout):
                await asyncio.Event().wait()

    async def connect(*_: object, **_options: object) -> Hanging:
        return Hanging()

    monkeypatch.setattr(pool, "connect", connect)
    database = Database(
        "postgresql://nowhere", settings=DatabaseSettings.load(connect_timeout=0.05)
    )
    async with asyncio.timeout(10):
        with pytest.raises(DatabaseUnavailableError):
            await database.open()
