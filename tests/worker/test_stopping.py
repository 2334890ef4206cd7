"""Stopping: what runs may end, what is left goes back at once, and the process does end."""

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.programs import Running
from notifyq import App, Message, Worker
from notifyq.execution.runtime import Runtime
from notifyq.telemetry import (
    HandlerStuck,
    MessageFinished,
    MessagesClaimed,
    WorkerStopped,
    WorkerStopping,
)
from notifyq.worker.fetch import Claims, Fetcher
from notifyq.worker.streams.consumer import StreamConsumer
from support.database import Connection, expire, publish, rows, value
from support.running import Events, statuses, working


async def live_states(connection: Connection) -> list[tuple[str, int, Any]]:
    found = await connection.fetch(
        "select state::text, attempts, locked_by from messages.message order by id"
    )
    return [tuple(row) for row in found]


class Gate:
    """Handlers wait here, and report it."""

    def __init__(self) -> None:
        self.waiting = 0
        self.opened = asyncio.Event()
        self._news = asyncio.Event()

    async def wait(self) -> None:
        self.waiting += 1
        self._news.set()
        await self.opened.wait()

    async def until_waiting(self, quantity: int) -> None:
        async with asyncio.timeout(10):
            while self.waiting < quantity:
                self._news.clear()
                await self._news.wait()


async def test_a_stop_lets_running_handlers_end_and_claims_no_more(
    app: App, events: Events, connection: Connection
) -> None:
    gate = Gate()
    app.handler("q")(gate.wait)
    await app.create_queues()
    async with working(app, events, concurrency=3) as worker:
        await publish(connection, 5, "q")
        await gate.until_waiting(3)
        worker.stop()
        await publish(connection, 1, "q")
        gate.opened.set()
        await events.wait(WorkerStopped)
    assert await statuses(connection) == {"success": 3}
    assert await live_states(connection) == [("waiting", 0, None)] * 3
    (stopped,) = events.of(WorkerStopped)
    assert (stopped.handled, stopped.released) == (3, 0)


@pytest.mark.parametrize(("grace", "stops"), [(0.3, 1), (600, 2)])
async def test_after_the_grace_or_a_second_stop_handlers_are_cancelled_and_messages_released(
    app: App, events: Events, connection: Connection, grace: float, stops: int
) -> None:
    gate = Gate()
    app.handler("q", lock_duration=600)(gate.wait)
    await app.create_queues()
    async with working(app, events, grace=grace) as worker:
        await publish(connection, 3, "q")
        await gate.until_waiting(3)
        began = time.monotonic()
        for _ in range(stops):
            worker.stop()
        await events.wait(WorkerStopped)
        assert stops == 2 or time.monotonic() - began >= grace
    assert await live_states(connection) == [("waiting", 0, None)] * 3
    assert events.of(WorkerStopped)[0].released == 3


