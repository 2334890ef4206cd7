"""Subscribers in a worker: each event once, in order, retried, given up, and served by one."""

import asyncio
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from cli.programs import Running
from notifyq import (
    App,
    Batch,
    ConfigurationError,
    Event,
    Message,
    Reject,
    Retry,
    Subscription,
    Transaction,
)
from notifyq.telemetry import (
    BatchDropped,
    BatchFinished,
    EventRetried,
    ListenerLost,
    SubscriptionLeft,
    SubscriptionTaken,
)
from notifyq.worker.streams.assignment import Assignment
from notifyq.worker.streams.member import Member
from support.database import Connection, rows, until
from support.running import Events, working
from worker.test_faults import end_sessions


class Order(BaseModel):
    n: int


@asynccontextmanager
async def subscribed(app: App, events: Events, **settings: Any) -> AsyncIterator[None]:
    """Run a worker that serves all subscriptions of its app."""
    members = sum(it.members for it in app.registry.subscribers())
    async with working(app, events, **settings):
        await events.wait(SubscriptionTaken, min(members, len(app.registry.subscribers())))
        yield


async def finished(events: Events, quantity: int) -> None:
    """Wait until so many events have succeeded or are dead."""

    async def is_finished() -> bool:
        done = events.of(BatchFinished)
        return sum(it.events + it.failed for it in done) >= quantity

    await until(is_finished, f"{quantity} events are finished", 20)


async def publish_all(app: App, numbers: range, **options: Any) -> list[int]:
    return [*await app.publish_many("s", [{"n": n} for n in numbers], **options)]


async def test_every_subscriber_gets_every_event_and_the_notification_wakes_it(
    app: App, events: Events
) -> None:
    seen: list[int] = []
    texts: list[tuple[int, str | None, dict[str, Any], int]] = []

    @app.subscriber("s", "typed")
    async def typed(order: Order) -> None:
        seen.append(order.n)

    @app.subscriber("s", "sync")
    def sync(event: Event) -> None:
        texts.append((event.payload()["n"], event.key, event.headers, event.attempts))

    async with subscribed(app, events):
        assert len(events.of(SubscriptionTaken)) == 2
        await app.publish("s", Order(n=1), key="k", headers={"h": 1})
        await finished(events, 2)
        await typed.publish(Order(n=2))
        await finished(events, 4)
    assert seen == [1, 2]
    assert texts == [(1, "k", {"h": 1}, 1), (2, None, {}, 1)]
    assert len(events.of(SubscriptionLeft)) == 2
    assert await app.streams.info("s")


async def test_events_are_handled_in_order_and_in_batches(app: App, events: Events) -> None:
    lists: list[list[int]] = []

    @app.subscriber("s", "all", batch=7, position="start")
    async def handle(orders: list[Order], whole: list[Event], batch: Batch) -> None:
        assert [event.id for event in whole] == sorted(event.id for event in whole)
        assert [event.id for event in batch.events] == [event.id for event in whole]
        lists.append([order.n for order in orders])

    await app.create_subscriptions()
    await publish_all(app, range(20))
    async with subscribed(app, events):
        await finished(events, 20)
    assert [n for some in lists for n in some] == list(range(20))
    assert max(map(len, lists)) == 7


async def test_what_fails_comes_again_alone_and_then_is_dead(app: App, events: Events) -> None:
    tries: list[tuple[int, int]] = []

    @app.subscriber("s", "picky", max_attempts=2, backoff=0)
    async def handle(order: Order, event: Event) -> None:
        tries.append((order.n, event.attempts))
        if order.n == 1 and event.attempts == 1:
            raise Retry("later")
        if order.n == 2:
            raise ValueError("never")
        if order.n == 3:
            raise Reject("no such order")

    async with subscribed(app, events):
        await app.publish_many("s", [{"n": n} for n in range(5)] + ["no order"])
        await finished(events, 6)
    assert tries == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2)]
    reasons = [it.details.splitlines()[0] for it in events.of(EventRetried)]
    assert reasons == ["later", "ValueError: never"]
    dead = {it.message: f"{it.status} {it.details}" for it in await app.archive.dead()}
    assert dead.pop('{"n": 2}').startswith("failed ValueError: never")
    assert dead.pop('{"n": 3}') == "rejected no such order"
    assert re.match("rejected .* not valid", dead.pop('"no order"'))
    assert not dead
    [info] = await app.streams.subscriptions("s", "picky")
    assert (info.retries, info.dead) == (0, 3)


