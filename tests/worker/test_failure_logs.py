"""The log of a worker about failed attempts: each once, in one line, with the reason."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import weakref
from typing import Any

import pytest

from execution.in_processes import app as process_app
from notifyq import App, Reject, Transaction
from notifyq.cli.logs import formatter
from notifyq.telemetry import BatchFinished, MessageFinished
from support.running import Events, working


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, bool]]:
    """Level and text of each record of the worker, and whether it has a traceback."""
    return [
        (record.levelname, record.getMessage(), record.exc_info is not None)
        for record in caplog.records
        if record.name == "notifyq.worker"
    ]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_retry_is_a_warning_and_the_last_failure_an_error_with_its_traceback(
    app: App, events: Events, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def fail(_n: int) -> None:
        raise ValueError("first\nsecond " + "x" * 1000)

    async def fail_async(n: int) -> None:
        fail(n)

    app.handler("q", max_attempts=2, backoff=0)(fail_async if is_async else fail)
    async with working(app, events, poll=0.05):
        id_ = await app.publish("q", 1)
        await events.wait(MessageFinished, 2)
    first, second = lines(caplog)
    begin = f"queue 'q': message {id_} failed in attempt"
    assert first[0::2] == ("WARNING", False)
    assert first[1].startswith(f"{begin} 1 of 2, next try in 0.0 s: ValueError: first second xxx")
    assert second[0::2] == ("ERROR", True)
    assert second[1].startswith(f"{begin} 2 of 2: ValueError: first second xxx")
    assert max(len(text) for _, text, _ in (first, second)) < 500
    assert "in fail\n" in caplog.text
    frames = [line for line in caplog.text.splitlines() if line.startswith("  File ")]
    assert frames[0].endswith(", in fail" if not is_async else ", in fail_async")


async def test_a_record_has_the_fields_of_its_attempt(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("q", max_attempts=2, backoff=0)
    async def handle(n: int) -> None:
        raise Reject("never") if n else ValueError("no")

    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    async with working(app, events, poll=0.05):
        first = await app.publish("q", 0, headers=headers)
        await events.wait(MessageFinished, 2)
        second = await app.publish("q", 1, headers={"traceparent": "none"})
        await events.wait(MessageFinished, 3)
    records = [it for it in caplog.records if it.name == "notifyq.worker"]
    assert [vars(record)["event"] for record in records] == [
        {"queue": "q", "message_id": first, "attempt": 1, "trace_id": trace},
        {"queue": "q", "message_id": first, "attempt": 2, "trace_id": trace},
        {"queue": "q", "message_id": second, "attempt": 1, "trace_id": None},
    ]
    line = json.loads(formatter("json").format(records[1]))
    assert (line["message_id"], line["attempt"], line["trace_id"]) == (first, 2, trace)
    assert line["exception"].endswith("ValueError: no")
    assert f"queue=q message_id={second} attempt=1" in formatter("logfmt").format(records[2])


async def test_a_result_that_is_not_json_is_one_line(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("q")
    async def handle() -> object:
        return object()

    async with working(app, events):
        await handle.publish()
        await events.wait(MessageFinished)
    ((level, text, has_traceback),) = lines(caplog)
    assert (level, has_traceback) == ("ERROR", False)
    assert "handle, of type object, cannot be written as JSON: Unable to" in text


async def test_the_delay_is_that_of_the_queue_where_the_handler_has_none(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("q", max_attempts=3)
    async def handle() -> None:
        raise ValueError

    async with working(app, events):
        id_ = await handle.publish()
        await events.wait(MessageFinished)
        message = await app.archive.find(id_)
    ((_, text, _),) = lines(caplog)
    (attempt,) = await app.archive.attempts(id_)
    assert message is not None
    assert attempt.retry_at is not None
    seconds = (attempt.retry_at - attempt.ended_at).total_seconds()
    assert float(text.partition("next try in ")[2].partition(" s: ")[0]) == pytest.approx(
        seconds, abs=0.1
    )
    assert text.endswith(": ValueError")


async def test_what_is_rejected_is_a_warning(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("q", max_attempts=3)
    async def handle(_n: int) -> None:
        raise Reject("never\nwill")

    async with working(app, events):
        first = await app.publish("q", 1)
        second = await app.publish("q", "text")
        await events.wait(MessageFinished, 2)
    logged = sorted(lines(caplog))
    assert logged[0] == ("WARNING", f"queue 'q': message {first} is rejected: never will", False)
    assert logged[1][1].startswith(f"queue 'q': message {second} is rejected: the payload is not")


async def test_timeouts_and_locks_that_are_over(
    app: App, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("slow", timeout=0.2)
    async def slow() -> None:
        await asyncio.sleep(60)

    @app.handler("locked", heartbeat=False, lock_duration=0.5)
    async def locked() -> None:
        await asyncio.sleep(60)

    async with working(app, events):
        await slow.publish()
        await locked.publish()
        await events.wait(MessageFinished, 2)
    locked_line, slow_line = sorted(lines(caplog), key=lambda it: it[1])
    assert locked_line[0::2] == ("ERROR", False)
    assert locked_line[1].endswith("1 of 1: the handler outlived its lock")
    assert slow_line[0::2] == ("ERROR", True)
    assert "TimeoutError: the handler took longer than its timeout" in slow_line[1]


async def test_a_handler_in_a_process(
    database: str, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    process_app.dsn = database
    try:
        async with working(process_app, events):
            await process_app.publish("squares", 13)
            await events.wait(MessageFinished)
    finally:
        await process_app.close()
    ((level, text, has_traceback),) = lines(caplog)
    assert (level, has_traceback) == ("ERROR", True)
    assert text.endswith("in attempt 1 of 1: ValueError: thirteen")
    assert 'raise ValueError("thirteen")' in caplog.text


@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"transactional": True}])
async def test_a_subscriber(
    app: App, events: Events, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    async def transactional(_n: int, connection: Transaction) -> None:
        await connection.fetchval("select 1")
        raise ValueError("no")

    async def plain(_n: int) -> None:
        raise ValueError("no")

    function = transactional if "transactional" in options else plain
    app.subscriber("s", "r", max_attempts=2, backoff=0, position="start", **options)(function)
    await app.create_subscriptions()
    id_ = await app.publish("s", 1)
    async with working(app, events, poll=0.05):
        await events.wait(BatchFinished, failed=1)
    begin = f"stream 's': event {id_} for 'r' failed in attempt"
    assert lines(caplog) == [
        ("WARNING", f"{begin} 1 of 2, next try in 0.0 s: ValueError: no", False),
        ("ERROR", f"{begin} 2 of 2: ValueError: no", True),
    ]


async def test_a_message_is_gone_from_memory_once_it_is_settled(
    app: App, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the records that pytest keeps would hold the error.
    monkeypatch.setattr(logging.getLogger("notifyq.worker"), "disabled", True)

    class Large:
        """What a handler holds when it fails."""

    held: list[weakref.ref[Large]] = []

    @app.handler("q")
    async def handle() -> None:
        large = Large()
        held.append(weakref.ref(large))
        raise ValueError("no")

    gc.disable()
    try:
        async with working(app, events):
            await handle.publish()
            await events.wait(MessageFinished)
        assert held[0]() is None
    finally:
        gc.enable()
