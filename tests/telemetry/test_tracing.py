"""Spans of publishing and handling: parents, links, attributes and cost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from execution.in_processes import app as processes
from notifyq import App, ConfigurationError, Message, Reject, StepFailedError, Steps, Transaction
from notifyq.telemetry import BatchFinished, MessageFinished
from support.database import Connection
from support.running import Events, working

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = 0x0AF7651916CD43DD8448EB211C80319C


class Spans:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.all(name)
        return span


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def app(database: str, spans: Spans) -> AsyncIterator[App]:
    app = App(database, retry_for=30, tracing=spans.provider)
    yield app
    await app.close()


@pytest.fixture
def events() -> Events:
    return Events()


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_handling_is_a_child_of_its_publish(app: App, spans: Spans, events: Events) -> None:
    @app.handler("first")
    async def first(n: int) -> None:
        await second.publish(n)

    @app.handler("second")
    def second(n: int) -> None:
        with spans.tracer.start_as_current_span("inside"):
            pass

    async with working(app, events):
        with spans.tracer.start_as_current_span("request") as request:
            number = await first.publish(1)
        await events.wait(MessageFinished, queue="second")
    send, process = spans.one("send first"), spans.one("process first")
    assert send.parent == request.get_span_context()
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert links(process) == [send.context.span_id]
    onward = spans.one("send second").parent
    assert onward is not None
    assert onward.span_id == process.context.span_id
    inside = spans.one("inside").parent
    assert inside is not None
    assert inside.span_id == spans.one("process second").context.span_id
    assert len({it.context.trace_id for it in (send, process, spans.one("inside"))}) == 1
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "notifyq",
        "messaging.destination.name": "first",
        "messaging.message.id": str(int(number)),
    }
    operation = ("messaging.operation.name", "messaging.operation.type")
    assert attributes(send) == common | dict.fromkeys(operation, "send")
    assert attributes(process) == common | dict.fromkeys(operation, "process") | {
        "notifyq.message.attempts": 1
    }


async def test_many_are_one_span_and_a_batch_is_linked_to_each(
    app: App, spans: Spans, events: Events
) -> None:
    @app.handler("many", batch=10, linger=0.5)
    async def many(numbers: list[int]) -> None: ...

    async with working(app, events):
        await many.publish_many([1, 2])
        await many.publish(3, headers={"traceparent": PARENT})
        await events.wait(MessageFinished, 3)
    sends = spans.all("send many")
    assert [attributes(it).get("messaging.batch.message_count") for it in sends] == [2, None]
    linked = [link for span in spans.all("process many") for link in links(span)]
    # What the caller hands on is not replaced.
    assert sorted(linked) == sorted([sends[0].context.span_id] * 2 + [0xB7AD6B7169203331])
    for process in spans.all("process many"):
        assert process.parent is None
        assert attributes(process)["messaging.batch.message_count"] == len(process.links)


HEADERS: list[tuple[dict[str, Any], bool]] = [
    ({"traceparent": PARENT}, True),
    ({}, False),
    ({"traceparent": 5}, False),
    ({"traceparent": "nonsense", "tracestate": [1]}, False),
    ({"traceparent": PARENT, "tracestate": "=,=;\n" * 200}, True),
    ({"traceparent": "00-" + "0" * 32 + "-" + "0" * 16 + "-01"}, False),
]


async def test_malformed_trace_headers_are_ignored(
    app: App, connection: Connection, spans: Spans, events: Events
) -> None:
    @app.handler("q")
    async def handle(n: int) -> None: ...

    async with working(app, events):
        for headers, _ in HEADERS:
            await connection.execute(
                "insert into messages.message (queue, message, headers) "
                "values ('q', '1', $1::text::jsonb)",
                json.dumps(headers),
            )
        await events.wait(MessageFinished, len(HEADERS), status="success")
    by_id = {int(attributes(it)["messaging.message.id"]): it for it in spans.all("process q")}
    for (headers, is_known), (_, span) in zip(HEADERS, sorted(by_id.items()), strict=True):
        assert (span.context.trace_id == TRACE) is is_known, headers
        assert (span.parent is not None) is is_known, headers


async def test_an_error_is_recorded_in_its_span(app: App, spans: Spans, events: Events) -> None:
    @app.handler("broken")
    async def broken(n: int) -> None:
        if n == 1:
            raise ValueError("no such order")
        raise Reject("unknown")

    @app.handler("late", timeout=0.2)
    async def late(n: int) -> None:
        await asyncio.Event().wait()

    async with working(app, events):
        await broken.publish(1)
        await broken.publish(2)
        await late.publish(1)
        await events.wait(MessageFinished, 3)
        with pytest.raises(ValueError, match="JSON"):
            await app.publish("broken", object())
    failed, rejected = sorted(spans.all("process broken"), key=lambda it: it.start_time or 0)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "ValueError: no such order"
    assert attributes(failed)["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    assert attributes(rejected)["error.type"] == "Reject"
    assert attributes(spans.one("process late"))["error.type"] == "CancelledError"
    refused = [it for it in spans.all("send broken") if not it.status.is_ok]
    assert len(refused) == 1


async def test_each_attempt_has_its_span(app: App, spans: Spans, events: Events) -> None:
    @app.handler("again", max_attempts=2, backoff=0)
    async def again(message: Message) -> None:
        if message.attempts == 1:
            raise ValueError

    async with working(app, events, poll=0.05):
        await again.publish(1)
        await events.wait(MessageFinished, status="success")
    attempts = [attributes(it)["notifyq.message.attempts"] for it in spans.all("process again")]
    assert attempts == [1, 2]
    assert len({it.context.trace_id for it in spans.all("process again")}) == 1


async def test_subscribers_and_transactions(app: App, spans: Spans, events: Events) -> None:
    @app.subscriber("orders", "accounts", batch=10)
    async def accounts(numbers: list[int]) -> None: ...

    @app.subscriber("orders", "each")
    async def each(n: int) -> None: ...

    @app.handler("books", transactional=True)
    async def books(n: int, transaction: Transaction) -> None: ...

    async with working(app, events, poll=0.05):
        await accounts.publish(1)
        await books.publish(1)
        await events.wait(BatchFinished, subscriber="accounts", events=1)
        await events.wait(BatchFinished, subscriber="each", events=1)
        await events.wait(MessageFinished, queue="books")
    send = spans.one("send orders").context.span_id
    of_orders = {
        attributes(it)["messaging.destination.subscription.name"]: it
        for it in spans.all("process orders")
    }
    assert of_orders.keys() == {"accounts", "each"}
    assert links(of_orders["accounts"]) == [send]
    assert of_orders["accounts"].parent is None
    parent = of_orders["each"].parent
    assert parent is not None
    assert parent.span_id == send
    assert spans.one("process books").status.is_ok


async def test_a_handler_in_a_process_has_a_span_and_goes_on_with_it(
    database: str, spans: Spans, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    from notifyq.telemetry.tracing import Tracing

    assert processes.registry["traced"].process
    app = App(database, tracing=spans.provider)
    monkeypatch.setattr(app, "registry", processes.registry)
    monkeypatch.setattr(processes.registry, "tracing", Tracing(spans.provider))
    try:
        async with working(app, events, queues=["traced"]):
            handle = await app.publish("traced", "text")
            seen = await handle.result(timeout=30)
    finally:
        await app.close()
    process = spans.one("process traced")
    assert process.parent is not None
    assert process.parent.span_id == spans.one("send traced").context.span_id
    assert seen == f"{process.context.span_id:016x}"


async def test_without_tracing_there_are_no_headers(
    database: str, events: Events, spans: Spans
) -> None:
    app = App(database)
    seen: list[dict[str, Any]] = []

    @app.handler("plain")
    async def plain(message: Message) -> None:
        seen.append(message.headers)
        assert not trace.get_current_span().is_recording()

    async with working(app, events):
        with spans.tracer.start_as_current_span("request"):
            await plain.publish(1)
        await events.wait(MessageFinished, status="success")
    await app.close()
    assert seen == [{}]


def test_missing_opentelemetry_is_reported() -> None:
    # As Python does where it is not installed.
    code = (
        "import sys, notifyq\n"
        "assert 'opentelemetry' not in sys.modules\n"
        "assert 'prometheus_client' not in sys.modules\n"
        "sys.modules['opentelemetry'] = None\n"
        "try: notifyq.App(tracing=True)\n"
        "except notifyq.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "App(tracing=…) needs OpenTelemetry: pip install 'notifyq[otel]'\n"


def test_tracing_takes_only_a_provider_or_a_boolean() -> None:
    with pytest.raises(ConfigurationError, match="TracerProvider"):
        App(tracing="yes")  # type: ignore[arg-type]
    App(tracing=True)


async def test_a_step_is_a_span_once_and_a_wait_is_an_event(
    app: App, spans: Spans, events: Events
) -> None:
    class DeclinedError(Exception):
        pass

    def charge() -> str:
        with spans.tracer.start_as_current_span("inside"):
            return "receipt"

    def decline() -> None:
        raise DeclinedError

    def crash() -> None:
        raise OSError("secret")

    attempts = []

    @app.handler("q", max_attempts=2, backoff=0.01)
    async def handle(n: int, steps: Steps) -> None:
        attempts.append(n)
        await steps.run("charge", charge, key=n)
        with pytest.raises(StepFailedError):
            await steps.run("pay", decline, errors=(DeclinedError,))
        await steps.sleep("nap", 0.05)
        if spans.all("step crash") == []:
            await steps.run("crash", crash)

    async with working(app, events, maintenance=0.1):
        number = await handle.publish(7)
        await number.result(20)
    assert len(attempts) == 3
    step, pay, failed = (spans.one(f"step {name}") for name in ("charge", "pay", "crash"))
    assert attributes(step)["notifyq.step.name"] == "charge#7"
    assert attributes(step)["messaging.message.id"] == str(int(number))
    assert attributes(step)["notifyq.step.state"] == "done"
    assert attributes(pay)["notifyq.step.state"] == "failed"
    assert failed.status.status_code is StatusCode.ERROR
    first, *_ = process = spans.all("process q")
    assert step.parent is not None
    assert step.parent.span_id == first.context.span_id
    inside = spans.one("inside").parent
    assert inside is not None
    assert inside.span_id == step.context.span_id
    noted = [(it.name, dict(it.attributes or {})["notifyq.step.name"]) for it in first.events]
    assert noted == [("parked", "nap")]
    # Parking is no error; the crash is one.
    codes = [span.status.status_code for span in process]
    assert codes.count(StatusCode.ERROR) == 1
    assert codes[0] is StatusCode.UNSET
