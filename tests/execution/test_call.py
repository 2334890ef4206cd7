"""One message, one outcome, whatever the payload is and whatever the handler does."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, computed_field, field_validator

from notifyq import Message, Reject, Retry, Status
from notifyq.execution.call import Cause, HandlerCall
from notifyq.execution.runtime import Runtime, Threads
from notifyq.models.outcome import Failed, Outcome, Rejected, Released, Success
from notifyq.telemetry.tracebacks import clean, describe
from support.rows import message, register


class Order(BaseModel):
    n: int


class Grumpy(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def refuse(cls, n: int) -> int:
        raise {1: KeyError("grumpy"), 2: Reject("not today"), 3: Retry(after=7)}[n]


class Broken(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def n(self) -> int:
        raise KeyError("broken")


class TextlessError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


async def run(function: Callable[..., Any], payload: str = "null", **columns: Any) -> Outcome:
    threads = Threads()
    try:
        execution = HandlerCall(register(function), message(payload, **columns))
        return await execution.outcome(Runtime(threads=threads))
    finally:
        threads.close()


def both(function: Callable[..., Any]) -> list[Callable[..., Any]]:
    """A function as a sync and as an async handler."""

    async def later(payload: Any) -> Any:
        return function(payload)

    return [function, later]


@pytest.mark.parametrize("handler", both(lambda n: {"n": n + 1}))
async def test_what_a_handler_returns_is_its_result(handler: Callable[..., Any]) -> None:
    assert await run(handler, "41") == Success('{"n":42}')


async def test_no_result_is_none_and_not_null() -> None:
    assert await run(lambda: None) == Success(None)


async def test_a_result_is_written_by_its_annotation() -> None:
    def handle(order: Order) -> Order:
        return order

    assert await run(handle, '{"n": 1}') == Success('{"n":1}')


async def test_a_handler_gets_payload_and_message_by_position_and_by_name() -> None:
    def by_position(message: Message, n: int) -> list[int]:
        return [message.id, n]

    async def name(n: int, limit: int = 5, *, message: Message) -> list[int]:
        return [message.id, n, limit]

    assert await run(by_position, "7", id=3) == Success("[3,7]")
    assert await run(name, "7", id=3) == Success("[3,7,5]")


@pytest.mark.parametrize("payload", ["[" * 200_000 + "]" * 200_000, "1" + "0" * 5000, "[" * 5000])
@pytest.mark.parametrize("annotation", [Any, Order, int, list[Any]])
async def test_a_payload_that_python_cannot_hold_is_rejected(annotation: Any, payload: str) -> None:
    def handle(value: Any) -> None:
        raise AssertionError

    handle.__annotations__["value"] = annotation
    outcome = await run(handle, payload)
    assert isinstance(outcome, Rejected)
    assert "the payload" in outcome.reason


async def test_a_handler_that_takes_no_payload_is_not_disturbed_by_it() -> None:
    assert await run(lambda: 1, "[" * 5000 + "]" * 5000) == Success("1")


async def test_a_payload_that_is_not_valid_is_rejected_with_every_reason() -> None:
    class Pair(BaseModel):
        a: int
        b: list[int]

    def handle(pair: Pair) -> None: ...

    outcome = await run(handle, '{"a": "x", "b": [1, null]}')
    assert isinstance(outcome, Rejected)
    assert outcome.reason.startswith("the payload is not valid: a: Input should be a valid integer")
    assert "; b.1: Input should be" in outcome.reason


async def test_a_validator_of_the_users_may_raise_anything() -> None:
    def handle(order: Grumpy) -> None: ...

    failed = await run(handle, '{"n": 1}')
    assert isinstance(failed, Failed)
    assert failed.details.startswith("KeyError: 'grumpy'")
    assert await run(handle, '{"n": 2}') == Rejected("not today")
    assert await run(handle, '{"n": 3}') == Failed("retry", after=timedelta(seconds=7))


def reject(_: Any) -> None:
    raise Reject("unknown order")


def retry(_: Any) -> None:
    raise Retry("busy", after=30)


def fail(_: Any) -> None:
    raise ValueError("no stock")


def leave(_: Any) -> None:
    raise SystemExit(3)


@pytest.mark.parametrize("handler", both(reject))
async def test_reject_rejects(handler: Callable[..., Any]) -> None:
    assert await run(handler) == Rejected("unknown order")


@pytest.mark.parametrize("handler", both(retry))
async def test_retry_fails_the_attempt_with_a_delay_of_its_own(handler: Callable[..., Any]) -> None:
    assert await run(handler) == Failed("busy", after=timedelta(seconds=30))


@pytest.mark.parametrize("handler", both(fail))
async def test_an_exception_fails_the_attempt_with_its_location(
    handler: Callable[..., Any],
) -> None:
    outcome = await run(handler)
    assert isinstance(outcome, Failed)
    assert (outcome.after, outcome.status) == (None, Status.FAILED)
    head, *frames = outcome.details.splitlines()
    assert head == "ValueError: no stock"
    assert 'raise ValueError("no stock")' in outcome.details
    assert Path(__file__).name in outcome.details
    assert not [line for line in frames if "executor.py" in line.replace(__file__, "")]


@pytest.mark.parametrize("handler", both(leave))
async def test_a_handler_that_exits_fails_alone(handler: Callable[..., Any]) -> None:
    outcome = await run(handler)
    assert isinstance(outcome, Failed)
    assert outcome.details.startswith("SystemExit: 3")


async def test_a_signal_without_a_text_has_one() -> None:
    def without_text(_: Any) -> None:
        raise Reject

    def odd(_: Any) -> None:
        raise Reject(TextlessError())

    assert await run(without_text) == Rejected("rejected by the handler")
    assert await run(odd) == Rejected("Reject, which has no text")


def test_a_project_in_a_folder_of_our_name_keeps_its_frames(tmp_path: Path) -> None:
    module = tmp_path / "notifyq" / "orders.py"
    code = compile("def handle():\n  raise ValueError('here')", str(module), "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    with pytest.raises(ValueError, match="here") as caught:
        names["handle"]()
    assert "orders.py" in describe(caught.value)


@pytest.mark.parametrize(
    "result", [object(), Broken(), "half \ud800", {1: {2: object()}}, threading.Lock()]
)
async def test_a_result_that_is_not_json_fails_the_attempt(result: Any) -> None:
    outcome = await run(lambda _: result)
    assert isinstance(outcome, Failed)
    why = f"<lambda>, of type {type(result).__name__}, cannot be written as JSON: "
    assert why in outcome.details
    assert outcome.error is not None
    assert "File" not in (outcome.error.traceback or "")


async def test_a_result_that_refers_to_itself_fails_the_attempt() -> None:
    circle: list[Any] = []
    circle.append(circle)
    outcome = await run(lambda _: circle)
    assert isinstance(outcome, Failed)


async def test_a_result_with_a_nul_fails_the_attempt() -> None:
    outcome = await run(lambda _: ["a\x00b"])
    assert isinstance(outcome, Failed)
    assert r"\u0000" in outcome.details


@pytest.mark.parametrize("text", [r"\u0000", r"a\\u0000", "\\\\\\u0000"])
async def test_a_result_that_only_spells_the_escape_is_a_success(text: str) -> None:
    assert isinstance(await run(lambda _: text), Success)
    assert isinstance(await run(lambda _: text + "\x00"), Failed)


async def test_details_are_text_that_postgresql_takes() -> None:
    def handle(_: Any) -> None:
        raise ValueError("nul \x00 half \ud800 end")

    outcome = await run(handle)
    assert isinstance(outcome, Failed)
    assert outcome.details.startswith(r"ValueError: nul \0 half \ud800 end")
    outcome.details.encode()


def test_long_details_keep_their_beginning_and_their_end() -> None:
    text = clean("a" * 50_000 + "z" * 50_000)
    assert len(text) < 8100
    assert (text[0], text[-1]) == ("a", "z")


class Hold:
    """A handler that runs until it is stopped or may go on."""

    def __init__(self, cleanup: Callable[[], Any] = lambda: None) -> None:
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self._cleanup = cleanup

    async def handle(self) -> Any:
        self.started.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self._cleanup()
            raise


async def start(hold: Hold) -> tuple[HandlerCall, asyncio.Task[Outcome]]:
    execution = HandlerCall(register(hold.handle, timeout=5), message())
    task = asyncio.create_task(execution.outcome(Runtime()))
    await hold.started.wait()
    return execution, task


@pytest.mark.parametrize(
    ("cause", "outcome"),
    [
        (Cause.STOP, Released()),
        (Cause.LOCK, Failed("the handler outlived its lock", status=Status.LOCK_EXPIRED)),
        (Cause.TIMEOUT, Failed("the handler took longer than its timeout 0:00:05")),
    ],
)
async def test_the_cause_of_a_stop_decides_the_outcome(cause: Cause, outcome: Outcome) -> None:
    execution, task = await start(Hold())
    assert execution.is_running
    execution.stop(cause)
    for later in Cause:
        execution.stop(later)  # the first one counts
    assert await task == outcome
    assert not execution.is_running


async def test_a_task_that_was_stopped_can_await_what_follows() -> None:
    hold = Hold()
    execution = HandlerCall(register(hold.handle), message())

    async def settle() -> tuple[Outcome, int]:
        outcome = await execution.outcome(Runtime())
        await asyncio.sleep(0)
        current = asyncio.current_task()
        assert current is not None
        return outcome, current.cancelling()

    task = asyncio.create_task(settle())
    await hold.started.wait()
    execution.stop(Cause.STOP)
    assert await task == (Released(), 0)


async def test_an_error_in_the_clean_up_of_a_stopped_handler_is_its_outcome() -> None:
    def cleanup() -> None:
        raise ValueError("while closing")

    execution, task = await start(Hold(cleanup))
    execution.stop(Cause.TIMEOUT)
    outcome = await task
    assert isinstance(outcome, Failed)
    assert outcome.details.startswith("ValueError: while closing")


async def test_a_handler_that_swallows_its_stop_and_returns_has_succeeded() -> None:
    started = asyncio.Event()

    async def handle() -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "in time"
        return "never"

    execution = HandlerCall(register(handle), message())
    task = asyncio.create_task(execution.outcome(Runtime()))
    await started.wait()
    execution.stop(Cause.STOP)
    assert await task == Success('"in time"')


async def test_a_stop_before_or_after_the_handler_does_nothing() -> None:
    execution = HandlerCall(register(lambda: 1), message())
    execution.stop(Cause.STOP)
    assert execution.cause is None
    threads = Threads()
    assert await execution.outcome(Runtime(threads=threads)) == Success("1")
    execution.stop(Cause.STOP)
    assert execution.cause is None
    threads.close()


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    async def handle() -> None:
        raise asyncio.CancelledError

    assert await run(handle) == Failed("the handler cancelled itself")


async def test_a_cancelled_worker_is_cancelled() -> None:
    _, task = await start(Hold())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_sync_handler_that_is_stopped_is_given_up() -> None:
    threads, started, let_go = Threads(), threading.Event(), threading.Event()

    def handle() -> None:
        started.set()
        let_go.wait(10)

    execution = HandlerCall(register(handle), message())
    task = asyncio.create_task(execution.outcome(Runtime(threads=threads)))
    await asyncio.to_thread(started.wait, 10)
    execution.stop(Cause.STOP)
    assert await task == Released()
    assert threads.stuck == 1
    let_go.set()
    threads.close()
