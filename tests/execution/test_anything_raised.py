"""Whatever a handler raises: its slot is free again, its message settled, the worker goes on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from execution.raisers import NAMES, Custom, act
from execution.raisers import app as process_app
from notifyq import App, Event, Message, Transaction
from notifyq.telemetry import BatchFinished, MessageFinished, WorkerStopped
from support.running import Events, working


@pytest.fixture(autouse=True)
def no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report of a test goes from one process to another, and takes no lone surrogate along."""
    monkeypatch.setattr(logging.getLogger("notifyq.worker"), "disabled", True)


def in_async(app: App) -> None:
    @app.handler("q")
    async def handle(what: str) -> Any:
        return act(what)


def in_a_task_of_its_own(app: App) -> None:
    @app.handler("q")
    async def handle(what: str) -> Any:
        async def work() -> Any:
            return act(what)

        if what in {"KeyboardInterrupt", "SystemExit"}:  # which asyncio hands to its caller
            return act(what)
        return await asyncio.create_task(work())


def in_thread(app: App) -> None:
    app.handler("q")(act)


def in_batch(app: App) -> None:
    @app.handler("q", batch=1)
    async def handle(all_of: list[str]) -> Any:
        return [act(what) for what in all_of]


def in_batch_of_a_thread(app: App) -> None:
    @app.handler("q", batch=1)
    def handle(all_of: list[str]) -> Any:
        return [act(what) for what in all_of]


def in_transaction(app: App) -> None:
    @app.handler("q", transactional=True)
    async def handle(what: str, connection: Transaction) -> Any:
        await connection.fetchval("select 1")
        return act(what)


def in_middleware(app: App) -> None:
    @app.middleware
    async def around(message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        await call()
        return act(message.payload())

    app.handler("q")(lambda _what: None)


def in_backoff(app: App) -> None:
    def wait(state: Any) -> Any:
        assert state.outcome is not None
        return act(state.args[0].payload())

    @app.handler("q", backoff=wait)
    async def handle(what: str) -> None:
        if what != "fine":
            raise ValueError(what)


WAYS = [
    in_async, in_a_task_of_its_own, in_thread, in_batch, in_batch_of_a_thread, in_transaction,
    in_middleware, in_backoff,
]  # fmt: skip


async def all_fail(app: App, events: Events, queue: str) -> None:
    async with working(app, events, concurrency=2, seconds=60) as worker:
        await app.publish_many(queue, NAMES)
        await events.wait(MessageFinished, len(NAMES), seconds=60)
        assert worker.slots[0] == 0
        await app.publish(queue, "fine")
        await events.wait(MessageFinished, status="success")
        assert not events.of(WorkerStopped)
    dead = {message.payload(): message for message in await app.archive.dead(queue, 100)}
    assert dead.keys() == set(NAMES)
    assert {message.status for message in dead.values()} == {"failed"}
    assert all(message.details for message in dead.values())
    for message in dead.values():
        assert len(await app.archive.attempts(message.id)) == 1


@pytest.mark.parametrize("way", WAYS)
async def test_a_message_that_makes_its_handler_raise_anything(
    app: App, events: Events, way: Callable[[App], None]
) -> None:
    way(app)
    await all_fail(app, events, "q")


async def test_a_handler_in_a_process(database: str, events: Events) -> None:
    process_app.dsn = database
    try:
        await all_fail(process_app, events, "process")
    finally:
        await process_app.close()


@pytest.mark.parametrize("options", [{}, {"transactional": True}, {"concurrency": 3}])
@pytest.mark.parametrize("is_async", [True, False])
async def test_an_event_that_makes_its_subscriber_raise_anything(
    app: App, events: Events, options: dict[str, Any], is_async: bool
) -> None:
    raised = [name for name in NAMES if name != "slippery"]  # what it returns is dropped
    if not is_async and "transactional" in options:
        pytest.skip("its connection belongs to the event loop")
    seen: Counter[str] = Counter()

    def act_on(event: Event) -> None:
        seen[event.payload()] += 1
        act(event.payload())

    async def await_it(event: Event) -> None:
        act_on(event)

    async def in_transaction(event: Event, connection: Transaction) -> None:
        await connection.fetchval("select 1")
        act_on(event)

    function: Any = await_it if is_async else act_on
    if "transactional" in options:
        function = in_transaction
    app.subscriber("s", "r", max_attempts=1, position="start", **options)(function)
    await app.create_subscriptions()
    await app.publish_many("s", raised)
    async with working(app, events, seconds=60):
        await events.wait(BatchFinished, seconds=60)
        await app.publish("s", "fine")
        await events.wait(BatchFinished, seconds=60, failed=0)
        assert not events.of(WorkerStopped)
    assert seen == Counter([*raised, "fine"])
    dead = await app.archive.dead("s", 100)
    assert {message.payload() for message in dead} == set(raised)


async def cancel_itself(what: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    if what != "fine":
        task.cancel()
    if what == "and waits":
        await asyncio.Event().wait()


@pytest.mark.parametrize("options", [{}, {"batch": 1}, {"transactional": True}])
async def test_a_handler_that_cancels_its_own_task(
    app: App, events: Events, options: dict[str, Any]
) -> None:
    async def handle(what: str) -> None:
        await cancel_itself(what)

    async def handle_all(all_of: list[str]) -> None:
        await cancel_itself(all_of[0])

    async def in_transaction(what: str, _connection: Transaction) -> None:
        await cancel_itself(what)

    function: Any = handle
    if options:
        function = handle_all if "batch" in options else in_transaction
    app.handler("q", **options)(function)
    async with working(app, events, concurrency=2):
        await app.publish_many("q", ["and waits", "and returns", "fine"])
        await events.wait(MessageFinished, 3)
    [dead] = await app.archive.dead("q")
    assert (dead.payload(), dead.status) == ("and waits", "failed")
    assert "CancelledError" in str((await app.archive.attempts(dead.id))[0].traceback)


@pytest.mark.parametrize("options", [{}, {"transactional": True}, {"concurrency": 3}])
async def test_a_subscriber_that_cancels_its_own_task(
    app: App, events: Events, options: dict[str, Any]
) -> None:
    async def act_on(event: Event) -> None:
        await cancel_itself(event.payload())

    async def in_transaction(event: Event, _connection: Transaction) -> None:
        await act_on(event)

    function: Any = in_transaction if "transactional" in options else act_on
    app.subscriber("s", "r", max_attempts=1, position="start", **options)(function)
    await app.create_subscriptions()
    await app.publish_many("s", ["and waits", "and returns", "fine"])
    async with working(app, events):
        await events.wait(BatchFinished, failed=1)
    assert [message.payload() for message in await app.archive.dead("s")] == ["and waits"]


async def test_a_sink_that_raises_anything_costs_no_message(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)

    def telemetry(event: Any) -> None:
        events(event)
        if isinstance(event, MessageFinished):
            raise Custom("no")

    worker = app.worker(telemetry=telemetry, concurrency=2, poll=0.1)
    import asyncio

    task = asyncio.create_task(app.work(worker))
    await app.create_queues()
    handles = await app.publish_many("q", range(6))
    await events.wait(MessageFinished, 6)
    await app.publish("q", 7)
    await events.wait(MessageFinished, 7)
    worker.stop()
    await task
    assert len(handles) == 6
