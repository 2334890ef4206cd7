"""Transactional handlers: what they write and the end of their message are one commit."""

import asyncio
import os
import signal
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from notifyq import App, ConfigurationError, Message, Reject, Retry, Transaction
from notifyq.telemetry import LockLost, MessageFinished
from support.database import Connection, archived, expire, publish, until, value
from support.rows import register
from support.running import Events, statuses, working


@pytest.fixture
async def accounts(connection: Connection) -> Connection:
    """Give a session in a database that has a table for the effects of handlers."""
    await connection.execute("create table public.accounts (entry int, attempt int)")
    await value(connection, "create_queue", name="accounts", max_attempts=3, backoff=timedelta())
    return connection


async def entries(connection: Connection) -> list[int]:
    rows = await connection.fetch("select entry from public.accounts order by entry")
    return [row[0] for row in rows]


async def test_effect_and_end_are_one_commit(
    app: App, accounts: Connection, events: Events
) -> None:
    seen: list[Any] = []

    @app.handler("accounts", transactional=True)
    async def enter(number: int, connection: Transaction, message: Message) -> int:
        await connection.execute("insert into public.accounts values ($1)", number)
        next_one = await app.publish("default", number, connection=connection)
        seen.append(await accounts.fetchval("select count(*) from public.accounts"))
        seen.append(await accounts.fetch("select from messages.message where id = $1", next_one))
        seen.append(await connection.fetchval("show idle_in_transaction_session_timeout"))
        return message.attempts

    async with working(app, events):
        handle = await enter.publish(7)
        assert await handle.result(timeout=10) == 1
    assert seen == [0, [], "0"]
    assert await entries(accounts) == [7]
    same = await accounts.fetchval(
        "select l.xmin::text::bigint = a.xid::text::bigint "
        "from public.accounts as l, messages.message_archive as a"
    )
    assert same
    assert [event.status for event in events.of(MessageFinished)] == ["success"]
    assert await accounts.fetchval("select count(*) from messages.message where queue = 'default'")


@pytest.mark.parametrize("left", ["set role pg_read_all_data", "deallocate all"])
async def test_what_a_handler_leaves_in_its_session_harms_no_other(
    app: App, accounts: Connection, events: Events, left: str
) -> None:
    await accounts.execute("grant notifyq_worker to pg_read_all_data")
    seen: list[bool] = []

    @app.handler("accounts", transactional=True, max_attempts=1)
    async def enter(number: int, connection: Transaction) -> None:
        seen.append(await connection.fetchval("select current_user = session_user"))
        if number == 1:
            await connection.execute(left)

    try:
        async with working(app, events, concurrency=1):
            for number in range(4):
                await app.publish("accounts", number)
            await events.wait(MessageFinished, 4)
    finally:
        await accounts.execute("revoke notifyq_worker from pg_read_all_data")
    assert seen == [True] * 4
    failed = [event.message_id for event in events.of(MessageFinished, status="failed")]
    assert len(failed) <= (left == "deallocate all")  # its own


async def test_a_timeout_of_the_database_does_not_end_a_handler(
    app: App, accounts: Connection, events: Events
) -> None:
    if await accounts.fetchval("select current_setting('transaction_timeout', true)") is None:
        pytest.skip("this server has no transaction_timeout")
    database = await accounts.fetchval("select quote_ident(current_database())")
    await accounts.execute(f"alter database {database} set transaction_timeout = '2s'")
    seen: list[str] = []

    @app.handler("accounts", transactional=True)
    async def enter(number: int, connection: Transaction) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)
        seen.append(await connection.fetchval("show transaction_timeout"))

    async with working(app, events):
        await (await enter.publish(7)).result(timeout=10)
    assert seen == ["0"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("no"), "failed"), (Retry("later", after=0), "failed"), (Reject("no"), "rejected")],
)
async def test_whatever_ends_an_attempt_undoes_it(
    app: App, accounts: Connection, events: Events, error: Exception, status: str
) -> None:
    attempts: list[int] = []

    @app.handler("accounts", transactional=True)
    async def enter(number: int, message: Message, connection: asyncpg.Connection) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise error

    async with working(app, events):
        (id_,) = await publish(accounts, 1, "accounts")
        await events.wait(MessageFinished, 1 if status == "rejected" else 3)
    if status == "rejected":
        assert (await entries(accounts), attempts) == ([], [1])
    else:
        assert (await entries(accounts), attempts) == ([0], [1, 2, 3])
        assert [row["status"] for row in await archived(accounts, id_)] == ["success"]


async def test_a_statement_that_failed_fails_the_attempt_even_if_it_was_caught(
    app: App, accounts: Connection, events: Events
) -> None:
    @app.handler("accounts", transactional=True)
    async def enter(number: int, message: Message, connection: Transaction) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)
        if message.attempts == 1:
            try:
                await connection.execute("select 1 / 0")
            except asyncpg.DivisionByZeroError:
                return

    async with working(app, events):
        await enter.publish(5)
        first, second = await events.wait(MessageFinished, 2)
    assert (first.status, second.status) == ("failed", "success")
    assert "the transaction could not be committed" in (first.details or "")
    assert await entries(accounts) == [5]


