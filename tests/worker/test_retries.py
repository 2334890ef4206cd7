"""Failed attempts as handlers, publishers and readers of the history see them."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
from tenacity import RetryCallState, wait_fixed

from notifyq import App, Attempt, Message, Reject, Retry
from notifyq.telemetry import MessageFinished
from support.database import Connection
from support.running import Events, working

HOUR = timedelta(hours=1)


class Declined(Exception):  # noqa: N818
    """Of the user's."""


def delay(attempt: Attempt) -> float:
    """Seconds from the end of an attempt to the next one."""
    assert attempt.retry_at is not None
    return (attempt.retry_at - attempt.ended_at).total_seconds()


async def test_the_history_of_a_message_that_succeeds_in_the_end(app: App, events: Events) -> None:
    @app.handler("q", max_attempts=5, backoff={ConnectionError: wait_fixed(0.2), Exception: 0})
    async def handle(message: Message) -> str:
        match message.attempts:
            case 1:
                raise ConnectionError("no route")
            case 2:
                raise Retry("closed", after=timedelta(milliseconds=100))
            case 3:
                raise RuntimeError("payment") from Declined("card")
        return "done"

    async with working(app, events, poll=0.05) as worker:
        id_ = await app.publish("q", None)
        await events.wait(MessageFinished, status="success")
    found = await app.archive.attempts(id_)
    assert [(a.number, a.status, a.error_type, a.details) for a in found] == [
        (1, "failed", "ConnectionError", "no route"),
        (2, "failed", "notifyq.Retry", "closed"),
        (3, "failed", "RuntimeError", "payment"),
    ]
    assert {(a.message_id, a.queue, a.handled_by) for a in found} == {(id_, "q", worker.name)}
    assert all(earlier.ended_at <= later.locked_at for earlier, later in itertools.pairwise(found))
    assert 0.15 < delay(found[0]) < 0.25
    assert 0.05 < delay(found[1]) < 0.15
    assert delay(found[2]) < 0.05
    assert found[2].traceback is not None
    assert f"{__name__}.Declined: card" in found[2].traceback
    archived = await app.archive.find(id_)
    assert archived is not None
    assert archived.attempts == 4


async def test_a_class_of_errors_may_end_a_message_at_once(app: App, events: Events) -> None:
    @app.handler("q", max_attempts=5, backoff={KeyError: None, Declined: Reject})
    def handle(kind: str) -> None:
        raise {"key": KeyError("k"), "declined": Declined("card"), "else": ValueError("v")}[kind]

    async with working(app, events):
        ids = [await app.publish("q", kind) for kind in ("key", "declined", "else")]
        await events.wait(MessageFinished, 3)
    histories = [await app.archive.attempts(id_) for id_ in ids]
    assert [(h.status, h.error_type, h.retry_at is None) for (h,) in histories] == [
        ("failed", "KeyError", True),
        ("rejected", f"{__name__}.Declined", True),
        ("failed", "ValueError", False),
    ]
    dead = {message.id: message for message in await app.archive.dead("q")}
    assert {id_: message.status for id_, message in dead.items()} == {
        ids[0]: "failed",
        ids[1]: "rejected",
    }
    assert (dead[ids[1]].details or "").startswith(f"{__name__}.Declined: card\n")


async def test_the_options_of_a_handler_hold_for_an_existing_queue(
    app: App, events: Events, connection: Connection
) -> None:
    """Those of a message override them."""
    for queue in ("more", "as it is"):
        await app.admin.create_queue(queue)  # one attempt

    def fail() -> None:
        raise ValueError

    app.handler("more", max_attempts=3, backoff=0)(fail)
    app.handler("as it is")(fail)
    async with working(app, events, poll=0.05):
        more, lone = [await app.publish(queue, 1) for queue in ("more", "as it is")]
        once = await app.publish("more", 1, max_attempts=1)
        twice = await app.publish("as it is", 1, max_attempts=2)
        await events.wait(MessageFinished, 3 + 1 + 1 + 1)
    assert len(await app.archive.attempts(more)) == 3
    assert len(await app.archive.attempts(lone)) == len(await app.archive.attempts(once)) == 1
    (first,) = await app.archive.attempts(twice)
    assert 0.9 < delay(first) < 2.1  # the queue's backoff
    policies = {row["queue"]: row["max_attempts"] for row in await app.admin.queue_info()}
    assert policies["more"] == policies["as it is"] == 1


def raises(_state: RetryCallState) -> float:
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize(
    ("backoff", "why"),
    [
        (raises, [": the handler's ", "ZeroDivisionError: by zero"]),
        (lambda _state: "soon", [": the handler's ", "no duration"]),
        (wait_fixed(timedelta(days=5_000_000)), [": the handler's ", "no duration"]),
        (wait_fixed(timedelta(days=400_000_000)), [": the handler's ", "no duration"]),
    ],
)
async def test_a_strategy_that_is_wrong_loses_no_message(
    app: App, events: Events, backoff: Any, why: list[str]
) -> None:
    @app.handler("q", max_attempts=2, backoff=backoff)
    def handle() -> None:
        raise ValueError("x")

    async with working(app, events):
        id_ = await app.publish("q", None)
        await events.wait(MessageFinished)
    (attempt,) = await app.archive.attempts(id_)
    assert 0.9 < delay(attempt) < 2.1
    assert attempt.details == "x"
    message = await app.archive.find(id_)
    assert message is not None
    assert f"retried by the queue's backoff{why[0]}" in (message.details or "")
    assert why[-1] in (message.details or "")


async def test_a_timeout_is_an_error_that_shows_where_the_handler_was(
    app: App, events: Events
) -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    @app.handler("q", max_attempts=2, timeout=0.1, backoff={TimeoutError: wait_fixed(HOUR)})
    async def handle() -> None:
        await wait_for_ever()

    async with working(app, events):
        id_ = await app.publish("q", None)
        await events.wait(MessageFinished)
    (attempt,) = await app.archive.attempts(id_)
    assert (attempt.error_type, attempt.status) == ("TimeoutError", "failed")
    assert delay(attempt) == pytest.approx(3600, abs=1)
    assert "in wait_for_ever" in (attempt.traceback or "")


async def test_rejections_are_in_the_history_too(app: App, events: Events) -> None:
    @app.handler("q", max_attempts=3)
    def handle(n: int) -> None:
        raise Reject("unknown") from (KeyError(n) if n else None)

    async with working(app, events):
        ids = [await app.publish("q", payload) for payload in (0, 1, "no number")]
        await events.wait(MessageFinished, 3, status="rejected")
    (plain,), (caused,), (invalid,) = [await app.archive.attempts(id_) for id_ in ids]
    assert (plain.details, plain.traceback) == ("unknown", None)
    assert (caused.details, caused.error_type) == ("unknown", "notifyq.Reject")
    assert "KeyError: 1" in (caused.traceback or "")
    assert (invalid.details or "").startswith("the payload is not valid: ")
    assert {a.status for a in (plain, caused, invalid)} == {"rejected"}
