"""A worker of several queues: turns, weights, and a strict order."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from notifyq import App, ConfigurationError
from notifyq.telemetry import MessageFinished
from notifyq.worker.queue_order import QueueOrder
from support.running import Events, working

EACH = 300


def handle(app: App, **options: Any) -> list[str]:
    """Handlers of three queues; the list has the queue of each message in the order of calls."""
    called: list[str] = []
    for queue in ("high", "middle", "low"):

        async def work(_: int, queue: str = queue) -> None:
            called.append(queue)
            await asyncio.sleep(0.001)

        app.handler(queue, **options.get(queue, {}))(work)
    return called


async def fill(app: App, *queues: str) -> None:
    await app.create_queues()
    for queue in queues:
        await app.publish_many(queue, range(EACH))


@pytest.mark.parametrize(
    "options", [{}, {"middle": {"lock_duration": 90}}], ids=["one claim", "several claims"]
)
async def test_weights_are_shares_under_load(
    app: App, events: Events, options: dict[str, Any]
) -> None:
    called = handle(app, **options)
    await fill(app, "high", "middle", "low")
    weights = {"low": 1, "middle": 2, "high": 3}
    async with working(app, events, queues=weights, concurrency=3) as worker:
        await events.wait(MessageFinished, 3 * EACH)
    assert worker.queues == ("low", "middle", "high")
    # All have messages while the first 480 are handled, except for what one poll takes.
    counts = Counter(called[:480])
    for queue, weight in weights.items():
        assert counts[queue] == pytest.approx(80 * weight, abs=30), counts


async def test_a_queue_that_was_empty_has_no_credit() -> None:
    order = QueueOrder({"high": 3, "low": 1})
    claims = Counter[str]()
    for turn in range(400):
        # Until turn 200 only low has messages.
        first = "low" if turn < 200 else order.requests(1, is_loaded=True)[0][0][0]
        order.record([_Message(first)])  # type: ignore[list-item]
        claims[first] += turn >= 200
    assert claims["high"] == pytest.approx(150, abs=4)


async def test_a_large_claim_has_a_share_of_each_queue() -> None:
    order = QueueOrder({"low": 1, "high": 3})
    everything = (["low", "high"], None)
    assert order.requests(41, is_loaded=True) == [(["low"], 11), (["high"], 30), everything]
    assert order.requests(4, is_loaded=True) == [(["low"], 1), (["high"], 3), everything]
    assert order.requests(3, is_loaded=True) == [everything]
    assert order.requests(41, is_loaded=False) == [everything]


class _Message:
    def __init__(self, queue: str) -> None:
        self.queue = queue


async def test_an_empty_queue_leaves_its_share_to_the_others(app: App, events: Events) -> None:
    called = handle(app)
    await fill(app, "low")
    async with working(app, events, queues={"high": 1000, "low": 1}, concurrency=3):
        await events.wait(MessageFinished, EACH)
    assert called == ["low"] * EACH


@pytest.mark.parametrize(
    "options",
    [{}, {"middle": {"lock_duration": 90}}, {"low": {"lock_duration": 90}}],
    ids=["one claim", "three claims", "two claims"],
)
async def test_strict_serves_the_queues_in_order(
    app: App, events: Events, options: dict[str, Any]
) -> None:
    called = handle(app, **options)
    await fill(app, "low", "middle", "high")
    queues = ["high", "middle", "low"]
    async with working(app, events, queues=queues, strict=True, concurrency=3):
        await events.wait(MessageFinished, 3 * EACH)
    # Handlers of three slots end in any order, but they start in that of the claims.
    assert called == ["high"] * EACH + ["middle"] * EACH + ["low"] * EACH


async def test_a_poll_claims_as_often_as_without_weights(
    app: App, events: Events, claims: list[list[str]]
) -> None:
    handle(app)
    await fill(app)
    weights = {"high": 3, "middle": 2, "low": 1}
    async with working(app, events, queues=weights, concurrency=10):
        for number in (1, 2, 3):
            await app.publish("low", number)
            await events.wait(MessageFinished, number)
    # The first poll does not know yet which queues are empty.
    assert [len(queues) for queues in claims[:4]] == [1, 1, 1, 3]
    assert claims[4:]
    assert all(sorted(queues) == sorted(weights) for queues in claims[4:])


def test_wrong_queues_are_refused(app: App) -> None:
    handle(app)
    for options, why in (
        ({"queues": {"high": 0}}, "the weight of queue 'high' is 0: give a whole number from 1"),
        ({"queues": {"high": -1}}, "the weight of queue 'high' is -1"),
        ({"queues": {"high": 1001}}, "the weight of queue 'high' is 1001"),
        ({"queues": {"high": True}}, "the weight of queue 'high' is True"),
        ({"queues": {"high": "3"}}, "the weight of queue 'high' is '3'"),
        ({"queues": {"high": 1.5}}, "the weight of queue 'high' is 1.5"),
        ({"queues": ["high", "low", "high"]}, "queue 'high' is given 2 times"),
        ({"queues": {"high": 3}, "strict": True}, "leave out strict or the weights"),
        ({"strict": True}, "strict has no order"),
        ({"queues": {"other": 3}}, "no handler for queue 'other'"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            app.worker(**options)