async def test_one_part_that_fails_to_close_leaves_no_other_open(
    app: App, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    for part in (Runtime, StreamConsumer, Claims, Fetcher):

        async def close(_: object, name: str = part.__name__) -> None:
            closed.append(name)
            raise RuntimeError(f"{name} does not close")

        monkeypatch.setattr(part, "close", close)
    app.handler("q")(print)
    app.subscriber("s", "x")(print)
    await app.create_queues()
    await app.create_subscriptions()
    with pytest.raises(RuntimeError, match="Runtime does not close"):
        async with working(app, events):
            pass
    assert closed == ["Runtime", "StreamConsumer", "Claims", "Fetcher"]
    assert events.of(WorkerStopped)


async def test_messages_of_a_claim_that_a_stop_overtakes_go_back_unhandled(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Claims.claim
    handled: list[Any] = []
    app.handler("q", lock_duration=600)(handled.append)
    await app.create_queues()
    await publish(connection, 3, "q")
    worker = app.worker(telemetry=events)

    async def claim(self: Claims, *args: Any, **options: Any) -> list[Message]:
        messages = await send(self, *args, **options)
        worker.stop()
        return messages

    monkeypatch.setattr(Claims, "claim", claim)
    async with asyncio.timeout(20):
        await app.work(worker)
    assert handled == []
    assert await live_states(connection) == [("waiting", 0, None)] * 3
    assert events.of(WorkerStopped)[0].released == 3


@pytest.mark.parametrize("stops", [1, 2])
async def test_a_handler_may_stop_its_own_worker(
    app: App, events: Events, connection: Connection, stops: int
) -> None:
    workers: list[Worker] = []

    @app.handler("async")
    async def later() -> None:
        for _ in range(stops):
            workers[0].stop()

    @app.handler("sync")
    def sync() -> None:
        for _ in range(stops):
            workers[0].stop()

    for queue in ("async", "sync"):
        await app.create_queues()
        await app.publish(queue, None)
        workers[:] = [app.worker(queues=[queue], telemetry=events, poll=60)]
        async with asyncio.timeout(20):
            await app.work(workers[0])
    # With two stops a thread may be given up in the moment that it ends.
    assert len(events.of(WorkerStopped)) == 2
    locked = await connection.fetchval(
        "select count(*) from messages.message where state = 'locked'"
    )
    assert locked == 0
    if stops == 1:
        assert await statuses(connection) == {"success": 2}


async def test_a_stop_before_the_start_ends_it_at_once(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    worker = app.worker(telemetry=events)
    worker.stop()
    async with asyncio.timeout(20):
        await app.work(worker)
    assert events.of(MessagesClaimed) == []


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_worker_that_is_cancelled_drains_and_at_the_second_time_leaves_nothing_running(
    app: App, events: Events, connection: Connection, cancels: int
) -> None:
    gate = Gate()
    app.handler("q")(gate.wait)
    await app.create_queues()
    await publish(connection, 2, "q")
    task = asyncio.create_task(app.work(app.worker(telemetry=events, maintenance=60)))
    await gate.until_waiting(2)
    task.cancel()
    await events.wait(WorkerStopping)
    if cancels == 2:
        task.cancel()
    else:
        gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(events.of(WorkerStopped)) == 1  # and the leak guard checks for tasks
    if cancels == 1:
        assert await statuses(connection) == {"success": 2}


async def test_a_sync_handler_that_is_stuck_is_given_up(
    app: App, events: Events, connection: Connection
) -> None:
    started, let_go = threading.Event(), threading.Event()

    @app.handler("q", lock_duration=600)
    def handle() -> None:
        started.set()
        let_go.wait(30)

    await app.create_queues()
    async with working(app, events, grace=0.2):
        await publish(connection, 1, "q")
        await asyncio.to_thread(started.wait, 10)
    assert await live_states(connection) == [("waiting", 0, None)]
    assert len(events.of(HandlerStuck)) == 1
    let_go.set()


async def test_a_handler_that_swallows_every_cancellation_does_not_keep_its_message(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.worker.run._SETTLE", 0.3)
    started, may_end = asyncio.Event(), asyncio.Event()
    tasks = []

    @app.handler("q", lock_duration=1)
    async def handle() -> None:
        if task := asyncio.current_task():
            tasks.append(task)
        started.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    await app.create_queues()
    async with working(app, events, grace=0.1):
        (message_id,) = await publish(connection, 1, "q")
        await started.wait()
    # Nobody extends its lock any more.
    await expire(connection, message_id)
    assert await value(connection, "reap") == 1
    may_end.set()
    await asyncio.wait(tasks)


# From here on the worker is a process of its own.

PROGRAM = """
import asyncio, os, sys, time
from notifyq import App
app = App()

def report_started():
    os.write(1, b"started\\n")  # whole lines, also from threads

@app.handler("slow", lock_duration=600)
async def slow(_: float):
    report_started()
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
    return "done"

@app.handler("stuck", lock_duration=600)
def stuck(seconds: float):
    report_started()
    time.sleep(seconds)

@app.handler("short", lock_duration=1, max_attempts=2, backoff=0)
async def short(seconds: float):
    report_started()
    await asyncio.sleep(seconds)
"""


@contextmanager
def process(tmp_path: Path, dsn: str, *options: str) -> Iterator[Running]:
    (tmp_path / "handlers.py").write_text(PROGRAM)
    command = ("worker", "handlers:app", "--log-level", "error")
    with Running(dsn, *command, *options, cwd=tmp_path) as worker:
        yield worker


def started(worker: Running, quantity: int = 1) -> None:
    """Wait until so many handlers have begun."""
    assert [worker.line() for _ in range(quantity)] == ["started\n"] * quantity


@pytest.fixture
async def queues(connection: Connection) -> None:
    await connection.execute(
        "select messages.create_queue('slow', lock_duration => '10 minutes'), "
        "messages.create_queue('stuck', lock_duration => '10 minutes'), "
        "messages.create_queue('short', lock_duration => '1 s', max_attempts => 2, backoff => '0')"
    )


async def send(connection: Connection, queue: str, seconds: float, quantity: int) -> None:
    await rows(connection, "publish_many", queue=queue, messages=[seconds] * quantity)


@pytest.mark.usefixtures("queues")
async def test_a_signal_lets_all_running_handlers_end(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    await send(connection, "slow", 600, 50)
    options = ("-c", "40", "--grace", "20s", "--log-level", "info")
    with process(tmp_path, database, *options) as worker:
        started(worker, 40)
        worker.process.send_signal(signal.SIGTERM)
        worker.logged(" is stopping; ")
        (tmp_path / "go").touch()
        assert worker.end().code == 0
    assert await statuses(connection) == {"success": 40}
    assert await live_states(connection) == [("waiting", 0, None)] * 10


@pytest.mark.usefixtures("queues")
@pytest.mark.parametrize(
    # Two of a kind could become one on their way.
    ("grace", "signals"), [("500ms", [signal.SIGTERM]), ("10m", [signal.SIGTERM, signal.SIGINT])]
)  # fmt: skip
async def test_a_process_ends_after_its_grace_or_a_second_signal_whatever_its_handlers_do(
    database: str, connection: Connection, tmp_path: Path, grace: str, signals: list[signal.Signals]
) -> None:
    await send(connection, "slow", 600, 3)
    await send(connection, "stuck", 600, 3)
    with process(tmp_path, database, "--grace", grace) as worker:
        started(worker, 6)
        began = time.monotonic()
        for number in signals:
            worker.process.send_signal(number)
        assert worker.end().code == 0
        assert len(signals) == 2 or time.monotonic() - began >= 0.5
    assert await live_states(connection) == [("waiting", 0, None)] * 6


@pytest.mark.usefixtures("queues")
async def test_what_a_killed_worker_held_is_handled_by_another(
    database: str, connection: Connection, tmp_path: Path, app: App, events: Events
) -> None:
    await send(connection, "short", 600, 3)
    with process(tmp_path, database, "-q", "short") as worker:
        started(worker, 3)
        assert worker.stop(signal.SIGKILL).code == -signal.SIGKILL

        @app.handler("short")
        async def short(message: Message) -> int:
            return message.attempts

        # With its own maintenance: no cron runs in the database of a test.
        async with working(app, events, maintenance=0.2, poll=0.2):
            await events.wait(MessageFinished, 3, status="success")
    results = await connection.fetch("select result from messages.message_archive")
    assert [row[0] for row in results] == [2, 2, 2]


@pytest.mark.usefixtures("queues")
async def test_a_worker_that_was_frozen_past_its_lock_changes_nothing(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    await send(connection, "short", 1, 1)
    with process(tmp_path, database, "-q", "short", "--grace", "10s") as worker:
        started(worker)
        worker.process.send_signal(signal.SIGSTOP)
        ids = await connection.fetch("select id from messages.message")
        await expire(connection, *(row[0] for row in ids))
        await value(connection, "reap")
        (claimed,) = await rows(connection, "claim", queues=["short"], worker="thief")
        worker.process.send_signal(signal.SIGCONT)
        assert worker.stop(signal.SIGTERM).code == 0
        assert await live_states(connection) == [("locked", 2, "thief")]
        assert await value(connection, "finish", id=claimed["id"], lock_token=claimed["lock_token"])
    assert await statuses(connection) == {"success": 1}