async def test_a_batch_may_name_an_outcome_for_each(app: App, events: Events) -> None:
    calls: list[list[int]] = []

    @app.subscriber("s", "b", batch=10, max_attempts=2, backoff=0)
    async def handle(orders: list[Order], batch: Batch) -> list[Exception | None] | None:
        calls.append([order.n for order in orders])
        if len(calls) == 2:
            await batch.fail(batch.events[0], "by hand")
            return None
        return [ValueError("odd") if order.n % 2 else None for order in orders]

    await app.create_subscriptions()
    await publish_all(app, range(4))
    async with subscribed(app, events):
        await finished(events, 4)
    assert calls == [[0, 1, 2, 3], [1, 3]]
    assert [(it.message, it.details) for it in await app.archive.dead()] == [
        ('{"n": 1}', "by hand")
    ]


async def test_ordered_an_event_that_fails_holds_up_its_key_only(app: App, events: Events) -> None:
    order: list[tuple[str | None, int, int]] = []

    @app.subscriber("s", "o", ordered=True, concurrency=2, max_attempts=3, backoff=0)
    async def handle(it: Order, event: Event) -> None:
        order.append((event.key, it.n, event.attempts))
        if it.n == 0 and event.attempts < 3:
            raise ValueError
        if it.n == 3:
            raise ValueError

    await app.create_subscriptions()
    for n, key in enumerate("aabbb"):
        await app.publish("s", {"n": n}, key=key)
    async with subscribed(app, events):
        await finished(events, 5)
    assert [it[1:] for it in order if it[0] == "a"] == [(0, 1), (0, 2), (0, 3), (1, 1)]
    assert [it[1:] for it in order if it[0] == "b"] == [(2, 1), (3, 1), (3, 2), (3, 3), (4, 1)]
    assert await app.archive.dead_count() == 1


Outcome = Callable[[Event], Exception | None]


def one_by_one(outcome_of: Outcome) -> Any:
    async def handle(event: Event) -> None:
        if outcome := outcome_of(event):
            raise outcome

    return handle


def together(outcome_of: Outcome) -> Any:
    async def handle(events: list[Event]) -> list[Exception | None]:
        return [outcome_of(event) for event in events]

    return handle


@pytest.mark.parametrize(("function", "options"), [(one_by_one, {}), (together, {"batch": 5})])
async def test_ordered_a_key_that_waits_long_does_not_hold_up_other_keys(
    app: App, events: Events, function: Callable[[Outcome], Any], options: dict[str, Any]
) -> None:
    tries = Counter[int]()
    done: set[int] = set()
    others_are_done = asyncio.Event()

    def outcome_of(event: Event) -> Exception | None:
        n = event.payload()["n"]
        tries[n] += 1
        if n == 0:
            return Retry("much later", after=3600)
        if n == 1 and event.attempts < 3:
            return ValueError()
        done.add(n)
        if done == {1, 2}:
            others_are_done.set()
        return None

    app.subscriber("s", "o", ordered=True, backoff=0, **options)(function(outcome_of))
    await app.create_subscriptions()
    for n, key in enumerate("abb"):
        await app.publish("s", {"n": n}, key=key)
    async with subscribed(app, events, grace=0):
        async with asyncio.timeout(20):
            await others_are_done.wait()
    assert tries == {0: 1, 1: 3, 2: 1}


async def test_concurrency_and_a_timeout(app: App, events: Events) -> None:
    running: list[int] = []
    most = 0
    together = asyncio.Event()

    @app.subscriber("s", "c", concurrency=3, timeout=0.2, max_attempts=1)
    async def handle(order: Order) -> None:
        nonlocal most
        running.append(order.n)
        most = max(most, len(running))
        if len(running) == 3:
            together.set()
        await together.wait()
        if order.n == 5:
            await asyncio.Event().wait()
        running.remove(order.n)

    await app.create_subscriptions()
    await publish_all(app, range(6))
    async with subscribed(app, events):
        await finished(events, 6)
    assert most == 3
    [dead] = await app.archive.dead()
    assert "longer than its timeout" in (dead.details or "")


