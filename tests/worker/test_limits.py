"""Workers of queues with limits take a free slot or token at once, not at the next poll."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from notifyq import App, ConfigurationError, Policy
from notifyq.telemetry import MessageFinished
from notifyq.worker.wake import Poller, Suppression
from support.database import Connection, until_equal, value
from support.running import Events, working


@pytest.mark.parametrize("keys", [[None] * 60, [f"k{n % 3}" for n in range(60)]])
async def test_a_free_slot_is_taken_at_once(
    app: App, events: Events, keys: list[str | None]
) -> None:
    running: Counter[str] = Counter()
    most = 0

    @app.handler("q")
    async def work(_: int) -> None:
        nonlocal most
        running["now"] += 1
        most = max(most, running["now"])
        await asyncio.sleep(0.01)
        running["now"] -= 1

    await app.admin.create_queue("q", Policy(concurrency=3, ordered=keys[0] is not None))
    async with working(app, events, concurrency=5), working(app, events, concurrency=5):
        for number, key in enumerate(keys):
            await app.publish("q", number, key=key)
        await events.wait(MessageFinished, len(keys))
    assert most == 3


async def test_a_worker_comes_back_for_each_token(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    await app.admin.create_queue("q", Policy(rate=20, rate_burst=1))
    await app.publish_many("q", range(20))
    began = time.monotonic()
    async with working(app, events), working(app, events):
        await events.wait(MessageFinished, 20)
    # 19 tokens, one every 50 ms.
    assert time.monotonic() - began >= 0.9


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Poller, "pause"), (Suppression, "rate_limit_wait")],
    ids=["queried", "answered"],
)
async def test_a_token_that_comes_just_after_a_poll_does_not_wait_for_the_next_poll(
    app: App,
    events: Events,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    step: str,
) -> None:
    at_once: Callable[..., Awaitable[float]] = getattr(owner, step)

    async def late(*args: Any) -> float:
        # The last poll found the bucket empty, and now it is not.
        await until_equal(
            lambda: value(connection, "notifyq.rate_limit_wait", queues=["q"]),
            timedelta(days=1),
            "there is a token",
        )
        return await at_once(*args)

    monkeypatch.setattr(owner, step, late)
    app.handler("q")(lambda: None)
    await app.admin.create_queue("q", Policy(rate=20, rate_burst=1))
    await app.publish_many("q", range(4))
    async with working(app, events):
        await events.wait(MessageFinished, 4)


async def test_values_of_the_wrong_kind_are_refused_by_name(app: App) -> None:
    admin: Any = app.admin
    await admin.create_queue("q", Policy(fair=True))
    with pytest.raises(ConfigurationError, match="name must be a text, not 7"):
        await admin.create_queue(7)
    with pytest.raises(ConfigurationError, match="name must be a text, not None"):
        await admin.alter_queue(None, Policy(rate=1))
    with pytest.raises(ConfigurationError, match="name must be a text, not 1"):
        await admin.set_share(1, "gold", 2)
    with pytest.raises(ConfigurationError, match="key must be a text, not 2"):
        await admin.set_share("q", 2, 2)
    with pytest.raises(ConfigurationError, match="weight must be a number, not 'much'"):
        await admin.set_share("q", "gold", "much")
    with pytest.raises(ConfigurationError, match="concurrency must be between 1 and 1000000000"):
        await admin.set_limit("q", "gold", concurrency=0)
    with pytest.raises(ConfigurationError, match="rate must be between 1 and 1000000000"):
        await admin.set_limit("q", "gold", rate="x")
    with pytest.raises(ConfigurationError, match="rate must be between -2147483647 and 2147483647"):
        Policy(rate=2**31)
    assert [await admin.set_share("q", "gold", weight) for weight in (2, 2.5, None)] == [True] * 3
