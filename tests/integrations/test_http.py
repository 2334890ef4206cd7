"""Delivery by HTTP: the requests, how answers end messages, and retries."""

import base64
import hashlib
import hmac
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from docs.pages import DOCS, blocks
from integrations.receiver import Answer, Receiver, Request, receiving
from notifyq import App, ConfigurationError, MessageFailedError, MessageRejectedError
from notifyq.contrib.http import Webhooks
from notifyq.models.message import Attempt
from notifyq.models.payload import Json
from notifyq.telemetry import MessageFinished
from support.database import Connection, until
from support.running import Events, working

OLD, NEW = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "plain text"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def delivering(app: App, receiver: Receiver) -> App:
    """Deliver queue "hooks", with three attempts."""
    Webhooks(app).deliver(
        "hooks", f"{receiver.url}/in", secret=NEW, max_attempts=3, backoff=0.01, timeout=10
    )
    return app


def signatures(request: Request, *keys: bytes) -> list[str]:
    """Sign a request as the specification of Standard Webhooks has it."""
    headers = request.headers
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.body
    digests = [hmac.new(key, content, hashlib.sha256).digest() for key in keys]
    return [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]


async def failed(app: App, id_: int, quantity: int = 1) -> list[Attempt]:
    """Wait for so many failed attempts."""
    attempts: list[Attempt] = []

    async def are_there() -> bool:
        attempts[:] = await app.archive.attempts(id_)
        return len(attempts) >= quantity

    await until(are_there, "the attempts have failed", 20)
    return attempts


async def test_a_request_is_signed_by_each_secret(
    app: App, receiver: Receiver, events: Events
) -> None:
    url = receiver.url.replace("//", "//me:p%40ss@") + "/in?a=b"
    Webhooks(app).deliver("hooks", url, secret=[NEW, OLD])
    await app.create_queues()
    receiver.answer = lambda _: Answer(201, b'{"ok": [1.5, null]}')
    payload = Json('{"a": 1.50, "b": "\\u00e9"}')
    headers = {"traceparent": PARENT, "tracestate": "a\r\nb: c"}
    handle = await app.publish("hooks", payload, type="a\r\nb: c%", headers=headers)
    async with working(app, events):
        assert await handle.result(20) == {"ok": [1.5, None]}
    [request] = receiver.requests
    assert request.path == "/in?a=b"
    assert request.body == '{"a": 1.50, "b": "é"}'.encode()
    keys = NEW.encode(), base64.b64decode(OLD.removeprefix("whsec_"))
    assert request.headers["webhook-signature"].split(" ") == signatures(request, *keys)
    assert int(request.headers["webhook-timestamp"]) > 1_700_000_000
    assert request.headers["authorization"] == f"Basic {base64.b64encode(b'me:p@ss').decode()}"
    assert request.headers["content-type"] == "application/json"
    expected = {
        "notifyq-queue": "hooks",
        "notifyq-type": "a%0D%0Ab:%20c%25",
        "notifyq-attempt": "1",
        "traceparent": PARENT,
    }
    assert {name: request.headers[name] for name in expected} == expected
    assert not {"tracestate", "notifyq-callback", "cookie"} & request.headers.keys()


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (Answer(200, b"[1, null]"), [1, None]),
        (Answer(204), None),
        (Answer(200, b"done"), None),
        (Answer(200, b"NaN"), None),
        (Answer(200, b'"\\u0000"'), None),
        (Answer(200, b"[" * 5000), None),
        (Answer(200, b'"\xff"'), None),
        (Answer(200, b'"%s"' % (b"x" * 65_534)), "x" * 65_534),
        (Answer(200, b'"%s"' % (b"x" * 65_535)), None),
        (Answer(200, b"x" * 1000, is_endless=True), None),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_the_result_is_the_json_of_the_answer(
    delivering: App, receiver: Receiver, events: Events, answer: Answer, result: Any
) -> None:
    await delivering.create_queues()
    receiver.answer = lambda _: answer
    handle = await delivering.publish("hooks", 1)
    async with working(delivering, events):
        assert await handle.result(20) == result
    assert len(receiver.requests) == 1