async def test_a_transaction_has_the_effects_and_the_end_of_the_batch(
    app: App, events: Events, connection: Connection
) -> None:
    await connection.execute("""
      create table effect (n integer, constraint once unique (n) deferrable initially deferred)
    """)
    tries: list[int] = []

    @app.subscriber("s", "t", transactional=True, max_attempts=2, backoff=0)
    async def handle(order: Order, transaction: Transaction) -> None:
        tries.append(order.n)
        await transaction.execute("insert into public.effect values ($1)", order.n)
        if order.n == 1 and tries.count(1) == 1:
            raise ValueError("after its write")
        if order.n == 2:
            await transaction.execute("select 1 / 0")

    await app.create_subscriptions()
    await publish_all(app, range(4))
    async with subscribed(app, events):
        await finished(events, 4)
        found = await connection.fetch("select n from effect order by n")
        assert [row["n"] for row in found] == [0, 1, 3]
        # A constraint that is checked at the commit: it is the failure of all.
        await app.publish("s", {"n": 3})
        await finished(events, 5)
    assert await app.archive.dead_count() == 2
    assert await connection.fetchval("select count(*) from effect") == 3


async def test_a_worker_that_stops_finishes_its_batch(app: App, events: Events) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    seen: list[int] = []

    @app.subscriber("s", "slow")
    async def handle(order: Order) -> None:
        began.set()
        await go_on.wait()
        seen.append(order.n)

    await app.create_subscriptions()
    await publish_all(app, range(3))
    async with working(app, events):
        await began.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
    assert seen == [0, 1, 2]
    [info] = await app.streams.subscriptions("s", "slow")
    assert info.pending == 0
    assert info.current_batch is None


async def test_a_batch_that_is_cancelled_at_a_stop_comes_again(app: App, events: Events) -> None:
    began = asyncio.Event()
    seen: list[tuple[int, int]] = []

    @app.subscriber("s", "stuck", max_attempts=1)
    async def handle(order: Order, event: Event) -> None:
        seen.append((order.n, event.attempts))
        if len(seen) == 2:
            began.set()
            await asyncio.Event().wait()

    await app.create_subscriptions()
    await publish_all(app, range(3))
    async with working(app, events, grace=0):
        await began.wait()
    assert len(events.of(BatchDropped)) == 1
    async with subscribed(app, events):
        await finished(events, 3)
    assert seen == [(0, 1), (1, 1), (0, 1), (1, 1), (2, 1)]
    assert await app.archive.dead_count() == 0


async def test_one_worker_serves_and_another_one_takes_over(
    database: str, events: Events, connection: Connection
) -> None:
    seen: list[tuple[str, int]] = []

    def serving(name: str) -> App:
        app = App(database)

        @app.subscriber("s", "one")
        async def handle(order: Order) -> None:
            seen.append((name, order.n))

        return app

    first, second = serving("first"), serving("second")
    others = Events()
    async with working(second, others):
        await others.wait(SubscriptionTaken)
        async with working(first, events):
            await publish_all(second, range(5))
            await finished(others, 5)
            assert not events.of(SubscriptionTaken)
            # Its listening session holds the slot, which ends with it.
            await end_sessions(connection, "notifyq worker")
            await asyncio.wait(
                [
                    asyncio.create_task(events.wait(ListenerLost)),
                    asyncio.create_task(others.wait(ListenerLost)),
                ]
            )
            await publish_all(second, range(5, 10))
            await until(lambda: len(seen) >= 10, "ten events are handled")
        await first.close()
    await second.close()
    assert [n for _, n in seen] == list(range(10))


