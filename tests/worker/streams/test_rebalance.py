"""Workers that share the members of a subscription: each holds some, also one that comes later."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from notifyq import App
from notifyq.database import advisory_locks
from notifyq.telemetry import BatchFinished, SubscriptionLeft, SubscriptionTaken
from notifyq.worker.streams.member import Member
from notifyq.worker.streams.rebalance import Rebalancer
from support.database import Connect, until
from support.running import Events, working

MEMBERS = 4


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers try and count more often."""
    monkeypatch.setattr("notifyq.worker.streams.assignment._TRY_EVERY", 0.1)
    monkeypatch.setattr("notifyq.worker.streams.rebalance._COUNT_EVERY", 0.3)
    monkeypatch.setattr("notifyq.worker.streams.rebalance._YIELD", 0.4)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[Rebalancer]:
    """Give how often each worker has counted the slots of the others."""
    counts: Counter[Rebalancer] = Counter()
    surplus = Rebalancer.surplus

    async def counted(rebalancer: Rebalancer) -> Member | None:
        member = await surplus(rebalancer)
        # A turn that is not due leaves the time of the next count as it is.
        if seen.get(rebalancer) != rebalancer.next_count:
            seen[rebalancer] = rebalancer.next_count
            counts[rebalancer] += 1
        return member

    seen: dict[Rebalancer, float] = {}
    monkeypatch.setattr(Rebalancer, "surplus", counted)
    return counts


async def until_counted(counts: Counter[Rebalancer], workers: int) -> None:
    """Wait until each of so many workers has counted four times more."""
    before = Counter(counts)
    await until(
        lambda: sum(number >= 4 for number in (counts - before).values()) >= workers,
        "each worker has counted the slots",
        30,
    )


@pytest.fixture
async def apps(database: str) -> AsyncIterator[list[App]]:
    """Give three apps whose subscribers share one subscription."""
    apps = [App(database) for _ in range(3)]
    for app in apps:

        @app.subscriber("s", "shared", members=MEMBERS, quantity=1)
        async def handle(_event: int) -> None:
            return

    await apps[0].streams.create("s")
    yield apps
    for app in apps:
        await app.close()


def held(events: Events) -> int:
    return len(events.of(SubscriptionTaken)) - len(events.of(SubscriptionLeft))


async def until_held(*expected: tuple[Events, int]) -> None:
    await until(
        lambda: all(held(events) == slots for events, slots in expected),
        f"workers have {[slots for _, slots in expected]} slots",
        20,
    )


async def test_a_new_worker_gets_slots_and_the_others_get_them_back_later(apps: list[App]) -> None:
    first, second, third = Events(), Events(), Events()
    async with working(apps[0], first):
        await until_held((first, 4))
        async with working(apps[1], second):
            await until_held((first, 2), (second, 2))
            async with working(apps[2], third):
                await third.wait(SubscriptionTaken)
            await until_held((first, 2), (second, 2), (third, 0))
        await until_held((first, 4))
        await apps[0].publish_many("s", list(range(20)))
        await first.wait(BatchFinished, 20)


async def test_even_assignments_stay_as_they_are(
    apps: list[App], counts: Counter[Rebalancer]
) -> None:
    first, second, third = Events(), Events(), Events()
    everybody = (first, second, third)
    async with working(apps[0], first), working(apps[1], second), working(apps[2], third):
        await until(
            lambda: sorted(map(held, everybody)) == [1, 1, 2],
            "nobody has two more than another",
            20,
        )
        before = [len(events.of(SubscriptionLeft)) for events in everybody]
        await until_counted(counts, 3)
        assert [len(events.of(SubscriptionLeft)) for events in everybody] == before