async def test_a_failed_attempt_is_a_line_and_is_repeated_under_the_same_id(
    delivering: App, receiver: Receiver, events: Events, caplog: pytest.LogCaptureFixture
) -> None:
    await delivering.create_queues()
    elsewhere = {"location": f"{receiver.url}/elsewhere", "set-cookie": "a=b"}
    long = b"no\r\n\x1b[31m " + b"x" * 70_000
    receiver.in_turn(Answer(302, headers=elsewhere), Answer(500, long), Answer(400, b"never"))
    handle = await delivering.publish("hooks", 1)
    async with working(delivering, events):
        with pytest.raises(MessageFailedError, match="400 Bad Request: never"):
            await handle.result(20)
    requests = receiver.requests
    assert [it.path for it in requests] == ["/in"] * 3
    assert [it.headers["notifyq-attempt"] for it in requests] == ["1", "2", "3"]
    assert len({it.headers["webhook-id"] for it in requests}) == 1
    assert all(signatures(it, NEW.encode()) == [it.headers["webhook-signature"]] for it in requests)
    assert not any("cookie" in it.headers for it in requests)
    attempts = await delivering.archive.attempts(handle)
    assert [it.error_type for it in attempts] == ["notifyq.contrib.http.DeliveryError"] * 3
    assert [it.details for it in attempts] == [
        "302 Found",
        f"500 Internal Server Error: no \x1b[31m {'x' * 191}",
        "400 Bad Request: never",
    ]
    lines = [it for it in caplog.records if "in attempt" in it.getMessage()]
    assert [it.levelno for it in lines] == [logging.WARNING, logging.WARNING, logging.ERROR]
    assert "Traceback" not in caplog.text
    assert "Traceback" not in "".join(it.traceback or "" for it in attempts)
    assert [it.status for it in events.of(MessageFinished)] == ["failed"] * 3


async def test_the_trace_goes_on_at_the_receiver(
    database: str, receiver: Receiver, events: Events
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with App(database, tracing=provider) as app:
        Webhooks(app).deliver("hooks", receiver.url, secret=NEW)
        await app.create_queues()
        handle = await app.publish("hooks", 1)
        async with working(app, events):
            await handle.result(20)
    [span] = [it for it in exporter.get_finished_spans() if it.name == "process hooks"]
    _, trace, parent, _ = receiver.requests[0].headers["traceparent"].split("-")
    assert span.context is not None
    assert (int(trace, 16), int(parent, 16)) == (span.context.trace_id, span.context.span_id)


async def test_messages_have_ids_of_their_own(
    delivering: App, receiver: Receiver, events: Events
) -> None:
    await delivering.create_queues()
    handles = await delivering.publish_many("hooks", [1, 2])
    async with working(delivering, events):
        for handle in handles:
            await handle.result(20)
    assert len({it.headers["webhook-id"] for it in receiver.requests}) == 2


async def test_410_rejects(delivering: App, receiver: Receiver, events: Events) -> None:
    await delivering.create_queues()
    receiver.answer = lambda _: Answer(410, b"we have moved")
    handle = await delivering.publish("hooks", 1)
    async with working(delivering, events):
        with pytest.raises(MessageRejectedError, match="410 Gone: we have moved"):
            await handle.result(20)
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("status", "text", "least", "most"),
    [
        (503, "3600", 3600, 3600),
        (429, "3600", 3600, 3600),
        (429, "99999999999999999999", 86_400, 86_400),
        (503, "in five hours", 3 * 3600, 6 * 3600),
        (503, "0", 0, 60),
        (503, "soon", 0, 60),
        (500, "3600", 0, 60),
    ],
)
async def test_the_next_attempt_is_when_the_receiver_wants_it(
    delivering: App,
    receiver: Receiver,
    events: Events,
    status: int,
    text: str,
    least: int,
    most: int,
) -> None:
    await delivering.create_queues()
    if text == "in five hours":
        text = format_datetime(datetime.now(UTC) + timedelta(hours=5))
    receiver.in_turn(Answer(status, headers={"retry-after": text}), Answer())
    handle = await delivering.publish("hooks", 1)
    async with working(delivering, events):
        [attempt] = await failed(delivering, handle)
    assert attempt.retry_at is not None
    # The delay counts from between these two.
    assert attempt.retry_at - attempt.locked_at >= timedelta(seconds=least)
    assert attempt.retry_at - attempt.ended_at <= timedelta(seconds=most)


