"""The cost of a message: how many tokens it takes from the buckets of its queue and key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from notifyq.errors import InvalidArgumentError
from sql.limits.test_limits import HOUR, claim, ids, limited, put, rewind
from support.database import Connection, finish_all, rows, value

MINUTE = 60
RATES = ("rate", "key_rate")


def each_minute(burst: int, *names: str) -> dict[str, Any]:
    """Rates of one token a minute, in buckets of this size."""
    return {
        option: setting
        for name in names
        for option, setting in (
            (name, 60),
            (f"{name}_period", HOUR),
            (f"{name}_burst", burst),
        )
    }


async def put_costs(
    connection: Connection, *costs: int | None, keys: str | None = None
) -> list[int]:
    """Publish a message of each cost, with the letters of keys as keys."""
    return [
        (await put(connection, key, cost=cost))[0]
        for key, cost in zip(keys or "k" * len(costs), costs, strict=True)
    ]


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("fair", [False, True])
async def test_a_claim_has_as_many_as_the_tokens_pay(
    connection: Connection, name: str, fair: bool
) -> None:
    await limited(connection, fair=fair, **each_minute(10, name))
    published = await put_costs(connection, 4, 4, 4, 1, None)
    # The third takes the bucket into debt, by two.
    assert await ids(connection) == published[:3]
    await rewind(connection, 2 * MINUTE + 1)
    assert await claim(connection) == []
    await rewind(connection, 2 * MINUTE)
    assert await ids(connection) == published[3:]


@pytest.mark.parametrize("name", RATES)
async def test_more_than_the_burst_runs_in_its_turn_and_is_paid_afterwards(
    connection: Connection, name: str
) -> None:
    await limited(connection, ordered=True, **each_minute(2, name))
    large, small = await put_costs(connection, 50, 1)
    held = await claim(connection)
    assert [it["id"] for it in held] == [large]
    assert len(await finish_all(connection, held)) == 1
    assert await claim(connection) == []
    wait = await value(connection, "notifyq.rate_limit_wait", queues=["q"])
    assert timedelta(minutes=48) < wait <= timedelta(minutes=49)
    await rewind(connection, 48 * MINUTE)
    assert await claim(connection) == []
    await rewind(connection, MINUTE)
    assert await ids(connection) == [small]


async def test_an_expensive_message_is_not_overtaken(connection: Connection) -> None:
    await limited(connection, **each_minute(5, "rate"))
    published = await put_costs(connection, 4, 50, 1, 1)
    assert await ids(connection) == published[:2]


@pytest.mark.parametrize("quantity", [2, 10])
@pytest.mark.parametrize("name", RATES)
async def test_far_from_the_rate_costs_are_charged_as_well(
    connection: Connection, name: str, quantity: int
) -> None:
    await limited(connection, **each_minute(1000, name))
    published = await put_costs(connection, *[150] * 20)
    seen: list[int] = []
    while found := await ids(connection, quantity):
        seen += found
    assert seen == published[:7]
    await rewind(connection, 51 * MINUTE)
    assert await ids(connection) == published[7:8]


async def test_each_key_pays_for_its_own(connection: Connection) -> None:
    await limited(connection, **each_minute(3, "key_rate"))
    published = await put_costs(connection, 5, 1, 2, 2, 1, keys="aabbb")
    without = await put(connection, None, None, cost=9)
    assert await ids(connection) == [published[0], *published[2:4], *without]


@pytest.mark.parametrize("fair", [False, True])
async def test_behind_a_backlog_keys_have_what_their_tokens_pay(
    connection: Connection, fair: bool
) -> None:
    await limited(connection, fair=fair, **each_minute(3, "key_rate"))
    await put(connection, *"a" * 300)
    assert len(await claim(connection)) == 3
    published = await put_costs(connection, 2, 2, 2, 3, 1, keys="bbbcc")
    assert sorted(await ids(connection, 20)) == [*published[:2], published[3]]
    assert await claim(connection) == []


async def test_a_key_that_has_to_wait_does_not_lose_its_turn(connection: Connection) -> None:
    await limited(connection, fair=True, **each_minute(2, "rate"))
    await put_costs(connection, *[2] * 8, keys="aaaabbbb")
    seen = []
    for _ in range(4):
        seen += [it["key"] for it in await claim(connection)]
        await rewind(connection, 2 * MINUTE)
    assert sorted(seen[:2]) == sorted(seen[2:]) == ["a", "b"]


async def test_a_position_does_not_pass_a_message_that_has_to_wait(connection: Connection) -> None:
    # As if so many dead rows lay before the first message that each session keeps a position.
    await connection.execute(
        "create or replace function notifyq.full_scan_pause(work bigint, began timestamptz) "
        "returns bigint language sql as 'select 3600000::bigint'"
    )
    await limited(connection, **each_minute(10, "rate"))
    published = await put_costs(connection, 10, 10, 1, 1)
    assert await ids(connection) == published[:1]
    await rewind(connection, 3 * MINUTE)
    assert await ids(connection) == published[1:2]


async def test_a_concurrency_counts_messages(connection: Connection) -> None:
    await limited(connection, concurrency=3, key_concurrency=2, rate=1000, rate_burst=1000)
    published = await put_costs(connection, *[100] * 5, keys="aaabc")
    assert await ids(connection) == [*published[:2], published[3]]


async def test_each_attempt_takes_the_cost_again(connection: Connection) -> None:
    await limited(connection, **each_minute(5, "rate"))
    (published,) = await put(connection, None, cost=4)
    for token in (1, 3):
        assert await ids(connection) == [published]
        assert await value(connection, "retry", id=published, lock_token=token)
        await rewind(connection, MINUTE)
        await connection.execute(
            "update messages.message set available_at = now(), state = 'waiting'"
        )
    assert await claim(connection) == []


async def test_a_dead_message_keeps_its_cost(connection: Connection) -> None:
    await limited(connection, **each_minute(5, "rate"))
    (published,) = await put(connection, None, cost=7)
    held = await claim(connection)
    assert await value(
        connection, "finish", id=published, lock_token=held[0]["lock_token"], status="failed"
    )
    again = await connection.fetchval("select messages.dead_retry($1)", published)
    await rewind(connection, 60 * MINUTE)
    assert await ids(connection) == [again]
    wait = await value(connection, "notifyq.rate_limit_wait", queues=["q"])
    assert timedelta(minutes=2) < wait <= timedelta(minutes=3)


async def test_the_cost_is_a_header(connection: Connection) -> None:
    id_ = await value(
        connection, "publish", queue="default", message=1, headers={"a": 1, "cost": 2}, cost=5
    )
    many = await rows(connection, "publish_many", queue="default", messages=[1, 2], cost=6)
    headers = {
        row["id"]: row["headers"]
        for row in await connection.fetch("select id, headers from messages.message")
    }
    assert headers == {id_: {"a": 1, "cost": 5}, **{row[0]: {"cost": 6} for row in many}}


@pytest.mark.parametrize("cost", [0, -1, 1_000_000_001])
@pytest.mark.parametrize("many", [False, True])
async def test_a_cost_out_of_bounds_is_refused(
    connection: Connection, cost: int, many: bool
) -> None:
    message: dict[str, Any] = {"messages": [1]} if many else {"message": 1}
    with pytest.raises(InvalidArgumentError, match=f"cost must be between 1 .* not {cost}"):
        await rows(
            connection, "publish_many" if many else "publish", queue="default", **message, cost=cost
        )


@pytest.mark.parametrize(
    ("header", "cost"),
    [("x", 1), (None, 1), ([7], 1), (-3, 1), (2.4, 2), (1e300, 10**9), (10**400, 10**9)],
)
async def test_any_header_is_some_cost(connection: Connection, header: Any, cost: int) -> None:
    assert await value(connection, "notifyq.cost_of", headers={"cost": header}) == cost


@pytest.mark.parametrize("name", RATES)
async def test_the_largest_cost_at_the_slowest_rate_has_an_end(
    connection: Connection, name: str
) -> None:
    await limited(
        connection, **{name: 1, f"{name}_period": timedelta(days=365_000), f"{name}_burst": 1}
    )
    published = await put_costs(connection, *[10**9] * 3)
    assert await ids(connection) == published[:1]
    assert await claim(connection) == []
