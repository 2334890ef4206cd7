"""A handler that blocks the event loop is named while it does so, and so is a late result."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from notifyq import App
from notifyq.execution import runtime
from notifyq.notify.wake import call_on
from notifyq.operations import monitor
from notifyq.operations.metrics import WorkerMetrics
from notifyq.telemetry import (
    BatchFinished,
    EventRetried,
    HandlerStuck,
    LoopBlocked,
    MessageFinished,
)
from support.database import session
from support.running import Events, working


@contextmanager
def passing(caplog: pytest.LogCaptureFixture, text: str) -> Iterator[threading.Event]:
    """An event that is set by the first log line with this text: the loop may be blocked."""
    logged = threading.Event()

    def notice(record: logging.LogRecord) -> bool:
        if text in record.getMessage():
            logged.set()
        return True

    caplog.handler.addFilter(notice)
    try:
        yield logged
    finally:
        caplog.handler.removeFilter(notice)


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """The warnings with this text."""
    return [
        it.getMessage()
        for it in caplog.records
        if it.levelname == "WARNING" and text in it.getMessage()
    ]


def wait_in_user_code(logged: threading.Event) -> None:
    assert logged.wait(20)


async def test_the_handler_that_blocks_the_loop_is_named_with_its_stack(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = WorkerMetrics()
    with passing(caplog, "has blocked the event loop") as logged:

        @app.handler("q", timeout=0.5)
        async def handle() -> None:
            wait_in_user_code(logged)

        async with working(app, events, metrics=metrics) as worker:
            message = int(await handle.publish())
            [blocked] = await events.wait(LoopBlocked)
            [finished] = await events.wait(MessageFinished)
    assert (blocked.worker, blocked.queue, blocked.message_id) == (worker.name, "q", message)
    assert blocked.handler is not None
    assert blocked.handler.endswith("handle")
    assert blocked.seconds >= 1
    [began] = lines(caplog, "has blocked the event loop")
    assert began.startswith(f"queue 'q': message {message} has blocked the event loop for ")
    stack = began.partition("It stands in\n")[2].splitlines()
    assert stack[0].endswith(", in handle")
    assert stack[1].strip() == "wait_in_user_code(logged)"
    assert any(it.endswith(", in wait_in_user_code") for it in stack)
    [ended] = lines(caplog, "it turns again")
    assert ended.startswith(f"queue 'q': message {message} blocked the event loop for ")
    # Its effect has happened: the log reports that it came late.
    assert finished.status == "success"
    [late] = lines(caplog, "past its timeout")
    assert late.startswith(f"queue 'q': message {message} ended after ")
    assert late.endswith(" s, past its timeout of 0.5 s, because it blocked the event loop")
    page = metrics.registry.get_sample_value
    assert page("notifyq_loop_blocked_total", {"queue": "q"}) == 1
    assert page("notifyq_loop_blocked_seconds_total", {"queue": "q"}) == blocked.seconds


async def test_operators_see_that_a_worker_is_blocked(
    app: App, events: Events, database: str
) -> None:
    seen: list[monitor.WorkerInfo] = []

    async def read() -> None:
        async with session(database) as connection, asyncio.timeout(20):
            while not seen or seen[-1].state != "blocked":
                seen.extend(await monitor.workers(connection))

    @app.handler("q")
    async def handle() -> None:
        reader = threading.Thread(target=lambda: asyncio.run(read()))
        reader.start()
        reader.join()

    async with working(app, events), session(database) as connection:
        await handle.publish()
        await events.wait(LoopBlocked)
        assert seen[-1].blocked_at is not None
        async with asyncio.timeout(20):
            while (await monitor.workers(connection))[0].blocked_at is not None:
                pass


async def test_a_call_that_another_one_kept_past_its_timeout_names_it(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    waits, let_go = asyncio.Event(), threading.Event()
    with passing(caplog, "has blocked the event loop") as logged:

        @app.handler("thread", timeout=0.6)
        def thread() -> None:
            loop.call_soon_threadsafe(waits.set)
            let_go.wait(20)

        @app.handler("blocks")
        async def blocks() -> None:
            wait_in_user_code(logged)

        loop = asyncio.get_running_loop()
        async with working(app, events):
            late = int(await thread.publish())
            await waits.wait()
            blocker = int(await blocks.publish())
            await events.wait(MessageFinished, 2)
            let_go.set()
    [line] = lines(caplog, "past its timeout")
    assert line.startswith(f"queue 'thread': message {late} ended after ")
    assert line.endswith(f"because message {blocker} of queue 'blocks' blocked the event loop")


async def test_a_result_that_exists_wins_over_a_timeout_that_fires_late(
    app: App,
    events: Events,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, let_go, reported = asyncio.Event(), threading.Event(), threading.Event()

    def noted(*args: Any) -> None:
        call_on(*args)
        reported.set()

    monkeypatch.setattr(runtime, "call_on", noted)
    with passing(caplog, "has blocked the event loop") as logged:

        @app.subscriber("s", "reader", timeout=0.6)
        def thread(payload: int) -> None:
            loop.call_soon_threadsafe(waits.set)
            let_go.wait(20)

        @app.handler("blocks")
        async def blocks() -> None:
            let_go.set()
            reported.wait(20)
            wait_in_user_code(logged)

        loop = asyncio.get_running_loop()
        async with working(app, events):
            await app.publish("s", 1)
            await waits.wait()
            await blocks.publish()
            [finished] = await events.wait(BatchFinished)
    assert finished.events == 1
    assert not events.of(EventRetried)
    assert not events.of(HandlerStuck)


@pytest.mark.parametrize("batch", [None, 10])
async def test_a_subscriber_that_blocks_the_loop_is_named_with_its_batch(
    app: App, events: Events, caplog: pytest.LogCaptureFixture, batch: int | None
) -> None:
    with passing(caplog, "has blocked the event loop") as logged:

        async def one(payload: int) -> None:
            wait_in_user_code(logged)

        async def several(payloads: list[int]) -> None:
            wait_in_user_code(logged)

        app.subscriber("s", "reader", timeout=0.5, batch=batch)(several if batch else one)
        async with working(app, events):
            await app.publish("s", 1)
            [blocked] = await events.wait(LoopBlocked)
            [finished] = await events.wait(BatchFinished)
    assert (blocked.stream, blocked.subscriber) == ("s", "reader")
    assert (blocked.batch_id, blocked.queue) == (finished.batch_id, None)
    [began] = lines(caplog, "has blocked the event loop")
    assert began.startswith("stream 's': event ")
    assert f" in batch {finished.batch_id} for 'reader' has blocked the event loop" in began
    [late] = lines(caplog, "past its timeout")
    assert late.endswith("because it blocked the event loop")
    assert finished.events == 1


async def test_a_task_that_a_handler_has_made_is_shown_with_the_handlers_that_run(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    with passing(caplog, "has been blocked") as logged:

        async def child() -> None:
            wait_in_user_code(logged)

        @app.handler("q")
        async def handle() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())

        async with working(app, events):
            message = int(await handle.publish())
            [blocked] = await events.wait(LoopBlocked)
    assert (blocked.handler, blocked.queue, blocked.message_id) == (None, None, None)
    [began] = lines(caplog, "has been blocked")
    assert began.startswith("the event loop has been blocked for ")
    assert f"(queue 'q': message {message})" in began
    assert began.partition("It stands in\n")[2].splitlines()[0].endswith(", in child")
