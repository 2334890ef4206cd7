"""Errors as text for the attempt history."""

from typing import Any

from notifyq import Retry
from notifyq.execution.call import HandlerCall
from notifyq.execution.runtime import Runtime
from notifyq.models.outcome import ErrorReport, Failed
from notifyq.telemetry.tracebacks import report
from support.rows import message, register


class OddError(Exception):
    """Its `__str__` raises."""

    def __str__(self) -> str:
        raise ValueError("no text")


async def reported(function: Any) -> ErrorReport:
    runtime = Runtime()
    try:
        outcome = await HandlerCall(register(function), message()).outcome(runtime)
    finally:
        await runtime.close()
    assert isinstance(outcome, Failed)
    assert outcome.error is not None
    return outcome.error


def find(key: str) -> None:
    raise KeyError(key)


async def test_a_traceback_starts_in_the_handler_and_has_the_cause() -> None:
    async def handle() -> None:
        try:
            find("order")
        except KeyError as missing:
            raise RuntimeError("no such order") from missing

    error = await reported(handle)
    assert (error.type, error.text) == ("RuntimeError", "no such order")
    assert error.traceback is not None
    lines = error.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", in ")[1] for line in lines if line.startswith("  File")] == [
        "handle",
        "find",
        "handle",
    ]
    assert "The above exception was the direct cause of the following exception:" in lines
    assert lines[-1] == "RuntimeError: no such order"
    assert "notifyq/" not in error.traceback.replace("/tests/", "")


async def test_a_sync_handler_has_a_traceback_too() -> None:
    error = await reported(lambda: find("x"))
    assert error.traceback is not None
    assert "threads.py" not in error.traceback
    assert error.traceback.endswith("KeyError: 'x'")


async def test_a_traceback_has_all_members_of_a_group() -> None:
    def handle() -> None:
        errors: list[Exception] = []
        for key in ("a", "b"):
            try:
                find(key)
            except KeyError as error:
                errors.append(error)
        raise ExceptionGroup("both", errors)

    error = await reported(handle)
    assert error.type == "ExceptionGroup"
    assert error.traceback is not None
    for text in ("ExceptionGroup: both (2 sub-exceptions)", "KeyError: 'a'", "KeyError: 'b'"):
        assert text in error.traceback
    assert "executor.py" not in error.traceback


def test_a_class_is_named_with_its_module() -> None:
    assert report(OddError()).type == f"{__name__}.OddError"
    assert report(OddError()).text == "OddError, which has no text"
    assert report(Retry("busy")).type == "notifyq.Retry"
    assert report(ValueError()).text == "ValueError"


def test_texts_are_bounded_and_can_be_stored() -> None:
    error = report(ValueError("\x00\ud800" + "x" * 100_000))
    assert error.traceback is not None
    assert len(error.text) < 9000
    assert len(error.traceback) < 17_000
    for text in (error.text, error.traceback):
        assert "\x00" not in text
        text.encode()