async def test_workers_with_different_numbers_of_members_keep_their_slots(
    database: str, counts: Counter[Rebalancer]
) -> None:
    """As during a deployment: a worker that knows two members sees the slots of one with four."""
    apps = [App(database) for _ in range(2)]
    for app, members in zip(apps, (2, 4), strict=True):

        @app.subscriber("s", "shared", members=members)
        async def handle(_event: int) -> None:
            return

    await apps[0].streams.create("s")
    old, new = Events(), Events()
    async with working(apps[0], old):
        await until_held((old, 2))
        async with working(apps[1], new):
            await until_held((old, 2), (new, 2))
            before = len(old.of(SubscriptionLeft)) + len(new.of(SubscriptionLeft))
            await until_counted(counts, 2)
            assert len(old.of(SubscriptionLeft)) + len(new.of(SubscriptionLeft)) == before
    for app in apps:
        await app.close()


async def test_the_free_one_of_many_slots_is_found_at_once(
    database: str, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.worker.streams.assignment._TRY_EVERY", 60)
    app = App(database)

    @app.subscriber("s", "shared", members=64)
    async def handle(_event: int) -> None:
        return

    await app.streams.create("s")
    names = [f"1:s:shared:{number}" for number in range(1, 65) if number != 40]
    assert all(await (await connect()).fetchval(advisory_locks.LEAD, names))
    events = Events()
    async with working(app, events):
        assert [it.member for it in await events.wait(SubscriptionTaken, seconds=10)] == [40]
    await app.close()


async def test_a_surplus_slot_is_left_when_its_batch_is_done(
    database: str, counts: Counter[Rebalancer]
) -> None:
    is_held = asyncio.Event()
    app, other = App(database), App(database)

    @app.subscriber("s", "shared", members=2, quantity=1)
    async def handle(_event: int) -> None:
        await is_held.wait()

    @other.subscriber("s", "shared", members=2, quantity=1)
    async def note(_event: int) -> None:
        return

    await app.streams.create("s")
    first, second = Events(), Events()
    async with working(app, first):
        await until_held((first, 2))
        await app.publish_many("s", [1, 2])

        async def are_open() -> bool:
            info = await app.streams.subscriptions("s", "shared")
            return info[0].members == 2

        await until(are_open, "both members have a batch")
        async with working(other, second):
            await until_counted(counts, 1)
            assert (held(first), held(second)) == (2, 0)
            is_held.set()
            await until_held((first, 1), (second, 1))
        assert len(first.of(BatchFinished)) == 2
        assert len(first.of(SubscriptionLeft)) == 1  # it was not taken back at once
    await app.close()
    await other.close()


async def test_slots_that_no_worker_takes_are_left_more_and_more_rarely(
    apps: list[App], connect: Connect
) -> None:
    stuck = await connect()
    name = "1:s:shared:0"
    events = Events()
    began = time.monotonic()
    async with working(apps[0], events):
        await until_held((events, 4))
        await stuck.fetchval(
            "select pg_advisory_lock_shared(hashtextextended($1, 7305427006))::text", name
        )
        left = await events.wait(SubscriptionLeft, 3)
        # After 0.3 s at least, then twice that, and so on.
        assert time.monotonic() - began > 0.8 * (0.6 + 1.2)
        assert len(left) == 3
        await until_held((events, 4))


async def test_a_new_worker_does_not_wait_for_the_backoff_that_a_stuck_one_caused(
    apps: list[App], connect: Connect, counts: Counter[Rebalancer]
) -> None:
    stuck = await connect()
    first, second = Events(), Events()
    async with working(apps[0], first) as worker:
        await until_held((first, 4))
        await stuck.fetchval(
            "select pg_advisory_lock_shared(hashtextextended($1, 7305427006))::text", "1:s:shared:0"
        )
        await first.wait(SubscriptionLeft)
        [rebalancer] = worker._consumers[0]._members._rebalancers.values()
        rebalancer._leave_in = 150  # as after many unsuccessful tries
        await until_held((first, 4))
        await until_counted(counts, 1)
        assert held(first) == 4
        await stuck.close()
        async with working(apps[1], second):
            await until_held((first, 2), (second, 2))