async def test_a_late_answer_is_a_failed_attempt(
    app: App, receiver: Receiver, events: Events
) -> None:
    Webhooks(app).deliver("hooks", receiver.url, secret=NEW, timeout=0.2)
    await app.create_queues()
    receiver.answer = receiver.hold
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        with pytest.raises(MessageFailedError, match=r"no answer within 0\.2 s"):
            await handle.result(20)


async def test_a_receiver_that_is_away_is_a_failed_attempt(app: App, events: Events) -> None:
    with receiving() as gone:
        pass
    Webhooks(app).deliver("hooks", gone.url, secret=NEW)
    await app.create_queues()
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        with pytest.raises(MessageFailedError, match="failed: ConnectError: "):
            await handle.result(20)


async def test_as_many_requests_as_the_worker_has_slots(
    delivering: App, receiver: Receiver, events: Events
) -> None:
    await delivering.create_queues()
    together = threading.Barrier(15)

    def answer(_: Request) -> Answer:
        together.wait(20)
        return Answer()

    receiver.answer = answer
    handles = await delivering.publish_many("hooks", range(15))
    async with working(delivering, events, concurrency=15):
        for handle in handles:
            await handle.result(30)
    assert len(receiver.requests) == 15


async def test_a_stop_releases_what_is_not_answered(
    delivering: App, receiver: Receiver, events: Events, connection: Connection
) -> None:
    await delivering.create_queues()
    receiver.answer = receiver.hold
    handle = await delivering.publish("hooks", 1)
    async with working(delivering, events, grace=0):
        await receiver.received()
    row = await connection.fetchrow("select * from messages.message_find($1)", int(handle))
    assert row is not None
    assert (row["state"], row["attempts"]) == ("waiting", 0)


@pytest.mark.parametrize(
    ("url", "secret", "why"),
    [
        ("ftp://shop.example", NEW, "must be like https://shop.example/path"),
        ("https:///path", NEW, "must be like https://shop.example/path"),
        ("example.org", NEW, "must be like https://shop.example/path"),
        ("http://me:s3cr3t@shop.example:port", NEW, "the URL of queue 'hooks' cannot be read"),
        ("https://shop.example", ["new", ""], "a secret is empty"),
        ("https://shop.example", "whsec_", "a secret is empty"),
        ("https://shop.example", [], "need a secret"),
        ("https://shop.example", "whsec_?", "must be base64"),
    ],
)
def test_wrong_deliveries_are_refused(url: str, secret: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        Webhooks(App()).deliver("hooks", url, secret=secret)
    assert "s3cr3t" not in str(refused.value)


def test_a_queue_has_one_handler() -> None:
    app = App()
    webhooks = Webhooks(app)
    webhooks.deliver("hooks", "https://shop.example", secret=NEW)
    with pytest.raises(ConfigurationError, match="queue 'hooks' has the handler"):
        webhooks.deliver("hooks", "https://shop.example", secret=NEW)


async def test_the_receiver_of_the_guide_verifies_a_request(
    delivering: App, receiver: Receiver, events: Events
) -> None:
    [code] = [it.text for it in blocks(DOCS / "guides/http.md", "python") if "def " in it.text]
    given: dict[str, Any] = {}
    exec(code, given)
    await delivering.create_queues()
    handle = await delivering.publish("hooks", "é")
    async with working(delivering, events):
        await handle.result(20)
    [request] = receiver.requests
    assert given["is_genuine"](request.headers, request.body, NEW)
    assert not given["is_genuine"](request.headers, request.body + b" ", NEW)
    assert not given["is_genuine"](request.headers, request.body, OLD)


def test_our_signature_is_that_of_the_specification() -> None:
    headers = {"webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "webhook-timestamp": "1614265330"}
    request = Request("/", headers, b'{"test": 2432232314}')
    key = base64.b64decode(OLD.removeprefix("whsec_"))
    assert signatures(request, key) == ["v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="]
