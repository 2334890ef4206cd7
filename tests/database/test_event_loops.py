"""One App on several event loops, in threads and in forked processes."""

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from notifyq import App
from notifyq.database.per_loop import PerLoop
from support.database import Connection, session, until_equal

SESSIONS = (
    "select count(*) from pg_stat_activity "
    "where application_name like 'notifyq%' and datname = current_database()"
)


def once(dsn: str, statement: str) -> Any:
    async def run() -> Any:
        async with session(dsn) as connection:
            return await connection.fetchval(statement)

    return asyncio.run(run())


def until_closed(dsn: str) -> None:
    """Wait until the server has no session of notifyq: one ends a moment after its client."""

    async def run() -> None:
        async with session(dsn) as connection:
            await until_equal(
                lambda: connection.fetchval(SESSIONS), 0, "all sessions are closed", 30
            )

    asyncio.run(run())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_an_app_publishes_on_one_loop_after_another(
    database: str, runner: Callable[[Any], int]
) -> None:
    app = App(database)
    first, second, third = (runner(app.publish("default", n)) for n in range(3))
    assert first < second < third
    assert once(database, "select count(*) from messages.message") == 3


def test_the_end_of_a_loop_closes_its_connections(database: str) -> None:
    app = App(database)

    async def wait_for_a_result() -> None:
        handle = await app.publish("default", 1)
        async with app.inbox() as inbox:
            message = await inbox.wait(["default"], timeout=30)
            assert message is not None
            end = asyncio.create_task(handle.result())
            await inbox.finish(message, "done")
            assert await end == "done"

    for _ in range(2):
        asyncio.run(wait_for_a_result())
        until_closed(database)
    assert not [each for each in threading.enumerate() if each.name == "notifyq-listener"]
    assert len(app.database._pools._made) == 1


def test_a_result_is_awaited_on_another_loop_than_its_publish(database: str) -> None:
    app = App(database)
    handle = asyncio.run(app.publish("default", 1))
    assert asyncio.run(app.archive.cancel(handle))
    with pytest.raises(Exception, match="rejected"):
        asyncio.run(handle.result(timeout=10))


def test_threads_publish_on_loops_of_their_own(database: str) -> None:
    app = App(database)
    failures: list[BaseException] = []

    def publish() -> None:
        try:
            for n in range(5):
                asyncio.run(app.publish("default", n))
        except BaseException as error:  # noqa: BLE001  the test reports it
            failures.append(error)

    threads = [threading.Thread(target=publish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert once(database, "select count(*) from messages.message") == 20


async def test_closing_leaves_the_connections_of_other_loops(app: App) -> None:
    async with app:
        pid = await app.database.value("select pg_backend_pid()")
        await asyncio.to_thread(lambda: asyncio.run(_use_and_close(app)))
        assert await app.database.value("select pg_backend_pid()") == pid


async def _use_and_close(app: App) -> None:
    async with app:
        await app.publish("default", 1)


async def test_a_forked_child_has_connections_of_its_own(
    app: App, database: str, connection: Connection
) -> None:
    async with app:
        await app.publish("default", "parent")

        def publish_in_child() -> None:
            for n in range(20):
                asyncio.run(app.publish("default", f"child {n}"))
                app.publish_sync("default", f"child {n}, blocking")

        child = _fork(publish_in_child)
        for n in range(20):
            await app.publish("default", f"parent {n}")
        await asyncio.to_thread(child.join, 30)
        assert child.exitcode == 0
        await app.publish("default", "parent at the end")
    assert await connection.fetchval("select count(*) from messages.message") == 62


def test_a_child_of_a_program_that_blocks_publishes_too(database: str) -> None:
    app = App(database)
    app.publish_sync("default", "parent")
    child = _fork(lambda: app.publish_sync("default", "child"))
    child.join(30)
    assert child.exitcode == 0
    app.publish_sync("default", "parent")
    assert once(database, "select count(*) from messages.message") == 3


def _fork(function: Callable[[], Any]) -> Any:
    process = multiprocessing.get_context("fork").Process(target=function)
    process.start()
    assert process.pid != os.getpid()
    return process


async def test_a_loop_may_come_while_closed_ones_are_forgotten() -> None:
    class Made:
        async def close(self) -> None:
            pass

    class Other(asyncio.SelectorEventLoop):
        def is_closed(self) -> bool:
            made._made[loops[1]] = Made(), None  # as another thread does
            return super().is_closed()

    made = PerLoop(Made)
    loops = Other(), asyncio.SelectorEventLoop()
    made._made[loops[0]] = Made(), None
    try:
        assert made.get() is made.get()
        assert set(made._made) == {*loops, asyncio.get_running_loop()}
    finally:
        for loop in loops:
            loop.close()
