"""What a worker does with messages while nothing goes wrong around it."""

import asyncio
import itertools
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from notifyq import App, ConfigurationError, Message, Policy, Retry
from notifyq.telemetry import (
    HandlerStuck,
    MessageFinished,
    MessagesClaimed,
    TelemetryEvent,
    WorkerStarted,
)
from support.database import Connection, rows, until, until_equal, value
from support.running import Events, doubles, statuses, working

DAY = timedelta(days=1)


class Invoice(BaseModel):
    order_id: int


async def archive_row(connection: Connection, message_id: int) -> dict[str, Any]:
    row = await connection.fetchrow(
        "select * from messages.message_archive where id = $1", message_id
    )
    assert row is not None
    return dict(row)


async def test_sync_and_async_handlers_get_payload_and_message(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("sync")
    def sync(invoice: Invoice, message: Message) -> dict[str, Any]:
        return {
            "order": invoice.order_id,
            "in": message.queue,
            "by": threading.current_thread().name,
        }

    @app.handler("async")
    async def later(invoice: Invoice, *, message: Message) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"order": invoice.order_id, "in": message.queue, "attempts": message.attempts}

    async with working(app, events):
        first = await sync.publish(Invoice(order_id=1))
        second = await later.publish(Invoice(order_id=2))
        await events.wait(MessageFinished, 2)
    assert (await archive_row(connection, first))["result"] == {
        "order": 1,
        "in": "sync",
        "by": "notifyq-handler",
    }
    row = await archive_row(connection, second)
    assert row["result"] == {"order": 2, "in": "async", "attempts": 1}
    assert row["handled_by"]


async def test_retry_comes_back_after_its_own_delay(
    app: App, events: Events, connection: Connection
) -> None:
    started = []

    @app.handler("q", max_attempts=2, backoff=3600, backoff_max=3600)
    def handle(message: Message) -> int:
        started.append(time.monotonic())
        if message.attempts == 1:
            raise Retry("busy", after=0.3)
        return message.attempts

    async with working(app, events, poll=0.05):
        message_id = await app.publish("q", None)
        await events.wait(MessageFinished, status="success")
    assert started[1] - started[0] > 0.25
    assert (await archive_row(connection, message_id))["result"] == 2


