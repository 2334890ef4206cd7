"""Limits of a queue: concurrency, rate, order, shares, one claimer after the other."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from support.database import (
    Connect,
    Connection,
    Notifications,
    archived,
    expire,
    finish_all,
    make_due,
    rows,
    value,
)

HOUR = timedelta(hours=1)


async def limited(connection: Connection, **policy: Any) -> None:
    await value(connection, "create_queue", name="q", max_attempts=5, **policy)


async def put(connection: Connection, *keys: str | None, **options: Any) -> list[int]:
    published = await rows(
        connection, "publish_many", queue="q", messages=list(range(len(keys))), keys=keys, **options
    )
    return [row[0] for row in published]


async def claim(connection: Connection, quantity: int = 100) -> list[asyncpg.Record]:
    return await rows(connection, "claim", queues=["q"], quantity=quantity, worker="w")


async def ids(connection: Connection, quantity: int = 100) -> list[int]:
    return [row["id"] for row in await claim(connection, quantity)]


async def finish(connection: Connection, *messages: asyncpg.Record) -> None:
    assert len(await finish_all(connection, messages)) == len(messages)


async def test_no_more_are_locked_than_the_queue_allows(connection: Connection) -> None:
    await limited(connection, concurrency=3)
    published = await put(connection, *[None] * 10)
    held = await claim(connection)
    assert [it["id"] for it in held] == published[:3]
    assert await claim(connection) == []
    await finish(connection, held[0])
    assert await ids(connection) == published[3:4]
    assert await value(connection, "release", id=held[1]["id"], lock_token=1)
    assert await ids(connection) == published[1:2]
    retried = {"id": held[2]["id"], "lock_token": 1}
    assert await value(connection, "retry", **retried)
    assert await ids(connection) == published[4:5]


async def test_an_expired_lock_counts_until_it_is_reaped(connection: Connection) -> None:
    await limited(connection, concurrency=1)
    first, second = await put(connection, None, None)
    assert await ids(connection) == [first]
    await expire(connection, first)
    assert await claim(connection) == []
    assert await value(connection, "reap") == 1
    assert await ids(connection) == [second]


async def test_messages_locked_before_the_limit_count(connection: Connection) -> None:
    await limited(connection)
    published = await put(connection, *[None] * 5)
    held = await claim(connection, 3)
    await value(connection, "alter_queue", name="q", concurrency=3)
    assert await claim(connection) == []
    await finish(connection, held[0])
    assert await ids(connection) == published[3:4]


async def test_no_more_of_a_key_are_locked_than_it_may_have(connection: Connection) -> None:
    await limited(connection, key_concurrency=2)
    published = await put(connection, *"aaaaab", None, None)
    held = await claim(connection)
    assert [it["id"] for it in held] == [*published[:2], *published[5:]]
    assert await claim(connection) == []
    await finish(connection, held[1], held[2])
    assert await ids(connection) == published[2:3]


async def test_other_keys_are_found_after_a_backlog_that_must_wait(connection: Connection) -> None:
    await limited(connection, key_concurrency=1)
    published = await put(connection, *["a"] * 500, "b", "c", None)
    assert await ids(connection, 2) == [published[0], published[500]]
    assert await ids(connection, 10) == published[501:]


async def test_messages_of_a_key_are_claimed_in_order(connection: Connection) -> None:
    await limited(connection, ordered=True)
    published = await put(connection, *"abab", None, None)
    held = await claim(connection)
    assert [it["id"] for it in held] == [*published[:2], *published[4:]]
    assert await claim(connection) == []
    # A later message of larger priority does not overtake.
    await put(connection, "a", priority=9)
    assert await claim(connection) == []
    await finish(connection, held[0])
    assert await ids(connection) == published[2:3]


async def test_a_message_that_is_retried_holds_up_its_key(connection: Connection) -> None:
    await limited(connection, ordered=True)
    first, second, other = await put(connection, "a", "a", "b")
    for token in (1, 3):
        assert (await ids(connection))[0] == first
        assert await value(connection, "retry", id=first, lock_token=token)
        assert set(await ids(connection)) <= {other}
        await make_due(connection, first)
    (again,) = await claim(connection)
    assert again["id"] == first
    await finish(connection, again)
    assert await ids(connection) == [second]


async def test_the_end_of_a_message_without_success_lets_its_key_go_on(
    connection: Connection,
) -> None:
    await limited(connection, ordered=True)
    first, second, third = await put(connection, "a", "a", "a")
    assert await ids(connection) == [first]
    assert await value(connection, "finish", id=first, lock_token=1, status="failed")
    assert await ids(connection) == [second]
    await expire(connection, second)
    await connection.execute("update messages.message set attempts = 5 where id = $1", second)
    assert await value(connection, "reap") == 1
    assert await ids(connection) == [third]


async def test_priority_counts_between_keys_and_not_within_one(connection: Connection) -> None:
    await limited(connection, ordered=True)
    (low,) = await put(connection, "a")
    await put(connection, "a", priority=5)
    (high,) = await put(connection, "b", priority=1)
    assert [it["id"] for it in await claim(connection, 1)] == [high]
    assert await ids(connection, 1) == [low]


async def test_a_take_keeps_the_order_and_the_limits(connection: Connection) -> None:
    await limited(connection, ordered=True, concurrency=2)
    published = await put(connection, *"aabc")
    taken = await rows(connection, "take", queue="q", quantity=10)
    assert [it["id"] for it in taken] == [published[0], published[2]]
    assert len(await archived(connection, published[0])) == 1
    taken = await rows(connection, "take", queue="q", quantity=10)
    assert [it["id"] for it in taken] == [published[1], published[3]]


async def test_messages_of_a_limited_queue_are_not_claimed_by_id(connection: Connection) -> None:
    await limited(connection, concurrency=2)
    (id_,) = await put(connection, None)
    with pytest.raises(asyncpg.PostgresError, match="queue 'q' has limits") as caught:
        await rows(connection, "claim_id", id=id_)
    assert caught.value.sqlstate == "NQ003"


async def rewind(connection: Connection, seconds: float) -> None:
    """As if time had gone by since the last claim."""
    for table, *columns in (
        ("limit_state", "paid_at", "keys_paid_at", "booked_paid_at"),
        ("limit_key", "paid_at"),
        ("limit_charge", "charged_at"),
    ):
        earlier = ", ".join(f"{it} = {it} - make_interval(secs => $1)" for it in columns)
        await connection.execute(f"update notifyq.{table} set {earlier}", seconds)


async def test_a_rate_is_a_bucket_that_fills_with_time(connection: Connection) -> None:
    await limited(connection, rate=60, rate_period=HOUR, rate_burst=5)
    published = await put(connection, *[None] * 20)
    assert await ids(connection) == published[:5]
    assert await claim(connection) == []
    await rewind(connection, 61)
    held = await claim(connection)
    assert [it["id"] for it in held] == published[5:6]
    # What is given back gives no token back.
    assert await value(connection, "release", id=held[0]["id"], lock_token=1)
    assert await claim(connection) == []
    await rewind(connection, 3 * 60)
    assert await ids(connection) == published[5:8]
    await rewind(connection, 3 * 3600)
    assert await ids(connection) == published[8:13]


async def test_without_a_burst_a_minute_brings_no_more_than_its_rate(
    connection: Connection,
) -> None:
    await limited(connection, rate=10, rate_period=HOUR / 60)
    published = await put(connection, *[None] * 30)
    seen: list[int] = []
    for _ in range(10):
        seen += await ids(connection)
        await rewind(connection, 6)
    assert seen == published[:10]


async def test_each_key_has_a_rate_of_its_own(connection: Connection) -> None:
    await limited(connection, key_rate=60, key_rate_period=HOUR, key_rate_burst=2)
    published = await put(connection, *"aaaab", None)
    assert await ids(connection) == [*published[:2], *published[4:]]
    assert await claim(connection) == []
    await rewind(connection, 61)
    assert await ids(connection) == published[2:3]


async def test_keys_have_equal_shares_whatever_their_backlog(connection: Connection) -> None:
    await limited(connection, fair=True)
    await put(connection, *["big"] * 300)
    await put(connection, *["small"] * 30)
    had: Counter[str] = Counter()
    for _ in range(6):
        had.update(it["key"] for it in await claim(connection, 10))
    assert had == {"big": 30, "small": 30}
    assert len(await claim(connection, 50)) == 50
    # A key that was idle has no credit, and need not wait.
    (late,) = await put(connection, "small")
    assert late in await ids(connection, 2)


@pytest.mark.parametrize("gold", [1, 2])
async def test_claims_of_any_size_go_on_where_the_last_one_has_ended(
    connection: Connection, gold: int
) -> None:
    await limited(connection, fair=True)
    if gold != 1:
        await value(connection, "set_share", queue="q", key="gold", weight=float(gold))
    names = ["gold", *(f"k{n:02}" for n in range(30))]
    published = await put(connection, *names * 20, *["gold"] * 20)
    had: Counter[str] = Counter()
    order: dict[str, list[int]] = {}
    for quantity in (1, 30, 2, 31, 3, 62, 5, 33, 8, 90, 13, 21, 100):
        held = await claim(connection, quantity)
        assert len(held) == quantity
        had.update(it["key"] for it in held)
        for it in held:
            order.setdefault(it["key"], []).append(it["id"])
        rounds = [had[name] / (gold if name == "gold" else 1) for name in names]
        assert max(rounds) - min(rounds) <= 1
    assert all(ids == sorted(ids) for ids in order.values())
    rest = await ids(connection, 1000)
    assert sorted([*rest, *(id_ for ids in order.values() for id_ in ids)]) == published


async def test_unused_shares_go_to_keys_with_more_messages(
    connection: Connection,
) -> None:
    await limited(connection, fair=True)
    await put(connection, *"aaab", *"c" * 50, *"d" * 50)
    assert Counter(it["key"] for it in await claim(connection, 30)) == {
        "a": 3,
        "b": 1,
        "c": 13,
        "d": 13,
    }
    # Their turn begins anew.
    first, _ = await in_turn(connection, *"cd")
    assert [it["key"] for it in await claim(connection, 1)] == [first]
    assert len(await claim(connection, 1000)) == 73


async def test_a_fair_claim_finds_a_new_key_in_its_round(connection: Connection) -> None:
    await limited(connection, fair=True)
    await put(connection, *(["a", "b", "c", "d"] * 100))
    await ids(connection, 10)
    for name in ("aa", "bb", "cc", "dd"):
        (late,) = await put(connection, name)
        assert late in [id_ for _ in range(5) for id_ in await ids(connection, 1)]


async def in_turn(connection: Connection, *names: str) -> list[str]:
    """These keys in the order of their turns, which is that of their key_hashes."""
    ordered = (
        "select array_agg(n order by notifyq.key_hash('q', n)) from unnest($1::text[]) as u (n)"
    )
    keys: list[str] = await connection.fetchval(ordered, names)
    return keys


async def late_one(connection: Connection, names: list[str], position: int) -> str:
    """A key whose turn comes behind so many of these."""
    for number in range(1000):
        late = f"late{number}"
        if (await in_turn(connection, *names, late)).index(late) == position:
            return late
    raise AssertionError(position)


@pytest.mark.parametrize("position", [0, 1, 3])
async def test_a_claim_with_a_message_for_each_key_finds_new_ones(
    connection: Connection, position: int
) -> None:
    await limited(connection, fair=True)
    await put(connection, *"bdf" * 20)
    late = await late_one(connection, [*"bdf"], position)
    assert Counter(it["key"] for it in await claim(connection, 6)) == {"b": 2, "d": 2, "f": 2}
    await put(connection, *[late] * 3)
    assert Counter(it["key"] for it in await claim(connection, 8)) == dict.fromkeys(
        ["b", "d", "f", late], 2
    )
    # It has but one more, which leaves the rest to the others.
    had = Counter(it["key"] for it in await claim(connection, 13))
    assert had == {"b": 4, "d": 4, "f": 4, late: 1}


async def test_a_claim_with_a_message_for_each_key_goes_on_where_the_last_one_ended(
    connection: Connection,
) -> None:
    await limited(connection, fair=True)
    await put(connection, *"abc" * 20)
    had: Counter[str] = Counter()
    for quantity in (4, 5, 7, 3, 8, 4, 4):
        had.update(it["key"] for it in await claim(connection, quantity))
        assert max(had.values()) - min(had.values()) <= 1
    # The position of a claim that is rolled back goes with it.
    await connection.execute("begin")
    held = {it["id"] for it in await claim(connection, 2)}
    await connection.execute("rollback")
    assert {it["id"] for it in await claim(connection, 2)} == held


@pytest.mark.parametrize("position", [0, 5, 10, None])
async def test_claims_of_a_part_of_a_round_go_to_each_key_in_its_turn(
    connection: Connection, position: int | None
) -> None:
    await limited(connection, fair=True)
    names = await in_turn(connection, *(f"k{n:02}" for n in range(10)))
    late = names[1] if position is None else await late_one(connection, names, position)
    await put(connection, *names * 20)
    had: Counter[str] = Counter()
    for _ in range(12):
        had.update(it["key"] for it in await claim(connection, 4))
        assert max(had[name] for name in names) - min(had[name] for name in names) <= 1
    # What is new has its turn as well, and one that has no more keeps none from theirs.
    await put(connection, *[late] * 3)
    gone = names.pop(7)
    await connection.execute(
        "delete from messages.message where key = $1 and state = 'waiting'", gone
    )
    before = had.copy()
    for _ in range(20):
        held = await claim(connection, 4)
        assert len(held) == 4
        had.update(it["key"] for it in held)
        each = [had[name] - before[name] for name in names if name != late]
        assert max(each) - min(each) <= 2
    assert had[late] - before[late] >= 3


async def test_small_and_large_claims_go_on_after_each_other(
    connection: Connection,
) -> None:
    names = await in_turn(connection, *(f"k{n:02}" for n in range(30)))
    await limited(connection, fair=True)
    await put(connection, *names * 20)
    assert len(await claim(connection, 30)) == 30
    for number in range(4):
        had = [it["key"] for it in await claim(connection, 2)]
        assert sorted(had) == sorted(names[2 * number : 2 * number + 2])
    had = [it["key"] for it in await claim(connection, 30)]
    assert sorted(had) == sorted(names)


async def test_a_fair_claim_is_full_while_messages_wait(connection: Connection) -> None:
    await limited(connection, fair=True)
    await put(connection, *["big"] * 300, *(f"small{n}" for n in range(25)), *[None] * 5)
    for _ in range(11):
        assert len(await claim(connection, 30)) == 30
    assert await waiting(connection) == []


async def test_messages_without_a_key_share_one_turn(connection: Connection) -> None:
    await limited(connection, fair=True)
    await put(connection, *["big"] * 1200)
    await put(connection, *[None] * 40)
    had: Counter[str | None] = Counter()
    for _ in range(11):
        # Scans for them are made now and then, 1000 messages at a time.
        await connection.execute("update notifyq.limit_state set keyless_scan_at = '-infinity'")
        had.update(it["key"] for it in await claim(connection, 6))
    assert abs(had["big"] - had[None]) <= 12
    assert sum(had.values()) == 66


@pytest.mark.parametrize("policy", [{"key_concurrency": 1}, {"ordered": True}])
async def test_no_backlog_hides_messages_without_a_key(
    connection: Connection, policy: dict[str, Any]
) -> None:
    await limited(connection, **policy)
    (first, *_) = await put(connection, *["a"] * 2500)
    (loose,) = await put(connection, None)
    found: list[int] = []
    for _ in range(4):
        found += await ids(connection, 10)
    assert found == [first, loose]


async def test_shares_go_by_their_weights(connection: Connection) -> None:
    await limited(connection, fair=True)
    await value(connection, "set_share", queue="q", key="gold", weight=3.0)
    assert [tuple(it) for it in await rows(connection, "queue_shares")] == [("q", "gold", 3)]
    assert await rows(connection, "queue_shares", queue="other") == []
    await put(connection, *(["gold", "iron", "lead"] * 200))
    had: Counter[str] = Counter()
    for _ in range(50):
        had.update(it["key"] for it in await claim(connection, 5))
    assert abs(had["gold"] - 150) <= 5
    assert abs(had["iron"] - 50) <= 5
    assert abs(had["lead"] - 50) <= 5


async def test_limits_hold_together(connection: Connection) -> None:
    await limited(connection, concurrency=4, key_concurrency=2, fair=True)
    published = await put(connection, *["a"] * 50, "b", "c", "d")
    held = await claim(connection)
    assert Counter(it["key"] for it in held)["a"] <= 2
    assert len(held) == 4
    await finish(connection, *[it for it in held if it["key"] != "a"])
    rest = await claim(connection)
    assert {it["id"] for it in (*held, *rest)} >= set(published[50:])


async def test_a_limit_can_be_removed(connection: Connection) -> None:
    await limited(connection, concurrency=1, ordered=True, rate=5)
    await put(connection, *"aaa")
    assert len(await claim(connection)) == 1
    changed = await rows(connection, "alter_queue", name="q", concurrency=0, ordered=False, rate=0)
    assert (changed[0]["concurrency"], changed[0]["rate"]) == (None, None)
    assert not changed[0]["is_limited"]
    assert len(await claim(connection)) == 2
    for table in ("limit_turn", "limit_state", "limit_key", "limit_charge"):
        assert not await connection.fetchval(f"select count(*) from notifyq.{table}")


async def test_an_invalid_option_is_refused(connection: Connection) -> None:
    for policy, problem in (
        ({"concurrency": -1}, "concurrency must be between 0 and 1000000000, not -1"),
        ({"rate_period": "0 s"}, "rate_period must be longer than zero"),
        ({"overflow": "panic"}, "overflow must be reject or drop_oldest"),
    ):
        with pytest.raises(asyncpg.PostgresError, match=problem) as caught:
            await connection.fetch(
                "select messages.create_queue('q', "
                + ", ".join(f"{name} => '{it}'" for name, it in policy.items())
                + ")"
            )
        assert caught.value.sqlstate == "NQ003"


async def waiting(connection: Connection) -> list[int]:
    found = await connection.fetch(
        "select id from messages.message where queue = 'q' and state <> 'locked' order by id"
    )
    return [row["id"] for row in found]


async def test_a_full_queue_takes_nothing_more(connection: Connection) -> None:
    await limited(connection, capacity=5)
    published = await put(connection, *[None] * 4)
    await put(connection, None, available_at=datetime(2999, 1, 1, tzinfo=UTC))
    with pytest.raises(asyncpg.PostgresError, match="is full: its capacity is 5") as caught:
        await put(connection, None)
    assert caught.value.sqlstate == "NQ010"
    # A locked message does not wait; one that comes back does, and may be one too many.
    assert await ids(connection, 1) == published[:1]
    (new,) = await put(connection, None)
    assert await value(connection, "release", id=published[0], lock_token=1)
    with pytest.raises(asyncpg.PostgresError, match="is full"):
        await put(connection, None)
    assert len(await waiting(connection)) == 6
    await finish(connection, *await claim(connection))
    published = await put(connection, *[None] * 4)
    with pytest.raises(asyncpg.PostgresError, match="is full"):
        await put(connection, None)
    assert new not in published


async def test_a_bulk_that_does_not_fit_is_refused_as_a_whole(connection: Connection) -> None:
    await limited(connection, capacity=100)
    await put(connection, *[None] * 30)
    with pytest.raises(asyncpg.PostgresError, match="is full"):
        await put(connection, *[None] * 71)
    assert len(await waiting(connection)) == 30
    await put(connection, *[None] * 70)
    assert len(await waiting(connection)) == 100


@pytest.mark.parametrize("durable", [True, False])
async def test_no_more_than_the_capacity_fit_in_any_order_of_ids(
    connection: Connection, durable: bool
) -> None:
    await limited(connection, capacity=20, durable=durable)
    # Rows come in the order of their keys: with these, ids fall.
    with pytest.raises(asyncpg.PostgresError, match="is full: its capacity is 20"):
        await put(connection, *[None] * 21, dedup_keys=[f"{99 - n}" for n in range(21)])
    assert await waiting(connection) == []
    keys = [f"{n * 7 % 20:02}" for n in range(20)]
    published = await put(connection, *[None] * 20, dedup_keys=keys)
    assert await waiting(connection) == published
    with pytest.raises(asyncpg.PostgresError, match="is full"):
        await put(connection, None)


async def test_the_oldest_make_room_for_new_ones(connection: Connection) -> None:
    await limited(connection, capacity=4, overflow="drop_oldest")
    published = await put(connection, *[None] * 10)
    assert await waiting(connection) == published[6:]
    (gone,) = await archived(connection, published[0])
    assert gone["status"] == "rejected"
    assert gone["details"] == "dropped: the queue was full, its capacity is 4"
    (low,) = await put(connection, None, priority=-1)
    await put(connection, None)
    assert low not in await waiting(connection)
    await value(connection, "alter_queue", name="q", capacity=2)
    await put(connection, None)
    assert len(await waiting(connection)) == 2


async def test_what_others_hold_is_passed_over_level_by_level(
    connection: Connection, connect: Connect
) -> None:
    await limited(connection, capacity=5, overflow="drop_oldest")
    low = await put(connection, None, priority=-2) + await put(connection, None, priority=-1)
    oldest, newest = await put(connection, None, None)
    (scheduled,) = await put(connection, None, delay=HOUR)
    other = await connect()
    async with other.transaction():
        await other.execute(
            "select from messages.message where id = any ($1) order by id for update", low
        )
        (new,) = await put(connection, None)
    assert await waiting(connection) == [*low, newest, scheduled, new]
    assert len(await archived(connection, oldest)) == 1


async def test_a_capacity_costs_other_queues_no_call(connection: Connection) -> None:
    trigger = "select pg_get_triggerdef(oid) from pg_trigger where tgname = 'capacity'"
    assert await connection.fetchval(trigger) is None
    await limited(connection, capacity=1)
    assert "ANY ('{q}'::text[])" in await connection.fetchval(trigger)
    await value(connection, "publish", queue="default", message=1)
    await value(connection, "publish", queue="default", message=2)
    await value(connection, "alter_queue", name="q", capacity=0)
    assert await connection.fetchval(trigger) is None
    await put(connection, *[None] * 10)


async def test_rate_limit_wait_returns_the_time_until_the_next_token(
    connection: Connection,
) -> None:
    assert await value(connection, "notifyq.rate_limit_wait", queues=["default"]) is None
    await limited(connection, rate=60, rate_period=HOUR, rate_burst=2)
    await put(connection, *[None] * 5)
    assert await value(connection, "notifyq.rate_limit_wait", queues=["default", "q"]) == timedelta(
        days=1
    )
    await claim(connection)
    dry = await value(connection, "notifyq.rate_limit_wait", queues=["q"])
    assert timedelta(seconds=50) < dry <= timedelta(seconds=60)
    await value(connection, "alter_queue", name="q", rate=0, key_rate=6, key_rate_period=HOUR)
    await put(connection, "a", "a")
    assert len(await claim(connection)) == 4
    dry = await value(connection, "notifyq.rate_limit_wait", queues=["q"])
    assert timedelta(seconds=590) < dry <= timedelta(seconds=600)


@pytest.mark.parametrize("rate", ["rate", "key_rate"])
async def test_rate_limit_wait_is_negative_for_a_token_since_the_last_claim(
    connection: Connection, rate: str
) -> None:
    async def token_in(since: int) -> timedelta:
        waited: timedelta = await value(
            connection, "notifyq.rate_limit_wait", queues=["q"], since=timedelta(seconds=since)
        )
        return waited

    await limited(connection, **{rate: 60, f"{rate}_period": HOUR, f"{rate}_burst": 1})
    await put(connection, "a", "a")
    assert len(await claim(connection)) == 1
    assert timedelta(seconds=50) < await token_in(0) <= timedelta(seconds=60)
    assert timedelta(seconds=50) < await token_in(3600) <= timedelta(seconds=60)
    for table in ("limit_state", "limit_key"):
        await connection.execute(
            f"update notifyq.{table} set paid_at = clock_timestamp() - interval '1 second'"
        )
    await connection.execute("select notifyq.sweep_limit_keys(100)")
    assert await token_in(0) == timedelta(days=1)
    assert timedelta(seconds=-10) < await token_in(10) <= timedelta(seconds=-1)


KEYS = "select count(*) from notifyq.limit_key"
CHARGES = "select count(*) from notifyq.limit_charge"


async def test_full_buckets_of_keys_are_deleted(connection: Connection) -> None:
    await limited(connection, fair=True, key_rate=60, key_rate_period=HOUR, key_rate_burst=2)
    await put(connection, *"abcabc")
    assert len(await claim(connection, 3)) == 3
    assert len(await claim(connection, 3)) == 3
    assert await connection.fetchval(KEYS) == 3
    await put(connection, "d")
    assert len(await claim(connection, 3)) == 1
    assert await connection.fetchval(KEYS) == 4
    await rewind(connection, 180)
    assert await connection.fetchval("select notifyq.sweep_limit_keys(2)") == 2
    assert await connection.fetchval("select notifyq.sweep_limit_keys(100)") == 2
    assert await connection.fetchval(KEYS) == 0


async def limited_keys(connection: Connection) -> None:
    """Give each key a bucket of ten that fills by one in a minute."""
    await limited(connection, key_rate=60, key_rate_period=HOUR, key_rate_burst=10)
    await put(connection, *"ab" * 30)


async def test_far_from_the_rate_charges_are_paid_later_together(
    connection: Connection,
) -> None:
    await limited_keys(connection)
    assert len(await claim(connection, 4)) == 4
    assert len(await claim(connection, 6)) == 6
    assert await connection.fetchval(CHARGES) == 2
    assert await connection.fetchval(KEYS) == 0
    # Of each key five more may go.
    assert len(await claim(connection, 40)) == 10
    assert await connection.fetchval(CHARGES) == 0
    assert await connection.fetchval(KEYS) == 2
    assert await claim(connection, 1) == []
    await rewind(connection, 61)
    assert len(await claim(connection, 40)) == 2


@pytest.mark.parametrize(("seconds", "left"), [(61, 3), (181, 5), (600, 6), (36_000, 6)])
async def test_tokens_over_the_burst_are_lost_between_two_charges(
    connection: Connection, seconds: int, left: int
) -> None:
    await limited_keys(connection)
    assert len(await claim(connection, 8)) == 8
    await rewind(connection, seconds)
    assert len(await claim(connection, 8)) == 8
    assert await connection.fetchval(CHARGES) == 2
    assert len(await claim(connection, 40)) == 2 * left


async def test_a_bucket_pays_all_charges_before_it_is_deleted(
    connection: Connection,
) -> None:
    await limited_keys(connection)
    assert len(await claim(connection, 40)) == 20
    await rewind(connection, 8 * 60 + 1)
    assert len(await claim(connection, 8)) == 8
    assert await connection.fetchval(CHARGES) == 1
    # By now the bucket would be full again but for those four.
    await rewind(connection, 3 * 60)
    assert await connection.fetchval("select notifyq.sweep_limit_keys(100)") == 0
    assert await connection.fetchval(CHARGES) == 0
    assert len(await claim(connection, 40)) == 2 * 7


async def test_a_lowered_rate_counts_earlier_messages(connection: Connection) -> None:
    await limited_keys(connection)
    assert len(await claim(connection, 12)) == 12
    assert await connection.fetchval(CHARGES) == 1
    await value(connection, "alter_queue", name="q", key_rate=30, key_rate_burst=5)
    # The six have taken six minutes, which is three tokens now.
    assert len(await claim(connection, 40)) == 2 * 2


async def test_many_charges_are_paid_though_no_key_is_near_its_rate(connection: Connection) -> None:
    await limited(connection, key_rate=1000, key_rate_burst=100_000)
    await connection.execute(
        "insert into messages.message (queue, key, message) "
        "select 'q', 'key ' || i, '1' from generate_series(1, 12000) as i"
    )
    assert len(await claim(connection, 9000)) == 9000
    assert await connection.fetchval(CHARGES) == 1
    assert len(await claim(connection, 9000)) == 3000
    assert await connection.fetchval(CHARGES) == 0


async def test_a_dropped_queue_leaves_nothing(connection: Connection) -> None:
    await limited(connection, fair=True, concurrency=2, capacity=10)
    await value(connection, "set_share", queue="q", key="a", weight=2.0)
    await put(connection, *"ab")
    await claim(connection)
    assert await value(connection, "drop_queue", name="q", force=True) == 2
    assert not await connection.fetchval("select 1 from pg_trigger where tgname = 'capacity'")
    for table in ("limit_turn", "limit_state", "limit_key", "limit_charge", "limit_room"):
        assert not await connection.fetchval(f"select count(*) from notifyq.{table}")
    assert not await connection.fetchval("select count(*) from messages.share")


async def test_a_token_is_not_lost_to_rounding(connection: Connection) -> None:
    """One of seven a minute is paid as 8.571429 s, which is a little more than it costs."""
    count = "select notifyq.count_tokens(notifyq.pay_tokens(t, t, 1, 7, p), t, 7, p, 3)"
    one = "from (values (timestamptz '2030-01-01 UTC', interval '1 minute')) as u (t, p)"
    assert await connection.fetchval(f"{count} {one}") == 2


async def test_the_claim_that_finds_a_queue_full_notifies_once(
    connection: Connection, notifications: Notifications
) -> None:
    await limited(connection, concurrency=1)
    await put(connection, None, None)
    await claim(connection)
    await notifications.received()
    await connection.execute("update notifyq.limit_turn set is_blocked = false, blocked_at = now()")
    for expected in (["q"], []):
        assert await claim(connection) == []
        assert [it.queue for it in await notifications.received()] == expected