class SlowPoll:
    """Delays the next poll of a subscriber, on its way to the server or back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_answered: bool) -> None:
        self.is_under_way, self.go_on = asyncio.Event(), asyncio.Event()
        at_once = Subscription.next_batch

        async def next_batch(subscription: Subscription, *args: Any) -> Batch | None:
            if self.is_under_way.is_set():
                return await at_once(subscription, *args)
            if not is_answered:
                self.is_under_way.set()
                await self.go_on.wait()
            batch = await at_once(subscription, *args)
            if batch is not None:
                self.is_under_way.set()
                await self.go_on.wait()
            return batch

        monkeypatch.setattr(Subscription, "next_batch", next_batch)


@pytest.mark.parametrize("is_answered", [False, True], ids=["to the server", "back"])
async def test_a_slot_that_is_lost_during_a_poll_is_not_served(
    database: str,
    events: Events,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    is_answered: bool,
) -> None:
    seen: list[tuple[str, int]] = []
    began, go_on = asyncio.Event(), asyncio.Event()

    def serving(name: str) -> App:
        app = App(database)

        @app.subscriber("s", "one")
        async def handle(order: Order) -> None:
            seen.append((name, order.n))
            if name == "first":
                began.set()
                await go_on.wait()

        return app

    others = Events()
    async with serving("first") as first, serving("second") as second, working(second, others):
        await others.wait(SubscriptionTaken)
        async with working(first, events):
            slow = SlowPoll(monkeypatch, is_answered=is_answered)
            await publish_all(second, range(5))
            await slow.is_under_way.wait()
            await end_sessions(connection, "notifyq worker")
            # The second one, in the middle of its poll, cannot try for its slot.
            await events.wait(SubscriptionTaken)
            await began.wait()
            slow.go_on.set()
            await others.wait(SubscriptionLeft)
            go_on.set()
            await finished(events, 5)
    assert seen == [("first", n) for n in range(5)]


async def test_a_stop_during_a_poll_is_no_attempt(
    app: App, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []

    @app.subscriber("s", "once", max_attempts=1)
    async def handle(order: Order, event: Event) -> None:
        seen.append((order.n, event.attempts))

    await app.create_subscriptions()
    slow = SlowPoll(monkeypatch, is_answered=True)
    await publish_all(app, range(1))
    worker = app.worker(telemetry=Events(), poll=60)
    task = asyncio.create_task(app.work(worker))
    await slow.is_under_way.wait()
    worker.stop()
    asyncio.get_running_loop().call_soon(slow.go_on.set)
    await task
    assert not seen
    async with subscribed(app, events):
        await finished(events, 1)
    assert seen == [(0, 1)]
    assert await app.archive.dead_count() == 0


async def publish_singly(database: str, quantity: int) -> None:
    async with App(database) as app:
        for n in range(quantity):
            await app.publish("s", {"n": n})


async def test_under_load_no_event_waits_for_the_poll(database: str) -> None:
    """Each of two workers may suppress the stream, also for the other worker."""
    seen = {0: 0, 1: 0}

    def serving(number: int) -> App:
        app = App(database)

        @app.subscriber("s", f"reader {number}")
        async def handle(order: Order) -> None:
            seen[number] += 1

        return app

    apps, events = [serving(0), serving(1)], [Events(), Events()]
    async with working(apps[0], events[0]), working(apps[1], events[1]):
        await asyncio.gather(*(it.wait(SubscriptionTaken) for it in events))
        for quantity in (60, 1, 20):
            await asyncio.gather(*(publish_singly(database, quantity) for _ in range(6)))
        await until(lambda: seen == {0: 6 * 81, 1: 6 * 81}, "each reader has each event", 20)
    await asyncio.gather(*(app.close() for app in apps))


async def test_a_busy_member_does_not_poll_for_retries(
    app: App, events: Events, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worker would query the server all the time while its batch runs."""
    turns = 0
    while_busy: list[int] = []
    members: list[Member] = []
    take = Assignment.take

    async def counted(assignment: Assignment) -> Any:
        nonlocal turns
        turns += 1
        members[:] = assignment
        return await take(assignment)

    monkeypatch.setattr(Assignment, "take", counted)

    @app.subscriber("s", "busy")
    async def handle(_: Order) -> None:
        members[0].due_at = time.monotonic()  # as for an event that was to be retried
        before = turns
        await connection.execute("select pg_notify('new_event', 's')")
        await until(lambda: turns > before, "the worker has taken the notification")
        for _query in range(100):
            await connection.execute("select 1")
        while_busy.append(turns - before)

    await app.create_subscriptions()
    await publish_all(app, range(1))
    async with working(app, events):
        await finished(events, 1)
    assert while_busy[0] < 20


async def test_members_have_batches_of_their_own(app: App, events: Events) -> None:
    together = asyncio.Event()
    running = 0
    seen: list[int] = []

    @app.subscriber("s", "m", members=2, quantity=5)
    async def handle(order: Order) -> None:
        nonlocal running
        running += 1
        if running == 2:
            together.set()
        await together.wait()
        seen.append(order.n)
        running -= 1

    await app.create_subscriptions()
    await publish_all(app, range(10))
    async with working(app, events):
        await finished(events, 10)
    assert sorted(seen) == list(range(10))
    assert {it.member for it in events.of(SubscriptionTaken)} == {1, 2}


