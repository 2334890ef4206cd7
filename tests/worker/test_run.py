"""Slots, messages that wait for them, and messages that go back, without a database."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from notifyq import Message
from notifyq.models.outcome import Outcome, Rejected, Success
from notifyq.telemetry import Guarded, LockLost, MessageFinished, TelemetryEvent
from notifyq.worker.run import Runner
from notifyq.worker.settle import Answer, Settler
from support.database import until
from support.rows import START, message, register


class Desk(Settler):
    """Settles in memory; what is in `lost` has lost its lock."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.released: list[int] = []
        self.lost: set[int] = set()
        self.opened = asyncio.Event()
        self.opened.set()

    def add(
        self, message: Message, outcome: Outcome, log: str | None = None
    ) -> asyncio.Future[Answer]:
        async def later() -> Answer:
            await self.opened.wait()
            done = self.settled if isinstance(outcome, Success | Rejected) else self.released
            done.append(message.id)
            return message.id not in self.lost

        return asyncio.create_task(later())


class Gate:
    """A handler that records each message and holds it until it may go."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._doors: dict[int, asyncio.Event] = {}

    async def handle(self, message: Message) -> None:
        self.begun.append(message.id)
        await self._doors.setdefault(message.id, asyncio.Event()).wait()

    def let_go(self, *ids: int) -> None:
        for number in ids:
            self._doors.setdefault(number, asyncio.Event()).set()


class Stage:
    """A runner with two slots, and its events."""

    def __init__(self, concurrency: int = 2) -> None:
        self.desk = Desk()
        self.events: list[TelemetryEvent] = []
        self.failures: list[BaseException] = []
        self.runner = Runner(
            self.desk,
            Guarded(self.events.append),
            asyncio.Event(),
            concurrency=concurrency,
            on_failure=self.failures.append,
        )

    def start(self, handle: Callable[..., Any], *ids: int) -> None:
        for id_ in ids:
            self.runner.start(register(handle), message(id=id_), time.monotonic())

    async def until_settled(self) -> None:
        await until(lambda: not self.runner.held, "everything is settled")


@asynccontextmanager
async def staged(concurrency: int = 2) -> AsyncIterator[Stage]:
    stage = Stage(concurrency)
    watch = asyncio.create_task(stage.runner.watch())
    try:
        yield stage
    finally:
        watch.cancel()
        await asyncio.wait({watch})
        await stage.runner.abandon()


async def turns(quantity: int = 5) -> None:
    for _ in range(quantity):
        await asyncio.sleep(0)


async def test_what_finds_no_slot_waits_for_one_in_order() -> None:
    gate = Gate()
    async with staged() as stage:
        stage.start(gate.handle, 1, 2, 3, 4, 5)
        await turns()
        assert gate.begun == [1, 2]
        gate.let_go(2)
        await turns()
        assert gate.begun == [1, 2, 3]
        gate.let_go(1, 3, 4, 5)
        await stage.until_settled()
        assert gate.begun == [1, 2, 3, 4, 5]
        assert stage.runner.counts == {"success": 5}


async def test_a_slot_is_free_while_its_last_message_is_still_settled() -> None:
    gate = Gate()
    async with staged() as stage:
        stage.desk.opened.clear()
        gate.let_go(1, 2)
        stage.start(gate.handle, 1, 2, 3)
        await turns()
        assert gate.begun == [1, 2, 3]
        assert stage.desk.settled == []
        assert sorted(id_ for id_, _token in stage.runner.held) == [1, 2, 3]
        gate.let_go(3)
        stage.desk.opened.set()
        await stage.until_settled()


async def test_every_handler_begins_in_the_context_of_the_worker() -> None:
    name = contextvars.ContextVar[str]("name", default="clean")
    seen = []

    async def handle() -> None:
        seen.append(name.get())
        name.set("left behind")

    async with staged(concurrency=1) as stage:
        stage.start(handle, *range(3))
        await stage.until_settled()
    assert seen == ["clean"] * 3


async def test_a_stop_releases_at_once_what_waits_and_lets_the_rest_end() -> None:
    gate = Gate()
    async with staged() as stage:
        stage.start(gate.handle, 1, 2, 3, 4, 5)
        await turns()
        stage.runner.stop_starting()
        await turns()
        assert stage.desk.released == [3, 4, 5]
        stage.start(gate.handle, 6)
        gate.let_go(1, 2)
        await stage.until_settled()
        assert gate.begun == [1, 2]
        assert stage.desk.released == [3, 4, 5, 6]
        assert stage.runner.counts == {"success": 2, "released": 4}


async def test_what_waits_for_too_long_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notifyq.worker.run.PATIENCE", 0)
    gate = Gate()
    async with staged() as stage:
        stage.desk.lost.add(4)
        stage.start(gate.handle, 1, 2, 3, 4)
        await until(lambda: stage.desk.released == [3, 4], "what waits is released")
        gate.let_go(1, 2)
        await stage.until_settled()
        assert gate.begun == [1, 2]
        assert stage.runner.counts == {"success": 2, "released": 1, "lost": 1}
    assert [e.message_id for e in stage.events if isinstance(e, LockLost)] == [4]
    assert len([e for e in stage.events if isinstance(e, MessageFinished)]) == 3


async def test_what_waits_past_its_lock_is_not_started() -> None:
    gate = Gate()
    async with staged() as stage:
        stage.start(gate.handle, 1, 2)
        short = message(id=3, lock_expires_at=START + timedelta(microseconds=1))
        stage.runner.start(register(gate.handle, heartbeat=False), short, time.monotonic())
        gate.let_go(1, 2)
        await stage.until_settled()
    assert gate.begun == [1, 2]
    assert stage.desk.released == [3]


async def test_what_waits_and_has_lost_its_lock_is_not_started() -> None:
    gate = Gate()
    async with staged() as stage:
        stage.start(gate.handle, 1, 2, 3)
        stage.desk.lost.add(3)
        stage.runner._lock_lost((3, 1))
        await turns()
        gate.let_go(1, 2)
        await stage.until_settled()
    assert gate.begun == [1, 2]
    assert stage.runner.counts == {"success": 2, "lost": 1}


async def test_a_thread_that_was_stuck_gives_its_slot_to_what_waits() -> None:
    let_go, ran = threading.Event(), asyncio.Event()

    def stuck() -> None:
        let_go.wait(10)

    async def quick() -> None:
        ran.set()

    async with staged(concurrency=1) as stage:
        stage.runner.start(register(stuck, timeout=0.01), message(id=1), time.monotonic())
        await until(
            lambda: stage.runner.busy == 1 and not stage.runner.held, "the thread is given up"
        )
        stage.start(quick, 2)
        await turns()
        assert not ran.is_set()
        let_go.set()
        async with asyncio.timeout(5):
            await ran.wait()
        await stage.until_settled()


async def test_room_is_for_the_slots_and_for_what_they_soon_handle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    async with staged(concurrency=10) as stage:
        assert stage.runner.room == 10
        stage.start(gate.handle, *range(4))
        assert stage.runner.room == 6
        monkeypatch.setattr(stage.runner._prefetch, "quantity", lambda: 20)
        assert stage.runner.room == 26
        stage.start(gate.handle, *range(4, 21))
        assert stage.runner.room == 0  # for nine a claim does not pay
        gate.let_go(*range(21))
        await stage.until_settled()


async def test_an_error_of_a_settlement_is_reported_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staged() as stage:

        async def refuse() -> Answer:
            raise ValueError("no")

        monkeypatch.setattr(stage.desk, "add", lambda *_: asyncio.create_task(refuse()))
        stage.runner.start(register(lambda: None), message(), time.monotonic())
        await stage.until_settled()
    assert [str(failure) for failure in stage.failures] == ["no"]
    assert stage.runner.counts == {}


async def test_a_message_that_cannot_be_reported_is_settled_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = message(id=1)
    # Without a time zone, as the driver gives infinity.
    object.__setattr__(odd, "available_at", odd.created_at.replace(tzinfo=None))
    async with staged() as stage:
        for held in (odd, message(id=2)):
            stage.runner.start(register(lambda: None), held, time.monotonic())
        await stage.until_settled()
    assert stage.desk.settled == [1, 2]
    reported = [it.message_id for it in stage.events if isinstance(it, MessageFinished)]
    assert reported == [2]
    assert stage.failures == []
    assert "the end of message 1 was not reported" in caplog.text
