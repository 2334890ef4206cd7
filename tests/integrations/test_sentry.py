"""Failures in Sentry: its own client, and a transport that keeps what would be sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.asyncio import AsyncioIntegration
from sentry_sdk.transport import Transport

from notifyq import App, Reject
from notifyq.contrib.sentry import tag_failures
from notifyq.telemetry import BatchFinished, MessageFinished
from support.running import Events, working

TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADERS = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class _Kept(Transport):
    """Keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


@pytest.fixture(params=[(), (AsyncioIntegration(),)], ids=["stock", "asyncio"])
def sent(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """Give the events of Sentry in this test."""
    kept = _Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="https://key@sentry.example/1",
            transport=kept,
            before_send=tag_failures,
            integrations=request.param,
        )
        yield kept.events
        sentry_sdk.get_client().close()
        sentry_sdk.init()


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_final_failure_is_one_event_and_a_retried_one_a_breadcrumb(
    app: App, events: Events, sent: list[dict[str, Any]], is_async: bool
) -> None:
    def fail(n: int) -> None:
        raise ValueError(f"no {n}")

    async def fail_async(n: int) -> None:
        fail(n)

    app.handler("q", max_attempts=2, backoff=0)(fail_async if is_async else fail)
    async with working(app, events, poll=0.05):
        id_ = await app.publish("q", 7, headers=HEADERS)
        await events.wait(MessageFinished, 2)
    [event] = sent
    [error] = event["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no 7")
    frames = [frame["function"] for frame in error["stacktrace"]["frames"]]
    assert frames == (["fail_async", "fail"] if is_async else ["fail"])
    assert event["tags"] == {
        "queue": "q", "message_id": str(id_), "attempt": "2", "trace_id": TRACE,
    }  # fmt: skip
    assert (event["level"], event["logger"]) == ("error", "notifyq.worker")
    [crumb] = [
        it for it in event["breadcrumbs"]["values"] if "failed in attempt 1" in it["message"]
    ]
    assert crumb["data"]["event"]["message_id"] == id_


async def test_what_is_rejected_is_no_event(
    app: App, events: Events, sent: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    @app.handler("q")
    async def handle() -> None:
        raise Reject("never")

    async with working(app, events):
        await handle.publish()
        await events.wait(MessageFinished)
    assert "is rejected: never" in caplog.text
    assert sent == []


async def test_an_event_of_a_stream_is_tagged_with_its_subscriber(
    app: App, events: Events, sent: list[dict[str, Any]]
) -> None:
    @app.subscriber("s", "r", position="start", max_attempts=1)
    async def handle(_n: int) -> None:
        raise ValueError("no")

    await app.create_subscriptions()
    id_ = await app.publish("s", 1)
    async with working(app, events):
        await events.wait(BatchFinished, failed=1)
    [event] = sent
    assert event["tags"] == {
        "stream": "s", "subscriber": "r", "event_id": str(id_), "attempt": "1",
    }  # fmt: skip


def test_other_errors_stay_as_they_are(sent: list[dict[str, Any]]) -> None:
    logging.getLogger("shop").error("no", extra={"event": {"queue": "theirs"}})
    [event] = sent
    assert "tags" not in event
