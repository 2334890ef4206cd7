"""Callbacks: a receiver answers 202 and reports later how its message has ended."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from integrations.receiver import Answer, Receiver, Request, call, receiving
from notifyq import App, Handle, MessageFailedError, MessageRejectedError, Policy
from notifyq.contrib.http import Webhooks
from notifyq.contrib.http_callbacks import Callbacks, callback_path
from notifyq.models.message import Attempt
from notifyq.worker.serving import ServerThread
from support.database import until
from support.running import Events, working

PUBLIC = "https://callbacks.example/hooks"
SUCCESS = {"status": "success", "result": {"done": [1.5, None]}}
FAILED = {"status": "failed", "details": "no\nroom"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        receiver.answer = lambda _: Answer(202, b'"accepted"')
        yield receiver


@dataclass
class Reporter:
    """Reports to callbacks, as a receiver would."""

    app: App
    server: ServerThread

    async def __call__(
        self, request: Request, report: Any, *, method: str = "POST", instead: str | None = None
    ) -> tuple[int, str]:
        """Report to the address of a request."""
        address = request.headers["notifyq-callback"]
        assert address.startswith(f"{PUBLIC}/")
        path = urlsplit(address).path if instead is None else instead
        body = report if isinstance(report, bytes) else json.dumps(report).encode()
        return await asyncio.to_thread(call, self.server.url + path, body, method)

    async def parked(self, name: str = "callback#1") -> None:
        """Wait until a message waits for its callback."""

        async def is_parked() -> bool:
            return [it.name for it in await self.app.archive.parked("hooks")] == [name]

        await until(is_parked, "the message is parked", 20)


async def serving(app: App, receiver: Receiver, **options: Any) -> AsyncIterator[Reporter]:
    webhooks = Webhooks(app, callback=f"{PUBLIC}/", **options)
    webhooks.deliver("hooks", receiver.url, secret=["new", "old"], max_attempts=3, backoff=0.01)
    await app.create_queues()
    with ServerThread(webhooks.callbacks, "127.0.0.1", 0) as server:
        yield Reporter(app, server)
    await asyncio.to_thread(webhooks.callbacks.close)


@pytest.fixture
async def reporter(app: App, receiver: Receiver) -> AsyncIterator[Reporter]:
    async for reporter in serving(app, receiver):
        yield reporter


@pytest.fixture
async def hasty(app: App, receiver: Receiver) -> AsyncIterator[Reporter]:
    """Give callbacks hardly any time."""
    async for reporter in serving(app, receiver, callback_timeout=0.05):
        yield reporter


async def history(app: App, handle: Handle[Any]) -> list[tuple[int, str | None]]:
    attempts: list[Attempt] = await app.archive.attempts(handle)
    return [(it.number, it.details) for it in attempts]


async def test_success(app: App, receiver: Receiver, reporter: Reporter, events: Events) -> None:
    handle = await app.publish("hooks", 1)
    async with working(app, events) as worker:
        await reporter.parked()
        assert worker.slots[0] == 0
        [request] = receiver.requests
        assert await reporter(request, SUCCESS) == (200, "ok")
        assert await handle.result(20) == {"done": [1.5, None]}
        assert await reporter(request, FAILED) == (410, "the message is finished")
    assert len(receiver.requests) == 1


async def test_rejected(app: App, receiver: Receiver, reporter: Reporter, events: Events) -> None:
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        await reporter.parked()
        await reporter(receiver.requests[0], {"status": "rejected", "details": "unknown\nname"})
        with pytest.raises(MessageRejectedError, match="unknown name"):
            await handle.result(20)
        [again] = await app.archive.dead_retry([handle])
        await reporter.parked("callback#2")
        await reporter(receiver.requests[1], SUCCESS)
        assert await app.result(again, timeout=20) == SUCCESS["result"]


async def test_a_failure_is_delivered_again_and_counts_once(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    handle = await app.publish("hooks", 1)
    async with working(app, events, maintenance=0.2):
        await reporter.parked()
        first = receiver.requests[0]
        await reporter(first, FAILED)
        await reporter.parked("callback#2")
        assert await reporter(first, FAILED) == (200, "reported before")
        second = receiver.requests[1]
        assert second.headers["webhook-id"] == first.headers["webhook-id"]
        await reporter(second, SUCCESS)
        assert await handle.result(20) == SUCCESS["result"]
    assert await history(app, handle) == [(1, "no room")]
    assert len(receiver.requests) == 2


async def test_a_report_that_comes_twice_ends_one_delivery(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        await reporter.parked()
    # No worker takes the first one before the second comes.
    for report in (FAILED, FAILED):
        assert await reporter(receiver.requests[0], report) == (200, "ok")
    async with working(app, events, maintenance=0.2):
        await reporter.parked("callback#2")
        await reporter(receiver.requests[1], SUCCESS)
        assert await handle.result(20) == SUCCESS["result"]


async def test_a_report_may_come_before_the_answer(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    def answer(request: Request) -> Answer:
        path = urlsplit(request.headers["notifyq-callback"]).path
        call(reporter.server.url + path, json.dumps(SUCCESS).encode())
        return Answer(202)

    receiver.answer = answer
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        assert await handle.result(20) == SUCCESS["result"]


async def test_another_answer_ends_the_message_at_once(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    receiver.answer = lambda _: Answer(200, b"7")
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        assert await handle.result(20) == 7
    assert await reporter(receiver.requests[0], SUCCESS) == (410, "the message is finished")


async def test_a_restart_of_the_worker_posts_nothing_again(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        await reporter.parked()
    async with working(app, events):
        await reporter(receiver.requests[0], SUCCESS)
        assert await handle.result(20) == SUCCESS["result"]
    assert len(receiver.requests) == 1


async def test_no_report_in_time_fails_the_attempt(
    app: App, receiver: Receiver, hasty: Reporter, events: Events
) -> None:
    handle = await app.publish("hooks", 1, max_attempts=2)
    receiver.in_turn(Answer(202), Answer(400, b"enough"))
    async with working(app, events, maintenance=0.1):
        with pytest.raises(MessageFailedError, match="enough"):
            await handle.result(30)
    why = "no callback came within 0:00:00.050000"
    assert await history(app, handle) == [(1, why), (2, "400 Bad Request: enough")]


async def test_a_late_report_has_no_effect(
    app: App, receiver: Receiver, hasty: Reporter, events: Events
) -> None:
    await app.publish("hooks", 1)
    receiver.in_turn(Answer(202), Answer(503, headers={"retry-after": "3600"}))
    async with working(app, events, maintenance=0.1):
        await receiver.received(2)
        assert await hasty(receiver.requests[0], SUCCESS) == (410, "its time is over")


async def test_what_is_no_callback_is_refused(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    handle = await app.publish("hooks", 1)
    async with working(app, events):
        await reporter.parked()
        [request] = receiver.requests
        path = urlsplit(request.headers["notifyq-callback"]).path
        _, _, number, token = path.split("/")
        other = token[:-1] + ("0" if token[-1] != "0" else "1")
        for wrong in (
            f"/hooks/{number}/{other}",
            f"/hooks/{int(number) + 1}/{token}",
            f"/hooks/{number}/2{token[1:]}",
            f"/hooks/{number}/{token}/",
            f"/hooks/{number}",
            "/metrics",
            "/",
        ):
            refused = await reporter(request, SUCCESS, instead=wrong)
            assert refused == (404, "there is no such callback")
        assert (await reporter(request, SUCCESS, method="GET"))[0] == 404
        assert (await reporter(request, b" " * 65_537))[0] == 413
        chunks = asyncio.to_thread(call, reporter.server.url + path, iter([b"{", b"}"]))
        assert await chunks == (411, "send a Content-Length")
        bad: list[Any] = [b"", b"{", b'{"status": NaN}', [], {}, {"status": []}, {"status": "done"}]
        for report in (*bad, SUCCESS | {"details": 7}, SUCCESS | {"result": "\0"}):
            assert (await reporter(request, report))[0] == 400
        assert [it.id for it in await app.archive.parked("hooks")] == [handle]


async def test_a_report_that_is_too_large_for_its_queue(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    await app.admin.alter_queue("hooks", Policy(max_bytes=4096))
    await app.publish("hooks", 1)
    async with working(app, events):
        await reporter.parked()
        large = SUCCESS | {"result": "x" * 5000}
        assert (await reporter(receiver.requests[0], large))[0] == 413


async def test_a_token_is_for_its_queue_only(
    app: App, receiver: Receiver, reporter: Reporter, events: Events
) -> None:
    """Who knows the secret of one queue cannot end the messages of another one."""
    other = Callbacks(app, {"others": (b"theirs",), "hooks": (b"new",)})
    await app.publish("hooks", 1)
    async with working(app, events):
        await reporter.parked()
        number = int(receiver.requests[0].headers["webhook-id"].split("_")[1])
        forged = callback_path(b"theirs", "others", number, 1)
        with ServerThread(other, "127.0.0.1", 0) as server:
            body = json.dumps(SUCCESS).encode()
            assert (await asyncio.to_thread(call, server.url + forged, body))[0] == 404
        await asyncio.to_thread(other.close)
