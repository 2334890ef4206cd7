"""Limits of single keys instead of those that a queue has for each key."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError
from sql.limits.test_limits import claim, finish, limited, put
from support.database import Connection, Notifications, rows, value

HOUR = timedelta(hours=1)


async def set_limit(connection: Connection, key: str, **limits: int) -> Any:
    return await value(connection, "set_limit", queue="q", key=key, **limits)


async def claimed(connection: Connection, quantity: int = 100) -> dict[str, int]:
    return dict(Counter(it["key"] for it in await claim(connection, quantity)))


@pytest.mark.parametrize("policy", [{}, {"fair": True}, {"concurrency": 50}, {"rate": 10**6}])
async def test_a_key_has_its_own_concurrency(
    connection: Connection, policy: dict[str, Any]
) -> None:
    await limited(connection, key_concurrency=3, **policy)
    assert await set_limit(connection, "big", concurrency=7) is True
    assert await set_limit(connection, "big", concurrency=7) is False
    assert await set_limit(connection, "small", concurrency=1) is True
    assert [tuple(row) for row in await rows(connection, "queue_limits", queue="q")] == [
        ("q", "big", 7, None),
        ("q", "small", 1, None),
    ]
    await put(connection, *["big", "small", "other"] * 10)
    first = await claim(connection)
    assert Counter(it["key"] for it in first) == {"big": 7, "small": 1, "other": 3}
    assert await claim(connection) == []
    await finish(connection, *first)
    assert await set_limit(connection, "small", concurrency=2) is True
    assert await set_limit(connection, "big") is True
    assert await claimed(connection) == {"big": 3, "small": 2, "other": 3}


async def test_small_claims_keep_to_a_smaller_limit(connection: Connection) -> None:
    await limited(connection, key_concurrency=1000)
    await set_limit(connection, "small", concurrency=2)
    await put(connection, *["small"] * 5, *["other"] * 20)
    had = Counter[str]()
    for _ in range(20):
        had.update(await claimed(connection, 1))
    assert had["small"] == 2
    assert had["other"] == 18


async def test_a_key_has_its_own_rate(connection: Connection) -> None:
    await limited(connection, key_rate=4, key_rate_period=HOUR, key_rate_burst=4)
    await set_limit(connection, "slow", rate=1)
    await set_limit(connection, "quick", rate=400)
    await put(connection, *["slow", "quick", "other"] * 10)
    # The burst is that of the queue.
    assert await claimed(connection) == {"slow": 4, "quick": 4, "other": 4}
    assert await claimed(connection) == {}
    wait = await value(connection, "notifyq.rate_limit_wait", queues=["q"])
    assert timedelta(seconds=8) < wait <= timedelta(seconds=9)
    for key, tokens in (("quick", 3), ("other", 0), ("slow", 0)):
        assert await value(connection, "notifyq.sweep_limit_keys", quantity=100) == 0
        # 27 seconds later: three tokens of the quick key.
        await connection.execute(
            "update notifyq.limit_key set paid_at = paid_at - $2::interval where key = $1",
            key,
            timedelta(seconds=27.5),
        )
        assert (await claimed(connection)).get(key, 0) == tokens


async def test_a_rate_holds_over_many_small_claims(connection: Connection) -> None:
    await limited(connection, key_rate=1000, key_rate_period=HOUR, key_rate_burst=12)
    await set_limit(connection, "slow", rate=1)
    await put(connection, *["slow", "other"] * 20)
    had = Counter[str]()
    for _ in range(30):
        had.update(await claimed(connection, 1))
    assert had["slow"] == 12
    assert 12 <= had["other"] <= 14


async def test_limits_end_with_their_queue(connection: Connection) -> None:
    await limited(connection, key_concurrency=3)
    await set_limit(connection, "a", concurrency=1)
    await value(connection, "drop_queue", name="q")
    assert await rows(connection, "queue_limits") == []


async def test_wrong_limits_are_refused(connection: Connection) -> None:
    cases: list[tuple[dict[str, Any], dict[str, int], str]] = [
        ({}, {"concurrency": 1}, "queue 'q' has no key_concurrency"),
        ({"key_concurrency": 1}, {"rate": 1}, "queue 'q' has no key_rate"),
        ({"key_concurrency": 1}, {"concurrency": 0}, "concurrency must be between 1"),
        ({"key_rate": 1}, {"rate": -1}, "rate must be between 1"),
        ({"key_rate": 10, "key_rate_burst": 10**9}, {"rate": 10**9 + 1}, "rate must be between 1"),
    ]
    for policy, limits, why in cases:
        await limited(connection, **policy)
        with pytest.raises(InvalidArgumentError, match=why):
            await set_limit(connection, "a", **limits)
        assert await rows(connection, "queue_limits") == []
        await value(connection, "drop_queue", name="q")


async def test_a_changed_limit_wakes_workers_for_what_it_held_back(
    connection: Connection, notifications: Notifications
) -> None:
    await limited(connection, key_concurrency=1)
    await put(connection, "a", "a")
    assert await claimed(connection) == {"a": 1}
    for concurrency, woken in ((2, ["q"]), (2, [])):
        await notifications.received()
        await set_limit(connection, "a", concurrency=concurrency)
        assert [it.queue for it in await notifications.received()] == woken
    assert await claimed(connection) == {"a": 1}