async def test_a_lost_lock_undoes_what_was_written(
    app: App, accounts: Connection, events: Events, connection: Connection
) -> None:
    begun: list[int] = []
    may_end = asyncio.Event()

    @app.handler("accounts", transactional=True)
    async def enter(number: int, message: Message, connection: Transaction) -> None:
        await connection.execute(
            "insert into public.accounts values ($1, $2)", number, message.attempts
        )
        begun.append(message.attempts)
        if message.attempts == 1:
            await may_end.wait()

    async with working(app, events):
        handle = await enter.publish(9)
        await until(lambda: begun == [1], "the handler has begun")
        await expire(connection, handle)
        await value(connection, "reap")
        await connection.execute("select pg_notify('new_message', 'accounts:')")
        await events.wait(MessageFinished)  # of the second attempt
        may_end.set()
        await events.wait(LockLost)
    kept = await connection.fetch("select entry, attempt from public.accounts")
    assert [tuple(row) for row in kept] == [(9, 2)]
    assert await statuses(connection, "accounts") == {"success": 1}


async def test_a_timeout_undoes_what_was_written(
    app: App, accounts: Connection, events: Events
) -> None:
    @app.handler("accounts", transactional=True, timeout=0.5)
    async def enter(number: int, message: Message, connection: Transaction) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)
        if message.attempts == 1:
            await connection.execute("select pg_sleep(30)")

    async with working(app, events):
        await enter.publish(3)
        await events.wait(MessageFinished, status="success")
    assert await entries(accounts) == [3]


async def test_as_many_transactions_as_handlers_beside_the_pool(
    database: str, accounts: Connection, events: Events
) -> None:
    """A pool of one connection is enough for a worker of six such handlers."""
    app = App(database, pool_size=1)
    gathered = asyncio.Barrier(6)

    @app.handler("accounts", transactional=True)
    async def enter(number: int, connection: Transaction) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)
        async with asyncio.timeout(10):
            await gathered.wait()

    async with working(app, events, concurrency=6):
        await enter.publish_many(range(6))
        await events.wait(MessageFinished, 6)
    assert await entries(accounts) == list(range(6))
    await app.close()


async def test_a_commit_without_an_answer_counts_as_what_it_was(
    app: App, accounts: Connection, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection breaks as the commit is sent, or as its answer is awaited."""
    plan = ["before", "after"]
    commit = asyncpg.transaction.Transaction.commit

    async def broken(self: Any) -> None:
        step = plan.pop(0) if plan else None
        if step == "before":
            self._connection.terminate()
        await commit(self)
        if step == "after":
            raise ConnectionResetError("gone")

    @app.handler("accounts", transactional=True)
    async def enter(number: int, message: Message, connection: Transaction) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)

    async with working(app, events):
        monkeypatch.setattr(asyncpg.transaction.Transaction, "commit", broken)
        await enter.publish(4)
        done = await events.wait(MessageFinished, 2)
    assert [event.status for event in done] == ["failed", "success"]
    assert plan == []
    assert await entries(accounts) == [4]
    assert await statuses(accounts, "accounts") == {"success": 1}


PROGRAM = """
    import os, signal, sys
    import notifyq
    from notifyq.execution.runtime import Transactions

    app = notifyq.App(sys.argv[1])
    where = sys.argv[2]

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    @app.handler("accounts", transactional=True)
    async def enter(number: int, tx: notifyq.Transaction):
        await tx.execute("insert into public.accounts values ($1)", number)
        if where == "handler":
            die()

    finish = Transactions.finish

    async def finish_and_die(self, connection, finishes):
        await finish(self, connection, finishes)
        die()

    if where == "finish":
        Transactions.finish = finish_and_die

    import asyncio
    asyncio.run(app.work())
"""


@pytest.mark.parametrize("where", ["handler", "finish"])
async def test_a_worker_that_is_killed_leaves_nothing_behind(
    app: App, accounts: Connection, events: Events, database: str, tmp_path: Path, where: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    (id_,) = await publish(accounts, 1, "accounts")
    worker = await asyncio.create_subprocess_exec(sys.executable, program, database, where)
    async with asyncio.timeout(30):
        assert await worker.wait() == -signal.SIGKILL
    assert os.getpid()
    await expire(accounts, id_)
    await value(accounts, "reap")

    @app.handler("accounts", transactional=True)
    async def enter(number: int, connection: Transaction) -> None:
        await connection.execute("insert into public.accounts values ($1)", number)

    async with working(app, events):
        await events.wait(MessageFinished)
    assert await entries(accounts) == [0]
    assert await statuses(accounts, "accounts") == {"success": 1}


def test_a_transaction_goes_to_an_async_handler_that_takes_it() -> None:
    async def takes(payload: int, connection: Transaction) -> None: ...
    async def takes_none(payload: int) -> None: ...
    def blocking(payload: int, connection: Transaction) -> None: ...

    assert register(takes, transactional=True).is_transactional
    with pytest.raises(ConfigurationError, match="takes no transaction: annotate a parameter"):
        register(takes_none, transactional=True)
    with pytest.raises(ConfigurationError, match="register it with transactional=True"):
        register(takes)
    with pytest.raises(ConfigurationError, match="must be an async function"):
        register(blocking, transactional=True)
    with pytest.raises(ConfigurationError, match="'transactionl': did you mean 'transactional'"):
        register(takes, transactionl=True)