async def test_subscribers_and_handlers_share_resources_and_middleware(
    app: App, events: Events
) -> None:
    seen: list[str] = []

    class Notes(list[str]):
        pass

    @app.resource
    def notes() -> Notes:
        return Notes()

    @app.middleware
    async def around(message: Message | Event, call: Any) -> Any:
        seen.append(f"{type(message).__name__} {message.queue}")
        return await call()

    @app.handler("q")
    async def handle(payload: int, notes: Notes) -> None:
        notes.append("m")

    @app.subscriber("s", "n")
    async def read(payload: int, notes: Notes) -> None:
        notes.append("e")

    async with subscribed(app, events):
        await app.publish("s", 1)
        await finished(events, 1)
        await (await app.publish("q", 1)).result(timeout=10)
    assert seen == ["Event s", "Message q"]


async def test_a_worker_may_serve_some_streams_only(app: App, events: Events) -> None:
    app.handler("q")(lambda: None)
    app.subscriber("s", "one")(lambda: None)
    app.subscriber("other", "one")(lambda: None)
    async with working(app, events, streams=["s"]) as worker:
        assert worker.queues == ()
        await events.wait(SubscriptionTaken)
        await app.publish("s", 1)
        await finished(events, 1)
    assert {it.stream for it in events.of(SubscriptionTaken)} == {"s"}
    with pytest.raises(ConfigurationError, match="there are subscribers of other, s"):
        app.worker(streams=["nope"])
    assert app.worker(queues=["q"]).streams == ()


async def test_a_subscription_that_is_dropped_is_served_again_when_it_is_back(
    app: App, events: Events
) -> None:
    app.subscriber("s", "one")(lambda: None)
    async with subscribed(app, events, poll=0.05):
        await app.streams.unsubscribe("s", "one")
        await app.publish("s", 1)
        await app.streams.subscribe("s", "one", "start")
        await finished(events, 1)


