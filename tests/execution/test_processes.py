"""Handlers in processes: what no thread could stop is killed, and takes nobody else with it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from execution import in_processes
from execution.in_processes import die, endless, sleep, square
from notifyq import (
    App,
    ConfigurationError,
    Handler,
    Message,
    MessageFailedError,
    MessageRejectedError,
)
from notifyq.execution.call import HandlerCall
from notifyq.execution.processes import Processes
from notifyq.execution.runtime import Runtime
from notifyq.models.outcome import Rejected
from notifyq.telemetry import HandlerStuck, MessageFinished
from notifyq.testing import Sandbox
from support.database import Connection, until
from support.rows import message, register
from support.running import Events, working


@pytest.fixture
async def app(database: str) -> AsyncIterator[App]:
    in_processes.app.dsn = database
    yield in_processes.app
    await in_processes.app.close()


async def gone(pid: int) -> None:
    async def is_gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        # A zombie that nobody has waited for yet runs no more.
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()

    await until(is_gone, f"process {pid} is gone")


async def pid_in(path: Path) -> int:
    await until(lambda: path.exists() and bool(path.read_text()), "the handler runs", 30)
    return int(path.read_text())


async def test_it_runs_elsewhere_and_its_process_is_kept(app: App) -> None:
    async with working(app, queues=["squares"], concurrency=1):
        first, second = [
            await (await square.publish(number)).result(timeout=20) for number in (3, 4)
        ]
        assert (first[0], second[0]) == (9, 16)
        assert first[1] == second[1] != os.getpid()
        with pytest.raises(MessageRejectedError, match="negative"):
            await (await square.publish(-1)).result(timeout=20)
        with pytest.raises(MessageRejectedError, match="the payload is not valid"):
            await (await app.publish("squares", "x")).result(timeout=20)
        with pytest.raises(MessageFailedError, match="ValueError: thirteen") as failed:
            await (await square.publish(13)).result(timeout=20)
        assert 'raise ValueError("thirteen")' in (failed.value.details or "")
        assert await (await square.publish(5)).result(timeout=20) == (25, first[1])
    await gone(first[1])


async def test_a_process_that_crashes_fails_its_attempt_alone(app: App) -> None:
    reasons = {"exit": "exit code is 3", "kill": "by SIGKILL", "segfault": "by SIGSEGV"}
    async with working(app, queues=["deaths"], concurrency=2):
        *dying, living = await die.publish_many([*reasons, "well"])
        for handle, reason in zip(dying, reasons.values(), strict=True):
            with pytest.raises(MessageFailedError, match=f"of the handler crashed.*{reason}"):
                await handle.result(timeout=40)
        assert await living.result(timeout=40) == "well"


async def test_a_timeout_kills_it_whatever_it_does(
    app: App, events: Events, tmp_path: Path
) -> None:
    path = tmp_path / "pid"
    async with working(app, events, queues=["endless"]):
        handle = await endless.publish(str(path))
        with pytest.raises(MessageFailedError, match="longer than its timeout"):
            await handle.result(timeout=30)
        await gone(await pid_in(path))
    assert events.of(HandlerStuck) == []


async def test_a_stop_kills_it_and_gives_its_message_back(
    app: App, events: Events, tmp_path: Path, connection: Connection
) -> None:
    path = tmp_path / "pid"
    async with working(app, events, queues=["sleepers"], grace=0) as worker:
        await sleep.publish(str(path))
        pid = await pid_in(path)
        worker.stop()
    await gone(pid)
    assert [event.status for event in events.of(MessageFinished)] == ["released"]
    assert await connection.fetchval("select state::text from messages.message") == "waiting"


PROGRAM = """
import asyncio, sys
from execution.in_processes import app

if __name__ == "__main__":
    app.dsn = sys.argv[1]
    asyncio.run(app.work(app.worker(queues=[sys.argv[2]])))
"""


@pytest.mark.parametrize("handler", [sleep, endless])
async def test_it_ends_with_its_worker(
    app: App, database: str, tmp_path: Path, handler: Handler[Any]
) -> None:
    path, program = tmp_path / "pid", tmp_path / "program.py"
    program.write_text(PROGRAM)
    tests = str(Path(__file__).parents[1])
    await app.create_queues()
    await app.publish(handler.queue, str(path))
    worker = await asyncio.create_subprocess_exec(
        sys.executable, program, database, handler.queue, env={**os.environ, "PYTHONPATH": tests}
    )
    pid = await pid_in(path)
    worker.send_signal(signal.SIGKILL)
    await worker.wait()
    await gone(pid)


async def test_drain_runs_it_too(app: App, database: str) -> None:
    async with Sandbox(app, database) as sandbox:
        handle = await square.publish(7)
        await sandbox.drain("squares")
        assert (await handle.result())[0] == 49


async def test_middleware_does_not_see_an_invalid_payload() -> None:
    seen: list[Message] = []

    async def watch(message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(message)
        return await call()

    invalid = message('"x"', queue="squares")
    runtime = Runtime(processes=Processes())
    try:
        call = HandlerCall(replace(square, middleware=(watch,)), invalid)
        assert isinstance(await call.outcome(runtime), Rejected)
    finally:
        await runtime.close()
    assert seen == []


def test_only_what_a_process_can_import_runs_in_one() -> None:
    def local(payload: int) -> None: ...
    async def awaits(payload: int) -> None: ...
    def takes(messages: list[Message]) -> None: ...

    with pytest.raises(ConfigurationError, match="define it at the top of a module"):
        register(local, executor="process")
    with pytest.raises(ConfigurationError, match="only a sync function"):
        register(awaits, executor="process")
    with pytest.raises(ConfigurationError, match="only a sync function"):
        register(takes, executor="process", batch=3)
    with pytest.raises(ConfigurationError, match="executor must be 'process' or None"):
        register(local, executor="thread")
