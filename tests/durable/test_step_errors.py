"""Errors in and beside steps: they stay what they are, and leave no step open."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from notifyq import App, MessageFailedError, StepFailedError, Steps, Transaction
from support.database import Connection, until
from support.running import Events, working


async def unreachable(_: Transaction) -> None:
    raise ConnectionError("the mail server is away")


async def missing(tx: Transaction) -> None:
    await tx.execute("select * from seat")


async def doubled(tx: Transaction) -> None:
    await tx.execute(
        "create table seat (number integer unique deferrable initially deferred); "
        "insert into seat values (1), (1)"
    )


ERRORS = {
    unreachable: ConnectionError,
    missing: asyncpg.UndefinedTableError,
    doubled: asyncpg.UniqueViolationError,
}
"""What is done in a transaction, and the error of it, the last one of its commit."""


@pytest.mark.parametrize("act", ERRORS, ids=lambda act: act.__name__)
async def test_an_error_in_a_transaction_is_that_of_its_author(
    app: App, events: Events, act: Any
) -> None:
    kind = ERRORS[act]

    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> list[str]:
        with pytest.raises(kind):
            await steps.transaction("function", act)
        with pytest.raises(kind):
            async with steps.transaction("block") as tx:
                await act(tx)
        with pytest.raises(StepFailedError) as called:
            await steps.transaction("outcome of a function", act, errors=(kind,))
        with pytest.raises(StepFailedError) as entered:
            async with steps.transaction("outcome of a block", errors=(kind,)) as tx:
                await act(tx)
        return [str(failure.value).split(": ")[1] for failure in (called, entered)]

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        assert await handle_.result(20) == [kind.__name__] * 2


async def test_a_block_whose_transaction_does_not_open_leaves_no_step_open(
    app: App, events: Events
) -> None:
    @asynccontextmanager
    async def busy() -> AsyncIterator[Transaction]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> str:
        work = steps.record.work
        opening, work.transaction = work.transaction, busy  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), steps.transaction("block"):
                pass
        work.transaction = opening  # type: ignore[method-assign]
        await steps.sleep("after it", 0)
        return await steps.run("the next one", str)

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        assert await handle_.result(20) == ""


async def test_a_step_that_fails_beside_a_wait_ends_the_attempt(
    app: App, events: Events, connection: Connection
) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no paper")

    async def wait(steps: Steps) -> None:
        await asyncio.gather(steps.run("print", fail), steps.sleep("pause", 3600))

    @app.handler("plain", max_attempts=1)
    async def plain(_: int, steps: Steps) -> None:
        await wait(steps)

    @app.handler("nested", max_attempts=1)
    async def nested(_: int, steps: Steps) -> None:
        await asyncio.gather(asyncio.gather(wait(steps)))

    @app.handler("borne", max_attempts=1)
    async def borne(_: int, steps: Steps) -> None:
        await asyncio.gather(
            steps.run("print", fail), steps.sleep("pause", 3600), return_exceptions=True
        )

    await app.create_queues()
    handles = [await app.publish(name, 1) for name in ("plain", "nested")]
    parked = await app.publish("borne", 1)
    async with working(app, events) as worker:
        for handle_ in handles:
            with pytest.raises(MessageFailedError, match="no paper"):
                await handle_.result(20)
        await until(lambda: worker.counts["parked"], "a parked message")
    assert await connection.fetchval("select array_agg(id) from messages.parked()") == [parked]


async def test_results_come_in_the_order_of_the_messages(app: App, events: Events) -> None:
    @app.handler("child", max_attempts=1)
    async def child(number: int) -> int:
        return number

    @app.handler("q", max_attempts=2, backoff=0.01)
    async def handle(_: int, steps: Steps) -> list[int]:
        first = await steps.publish("first", child, 1, dedup_key="one")
        second = await steps.publish("second", child, 2)
        same = await steps.publish("same", child, 1, dedup_key="one")
        found = await steps.results("all", [second, first, same])
        if not steps.done("again"):
            await steps.run("again", str)
            raise ValueError("again")
        return found

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events, maintenance=0.1):
        assert await handle_.result(20) == [2, 1, 1]


async def test_what_another_has_published_is_no_child(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> None:
        await steps.publish("own", "later", 1, dedup_key="own", delay=3600)
        await steps.publish("own again", "later", 1, dedup_key="own", delay=3600)
        await steps.publish("of another", "later", 1, dedup_key="of another", delay=3600)
        await steps.wait_for("pause", signal="never")

    await app.create_queues()
    await app.admin.create_queue("later")
    other = await app.publish("later", 1, dedup_key="of another", delay=3600)
    handle_ = await app.publish("q", 1)
    async with working(app, events) as worker:
        await until(lambda: worker.counts["parked"], "a parked message")
        assert await app.archive.cancel(handle_, children=True)
    assert await connection.fetchval("select array_agg(id) from messages.message") == [other]


async def test_an_outcome_is_recorded_whatever_the_text_of_its_error(
    app: App, events: Events
) -> None:
    """A file name with a byte that is no UTF-8 has half a surrogate pair."""

    async def act() -> None:
        raise FileNotFoundError("there is no a\0b\ud800")

    @app.handler("q", max_attempts=1)
    async def handle(_: int, steps: Steps) -> str:
        with pytest.raises(StepFailedError) as failed:
            await steps.run("read", act, errors=(OSError,))
        return str(failed.value)

    await app.create_queues()
    handle_ = await app.publish("q", 1)
    async with working(app, events):
        assert (await handle_.result(20)).endswith(r"there is no a\0b\ud800")