async def test_without_notifications_polling_finds_events_and_one_worker_serves(
    database: str, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> bool:
        return False

    monkeypatch.setattr("notifyq.notify.session.Session.delivers", lost)
    seen: list[int] = []
    apps = [App(database), App(database)]
    for app in apps:

        @app.subscriber("s", "one")
        async def handle(order: Order) -> None:
            seen.append(order.n)

    others = Events()
    async with working(apps[0], events, poll=0.05):
        await events.wait(SubscriptionTaken)
        async with working(apps[1], others, poll=0.05):
            await publish_all(apps[0], range(10))
            await finished(events, 10)
            assert not others.of(SubscriptionTaken)
    async with working(apps[1], others, poll=0.05):
        await others.wait(SubscriptionTaken)
        await publish_all(apps[0], range(10, 12))
        await finished(others, 2)
    for app in apps:
        await app.close()
    assert seen == list(range(12))


async def until_read(app: App, subscriber: str) -> None:
    async def is_read() -> bool:
        [info] = await app.streams.subscriptions("s", subscriber)
        return info.pending == 0 and info.current_batch is None and info.retries == 0

    await until(is_read, "all is read", 30)


APP = """
import asyncio, os
from notifyq import App, Event, Transaction

app = App()
seen = []

@app.subscriber("s", "killed", transactional=True, quantity=20)
async def handle(n: int, transaction: Transaction) -> None:
    await transaction.execute("insert into public.effect values ($1)", n)
    seen.append(n)
    if len(seen) == int(os.environ["CRASHES_AT"]):
        os.kill(os.getpid(), 9)
"""


async def test_a_worker_that_is_killed_leaves_effects_exactly_once(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    """Two workers; the one that serves is killed in the middle of a batch, again and again."""
    await connection.execute("create table effect (n integer)")
    (tmp_path / "killed.py").write_text(APP)
    app = App(database)
    await app.streams.create("s")
    await app.streams.subscribe("s", "killed")
    await app.publish_many("s", list(range(100)))
    running = [
        Running(database, "worker", "killed:app", cwd=tmp_path, env={"CRASHES_AT": str(n)})
        for n in (5, 27)
    ]
    try:
        await until(
            lambda: all(it.process.poll() is not None for it in running),
            "both workers are killed",
            30,
        )
        assert {it.process.returncode for it in running} == {-signal.SIGKILL}
        with Running(
            database, "worker", "killed:app", cwd=tmp_path, env={"CRASHES_AT": "-1"}
        ) as last:
            await until_read(app, "killed")
            last.process.terminate()
            assert last.process.wait(20) == 0
    finally:
        for it in running:
            it.__exit__()
        await app.close()
    found = await connection.fetch("select n from effect order by n")
    assert [row["n"] for row in found] == list(range(100))


POISONED = """
import os
from notifyq import App

app = App()

@app.subscriber("s", "poisoned", quantity=10, max_attempts=2)
async def handle(n: int) -> None:
    if n == 13:
        os.kill(os.getpid(), 9)
    async with app.database.connection() as connection:
        await connection.execute("insert into public.effect values ($1)", n)
"""


async def test_an_event_that_kills_its_worker_is_dead_and_the_rest_gets_through(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    await connection.execute("create table effect (n integer)")
    (tmp_path / "poisoned.py").write_text(POISONED)
    app = App(database)
    await app.streams.create("s")
    await app.streams.subscribe("s", "poisoned")
    ids = [int(it) for it in await app.publish_many("s", list(range(30)))]
    for _ in range(2):
        with Running(database, "worker", "poisoned:app", cwd=tmp_path) as killed:
            assert killed.process.wait(30) == -signal.SIGKILL
    with Running(database, "worker", "poisoned:app", cwd=tmp_path) as last:
        await until_read(app, "poisoned")
        last.process.terminate()
        assert last.process.wait(20) == 0
    [dead] = await rows(connection, "dead_list", queue="s")
    assert (dead["event_id"], dead["attempts"]) == (ids[13], 2)
    assert dead["details"] == "delivered 2 times, and its reader was gone before the end"
    found = await connection.fetch("select distinct n from effect order by n")
    assert [row["n"] for row in found] == [n for n in range(30) if n != 13]
    await app.close()


async def test_under_load_batches_are_some_time_apart(
    app: App, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[tuple[int, float]] = []
    numbers: list[int] = []
    opened = Member.opened

    def noted(member: Member) -> None:
        opened(member)
        batches.append((member._in_a_row, member._opened_at))

    monkeypatch.setattr(Member, "opened", noted)

    @app.subscriber("s", "calm", batch=1000, rest=0.2)
    async def handle(orders: list[Order]) -> None:
        numbers.extend(order.n for order in orders)

    published = 0
    async with subscribed(app, events):
        while len(batches) < 8:
            await app.publish("s", Order(n=published))
            published += 1
        # No notification arrives for events during its rest, and none of them is left behind.
        await finished(events, published)
    assert numbers == [*range(published)]
    rests = [later - at for (in_a_row, at), (_, later) in pairwise(batches) if in_a_row >= 5]
    assert len(rests) >= 2
    assert min(rests) >= 0.2


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_attempts": 0}, "max_attempts must be between 1 and 1000, not 0"),
        ({"rest": -1}, "rest must be between 0, which turns it off, and 60 seconds, not -1"),
        ({"batch": 0}, "batch must be between 1 and 10000, not 0"),
        ({"batch": 5, "concurrency": 2}, "leave concurrency and quantity out"),
        ({"ordered": True, "members": 2}, "cannot be ordered with several members"),
        ({"transactional": True}, "it must be an async function"),
        ({"retries": 1}, "a subscriber has no option 'retries'"),
        ({"position_": 1}, "did you mean 'position'"),
        ({"policy": {}}, "policy must be a notifyq.StreamPolicy"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        App().subscriber("s", "x", **options)(lambda: None)


def test_signatures_that_make_no_sense() -> None:
    app = App()

    def whole(batch: Batch) -> None: ...
    def one(event: Event) -> None: ...
    async def both(transaction: Transaction) -> None: ...

    with pytest.raises(ConfigurationError, match=r"list\[notifyq.Event\]"):
        app.subscriber("s", "x", batch=2)(one)
    with pytest.raises(ConfigurationError, match="cannot be transactional with a concurrency"):
        app.subscriber("s", "x", transactional=True, concurrency=2)(both)
    with pytest.raises(ConfigurationError, match="register it with transactional=True"):
        app.subscriber("s", "x")(both)
    app.subscriber("s", "x", batch=2)(whole)
    with pytest.raises(ConfigurationError, match="has the subscriber 'x' already"):
        app.subscriber("s", "x")(one)