async def test_retry_on_the_last_attempt_is_a_failure_with_its_reason(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q")
    def handle() -> None:
        raise Retry("busy", after=3600)

    async with working(app, events):
        message_id = await app.publish("q", None)
        await events.wait(MessageFinished)
    row = await archive_row(connection, message_id)
    assert (row["status"], row["details"], row["attempts"]) == ("failed", "busy", 1)


@pytest.mark.parametrize("after", [timedelta.max, timedelta(days=400_000_000), "soon"])
async def test_a_delay_that_cannot_be_stored_falls_back_to_the_backoff(
    app: App, events: Events, connection: Connection, after: Any
) -> None:
    @app.handler("q", max_attempts=2, backoff=0)
    def handle(n: int, message: Message) -> int:
        if n == 0 and message.attempts == 1:
            raise Retry("busy", after=after)
        return message.attempts

    async with working(app, events):
        message_id = await app.publish("q", 0)
        mates = await app.publish_many("q", [1, 2, 3])
        await events.wait(MessageFinished, 4, status="success")
    assert (await archive_row(connection, message_id))["result"] == 2
    assert await statuses(connection) == {"success": 1 + len(mates)}


async def test_a_failing_message_is_tried_with_growing_delays_up_to_max_attempts(
    app: App, events: Events, connection: Connection
) -> None:
    started = []

    @app.handler("q", max_attempts=4, backoff=0.1, backoff_max=10)
    def handle() -> None:
        started.append(time.monotonic())
        raise ValueError(f"attempt {len(started)}")

    async with working(app, events, poll=0.02):
        message_id = await app.publish("q", None)
        await events.wait(MessageFinished, 4, status="failed")
        await until_equal(lambda: statuses(connection), {"failed": 1}, "the message is archived")
    row = await archive_row(connection, message_id)
    assert (row["attempts"], len(started)) == (4, 4)
    assert row["details"].startswith("ValueError: attempt 4\n")
    gaps = [later - earlier for earlier, later in itertools.pairwise(started)]
    # Half of each delay is random, so these are the least.
    assert all(gap >= least for gap, least in zip(gaps, (0.05, 0.1, 0.2), strict=True))


async def test_a_handler_past_its_timeout_is_stopped_and_has_failed(
    app: App, events: Events, connection: Connection
) -> None:
    let_go = threading.Event()

    @app.handler("async", timeout=0.2)
    async def later() -> None:
        await asyncio.Event().wait()

    @app.handler("sync", timeout=timedelta(milliseconds=200))
    def sync() -> None:
        let_go.wait(20)

    async with working(app, events):
        await app.publish("async", None)
        stuck = await app.publish("sync", None)
        await events.wait(MessageFinished, 2, status="failed")
        assert events.of(HandlerStuck) == [HandlerStuck(queue="sync", message_id=stuck)]
        let_go.set()
    reasons = await connection.fetch("select details from messages.message_archive")
    assert {row[0] for row in reasons} == {
        "the handler took longer than its timeout 0:00:00.200000"
    }


async def test_a_thread_that_is_stuck_keeps_its_slot(
    app: App, events: Events, claims: list[list[str]]
) -> None:
    let_go, held = threading.Event(), asyncio.Event()

    @app.handler("sync", timeout=0.1)
    def sync() -> None:
        let_go.wait(20)

    @app.handler("async")
    async def later() -> None:
        await held.wait()

    async with working(app, events, concurrency=2, poll=0.05):
        await app.publish("sync", None)
        await events.wait(MessageFinished, queue="sync")
        # One slot is a stuck thread's; async handlers share the other one.
        await app.publish_many("async", [1, 2])
        await events.wait(MessagesClaimed, 2)
        polls = len(claims)
        with pytest.raises(TimeoutError):
            await events.wait(MessagesClaimed, 3, seconds=0.3)
        assert len(claims) == polls
        let_go.set()
        await events.wait(MessagesClaimed, 3)
        held.set()
        await events.wait(MessageFinished, 2, queue="async")


async def test_a_worker_whose_threads_are_all_stuck_claims_nothing(
    app: App, events: Events, claims: list[list[str]]
) -> None:
    let_go = threading.Event()

    @app.handler("q", timeout=0.1)
    def handle() -> None:
        let_go.wait(20)

    async with working(app, events, concurrency=2, poll=0.05):
        await app.publish_many("q", range(5))
        await events.wait(HandlerStuck, 2)
        await events.wait(MessageFinished, 2)
        polls = len(claims)
        with pytest.raises(TimeoutError):
            await events.wait(MessageFinished, 3, seconds=0.3)
        assert len(claims) == polls
        let_go.set()
        await events.wait(MessageFinished, 5)


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    app.handler("other")(lambda: None)
    await app.create_queues()
    await app.admin.pause_queue("q")
    async with working(app, events):
        await app.publish("q", None)
        await app.publish("other", None)
        await events.wait(MessageFinished, queue="other")
        assert events.of(MessageFinished, queue="q") == []
        await app.admin.resume_queue("q")
        await events.wait(MessageFinished, queue="q")


async def test_a_worker_that_sleeps_wakes_when_a_pause_ends(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    message_id = await app.publish("q", None)
    for end in ({"until": datetime.now(UTC) + timedelta(hours=1)}, {"duration": 0.5}):
        assert await app.admin.pause_queue("q", **end)
    resumes_at = await connection.fetchval("select resumes_at from messages.queue where name = 'q'")
    async with working(app, events):  # polls and maintenance are a minute apart
        await events.wait(MessageFinished, queue="q")
    assert (await archive_row(connection, message_id))["locked_at"] >= resumes_at
    with pytest.raises(ConfigurationError, match="until or duration"):
        await app.admin.pause_queue("q", until=datetime.now(UTC), duration=1)


async def test_a_missing_queue_is_created_with_the_policy_of_its_handler(
    app: App, connection: Connection
) -> None:
    policy = Policy(rate=5, rate_period=60, ordered=True, max_attempts=4, concurrency=0)
    app.handler("q", lock_duration=7, max_attempts=3, backoff=5, backoff_max=50)(lambda: None)
    app.handler("limited", policy=policy, max_attempts=3, lock_duration=7)(lambda: None)
    async with working(app):
        pass
    (limited,) = await rows(connection, "queue_info", queue="limited")
    assert (limited["rate"], limited["rate_period"]) == (5, timedelta(minutes=1))
    assert (limited["ordered"], limited["fair"], limited["concurrency"]) == (True, False, None)
    assert (limited["max_attempts"], limited["lock_duration"]) == (4, timedelta(seconds=7))
    (queue,) = await rows(connection, "queue_info", queue="q")
    assert queue["lock_duration"] == timedelta(seconds=7)
    assert queue["max_attempts"] == 3
    assert (queue["backoff"], queue["backoff_max"]) == (
        timedelta(seconds=5),
        timedelta(seconds=50),
    )


async def test_the_policy_of_a_queue_that_exists_holds(
    app: App, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    await value(connection, "create_queue", name="q", max_attempts=9)
    await value(
        connection, "create_queue", name="as it is", concurrency=2, retention=timedelta(days=1)
    )
    await value(connection, "create_queue", name="other", rate=2, fair=True)
    before = await rows(connection, "queue_info", queue="q")
    app.handler("q", lock_duration=7, max_attempts=3, backoff=5)(lambda: None)
    async with working(app):
        pass
    assert await rows(connection, "queue_info", queue="q") == before

    same = Policy(concurrency=2, rate=0, fair=False, max_attempts=7, retention=86400)
    app.handler("as it is", policy=same)(lambda: None)
    app.handler("other", policy=Policy(rate=3, rate_period=1, fair=False))(lambda: None)
    assert await app.create_queues() == []
    (warning,) = caplog.messages
    assert "'other' exists and keeps its policy: rate is 2, not 3, fair is True, not" in warning


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("lock_duration", [None, 50])
async def test_all_queues_get_their_turn_beside_a_huge_backlog(
    app: App, events: Events, concurrency: int, lock_duration: float | None
) -> None:
    @app.handler("huge", lock_duration=lock_duration)
    async def huge() -> None:
        await asyncio.sleep(0.001)

    app.handler("small")(lambda: None)
    app.handler("tiny")(lambda: None)
    await app.create_queues()
    await app.publish_many("huge", range(1000))
    await app.publish_many("small", range(5))
    await app.publish_many("tiny", range(5))
    async with working(app, events, concurrency=concurrency) as worker:
        await events.wait(MessageFinished, 5, queue="small")
        await events.wait(MessageFinished, 5, queue="tiny")
        assert len(events.of(MessageFinished, queue="huge")) < 500
        worker.stop()


async def test_a_worker_for_some_queues_leaves_the_others(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("mine")(lambda: None)
    app.handler("theirs")(lambda: None)
    await app.create_queues()
    await app.publish("theirs", None)
    async with working(app, events, queues=["mine"]):
        await app.publish("mine", None)
        await events.wait(MessageFinished)
    assert await statuses(connection) == {"success": 1}
    assert events.of(WorkerStarted)[0].queues == ("mine",)


async def test_two_workers_of_one_app_share_the_messages_and_handle_each_once(
    app: App, connection: Connection
) -> None:
    handled: list[int] = []

    @app.handler("q")
    async def handle(message: Message) -> None:
        handled.append(message.id)
        await asyncio.sleep(0.005)  # or one worker is through before the other has begun

    await app.create_queues()
    first, second = Events(), Events()
    async with working(app, first, concurrency=5):
        async with working(app, second, concurrency=5):
            published = await app.publish_many("q", range(1000))
            await until(lambda: len(handled) >= 1000, "all are handled")
        # The other one goes on when this one has left.
        published += await app.publish_many("q", range(10))
        await first.wait(MessageFinished, 1010 - len(second.of(MessageFinished)))
    assert sorted(handled) == sorted(published)
    assert await statuses(connection) == {"success": 1010}
    assert min(len(first.of(MessageFinished)), len(second.of(MessageFinished))) > 50


async def test_a_worker_that_leaves_does_not_disturb_another_of_its_app(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q")
    async def handle() -> None:
        await asyncio.sleep(0.001)

    await app.create_queues()
    await app.publish_many("q", range(1000))
    async with working(app, events, concurrency=5):
        for _ in range(5):
            async with working(app, concurrency=5):
                pass

        async def is_empty() -> bool:
            return (await statuses(connection)).get("success") == 1000

        await until(is_empty, "all are handled")
    assert await doubles(connection) == 0


async def test_a_sink_that_fails_costs_events_and_no_message(
    app: App, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    await app.publish_many("q", range(10))

    class Faulty(Events):
        def __call__(self, event: TelemetryEvent) -> None:
            super().__call__(event)
            raise ValueError("the telemetry is broken")

    events = Faulty()
    async with working(app, events):
        await events.wait(MessageFinished, 10)
    assert await statuses(connection) == {"success": 10}


async def test_a_worker_runs_once(app: App) -> None:
    app.handler("q")(lambda: None)
    async with working(app) as worker:
        with pytest.raises(ConfigurationError, match="runs once"):
            await worker.run()
    with pytest.raises(ConfigurationError, match="runs once"):
        await worker.run()


BOMBS = ["[" * 5000 + "]" * 5000, "1e5000", '{"n": 1e5000}', '"x"', "null"]


async def test_bombs_in_payloads_harm_no_other_message(
    app: App, events: Events, connection: Connection
) -> None:
    @app.handler("q")
    async def handle(n: int) -> int:
        return n

    await app.create_queues()
    # As an upgrade finds them: such a message cannot be published any more.
    await connection.execute("alter table messages.message disable trigger bound")
    await connection.execute(
        "insert into messages.message (queue, message) "
        "select 'q', to_jsonb(n) from generate_series(1, 50) as n "
        "union all select 'q', b::text::jsonb from unnest($1::text[]) as b "
        "union all select 'q', to_jsonb(n) from generate_series(51, 100) as n",
        BOMBS,
    )
    async with working(app, events, concurrency=200):
        await events.wait(MessageFinished, 105)
    assert await statuses(connection) == {"success": 100, "rejected": len(BOMBS)}


async def test_bombs_in_headers_harm_no_other_message(
    app: App, events: Events, connection: Connection
) -> None:
    app.handler("q")(lambda: None)
    await app.create_queues()
    await connection.execute("alter table messages.message disable trigger bound")
    await connection.execute(
        "insert into messages.message (queue, message, headers) "
        "select 'q', 'null', case when n % 10 = 0 then b::jsonb else '{}' end "
        "from generate_series(1, 100) as n, (values ($1::text)) as v (b)",
        '{"x": 1e5000}',
    )
    async with working(app, events, concurrency=200):
        await events.wait(MessageFinished, 90)
    assert await statuses(connection) == {"success": 90, "rejected": 10}
    for dead in await app.archive.dead("q"):
        assert len(dead.headers["undecodable"]) > 5000
