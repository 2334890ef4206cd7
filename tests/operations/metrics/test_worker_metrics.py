"""The metrics of a worker after known work, and the limit of series."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from docs.pages import maker
from notifyq import App, Reject
from notifyq.operations.metrics import BrokerMetrics, RelayMetrics, WorkerMetrics, start_server
from notifyq.operations.metrics.event_metrics import EventMetrics
from notifyq.telemetry import (
    BatchFinished,
    HandlerStuck,
    ListenerConnected,
    ListenerLost,
    LockLost,
    LocksExtended,
    MaintenanceDone,
    MessageFinished,
    MessagesClaimed,
    QueueSuppressed,
    QueueUnsuppressed,
    StreamSuppressed,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
)
from operations.metrics.scrapes import Scrape, get, scrape
from support.database import Connection
from support.running import Events, working


def read(metrics: WorkerMetrics) -> Scrape:
    return Scrape(generate_latest(metrics.registry).decode())


async def test_messages_are_counted(app: App, connection: Connection, events: Events) -> None:
    tries = 0

    @app.handler("good", max_attempts=3, backoff=0)
    async def good(n: int) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("once more")

    @app.handler("bad")
    async def bad(n: int) -> None:
        raise Reject("no")

    metrics = WorkerMetrics()
    async with working(app, events, metrics=metrics):
        with start_server(metrics, port=0) as server:
            before = await asyncio.to_thread(scrape, server.url)
            assert before("notifyq_finished_total", queue="good", status="success") == 0
            # An alert on the first increase needs a zero before it.
            for name in ("claimed", "locks_lost", "handlers_stuck"):
                assert before(f"notifyq_{name}_total", queue="good") == 0
            await good.publish(1)
            await bad.publish(1)
            await events.wait(MessageFinished, queue="bad")
            await events.wait(MessageFinished, queue="good", status="success")
            seen = await asyncio.to_thread(scrape, server.url)
    assert seen("notifyq_finished_total", queue="good", status="success") == 1
    assert seen("notifyq_finished_total", queue="good", status="failed") == 1
    assert seen("notifyq_finished_total", queue="bad", status="rejected") == 1
    assert seen("notifyq_claimed_total", queue="good") == 2
    assert seen("notifyq_claimed_total", queue="bad") == 1
    assert seen("notifyq_retries_total", queue="good") == 1
    assert ("notifyq_retries_total", "bad") not in {
        (name, value) for name in seen.names for labels in seen.of(name) for _, value in labels
    }
    assert seen("notifyq_wait_seconds_count", queue="good") == 2
    assert seen("notifyq_run_seconds_count", queue="bad") == 1
    assert seen("notifyq_notifications_received_total", channel="new_message") >= 1
    assert seen("notifyq_notification_to_claim_seconds_count") >= 1
    claims = seen.of("notifyq_claims_total")
    assert sum(claims.values()) == len(events.of(MessagesClaimed))
    assert seen("notifyq_slots") == 10
    assert seen("notifyq_workers") == 1
    assert seen("notifyq_listener_connected") == 1
    assert "process_cpu_seconds_total" in seen.names
    ended = read(metrics)
    assert ended("notifyq_workers") == 0
    assert ended("notifyq_listener_connected") == 0


async def test_running_handlers_and_extended_locks_are_counted(app: App, events: Events) -> None:
    go_on = asyncio.Event()

    @app.handler("slow", lock_duration=0.9)
    async def slow(n: int) -> None:
        await go_on.wait()

    metrics = WorkerMetrics()
    async with working(app, events, metrics=metrics):
        await slow.publish_many([1, 2])
        await events.wait(LocksExtended)
        assert read(metrics)("notifyq_locks_extended_total") >= 1
        assert read(metrics)("notifyq_handlers_running") == 2
        go_on.set()
        await events.wait(MessageFinished, 2)
        assert read(metrics)("notifyq_handlers_running") == 0


async def test_events_of_streams_are_counted(
    app: App, connection: Connection, events: Events
) -> None:
    @app.subscriber("orders", "ledger", batch=10)
    async def keep(orders: list[int]) -> None: ...

    metrics = WorkerMetrics()
    async with working(app, events, metrics=metrics, poll=0.05):
        await connection.execute("select messages.publish('orders', '1'), messages.tick('orders')")
        await events.wait(BatchFinished, events=1)
    names = {"stream": "orders", "subscriber": "ledger"}
    seen = read(metrics)
    assert seen("notifyq_batches_finished_total", **names) >= 1
    assert seen("notifyq_batch_events_total", outcome="success", **names) == 1
    assert seen("notifyq_batch_events_total", outcome="failed", **names) == 0


def test_a_lost_session_is_counted() -> None:
    metrics = WorkerMetrics()
    metrics(ListenerConnected(backend_pid=1, again=False))
    metrics(WorkerStarted(worker="w", queues=("q",)))
    assert metrics.health.unready() is None
    metrics(ListenerLost(error="gone"))
    assert metrics.health.unready() == "the listening session reconnects"
    assert read(metrics)("notifyq_listener_connected") == 0
    metrics(ListenerConnected(backend_pid=2, again=True))
    assert metrics.health.unready() is None
    seen = read(metrics)
    assert seen("notifyq_listener_losses_total") == seen("notifyq_listener_reconnects_total") == 1


def test_a_worker_that_follows_a_stopped_one_is_ready() -> None:
    metrics = WorkerMetrics()
    for pid in (1, 2):
        metrics(ListenerConnected(backend_pid=pid, again=False))
        metrics(WorkerStarted(worker="w", queues=("q",)))
        assert metrics.health.unready() is None
        metrics(WorkerStopping(worker="w", running=0, grace=1.0))
        assert metrics.health.unready() == "stopping"
        metrics(WorkerStopped(worker="w", handled=0, released=0))
        assert metrics.health.unready() == "stopping"


def test_what_maintenance_does_is_counted() -> None:
    metrics = WorkerMetrics()
    for _ in range(2):
        metrics(
            MaintenanceDone(reaped=1, staged=2, notified=3, partitions_made=4, partitions_dropped=5)
        )
    seen = read(metrics)
    assert seen("notifyq_maintenance_runs_total") == 2
    assert seen("notifyq_maintenance_reaped_total") == 2
    assert seen("notifyq_maintenance_staged_total") == 4
    assert seen("notifyq_maintenance_notifications_total") == 6


def test_messages_claimed_during_suppression_count_as_suppressed() -> None:
    metrics = WorkerMetrics()

    def claim(queue: str, quantity: int) -> None:
        metrics(MessagesClaimed(quantity=quantity, queues=(), by_queue={queue: quantity}))

    def finish(stream: str, events: int) -> None:
        metrics(
            BatchFinished(
                stream=stream,
                subscriber="u",
                batch_id=1,
                events=events,
                retried=0,
                failed=0,
                run=1.0,
            )
        )

    claim("q", 1)
    metrics(QueueSuppressed(queue="q"))
    metrics(StreamSuppressed(stream="s"))
    claim("q", 2)
    claim("other", 4)
    finish("s", 8)
    finish("other", 16)
    assert read(metrics)("notifyq_queues_suppressed") == 1
    assert read(metrics)("notifyq_streams_suppressed") == 1
    metrics(QueueUnsuppressed(queue="q"))
    claim("q", 32)
    metrics(ListenerConnected(backend_pid=2, again=True))  # what was promised ended with the other
    finish("s", 64)
    seen = read(metrics)
    assert seen("notifyq_notifications_suppressed_total", channel="new_message") == 2
    assert seen("notifyq_notifications_suppressed_total", channel="new_event") == 8
    assert seen("notifyq_queues_suppressed") == seen("notifyq_streams_suppressed") == 0


def test_the_number_of_series_is_limited() -> None:
    metrics = WorkerMetrics(most_names=20)

    def flood(quantity: int) -> int:
        for n in range(quantity):
            values: dict[str, Any] = {"queue": f"q{n}", "message_id": n}
            metrics(
                MessageFinished(
                    lock_token=1, status="success", wait=1, run=1, details=None, **values
                )
            )
            metrics(MessagesClaimed(quantity=1, queues=(), by_queue={f"q{n}": 1}))
            metrics(LockLost(lock_token=1, **values))
            metrics(HandlerStuck(**values))
            counts: dict[str, Any] = {
                "batch_id": n,
                "events": 1,
                "retried": 0,
                "failed": 0,
                "run": 1.0,
            }
            metrics(BatchFinished(stream=f"s{n}", subscriber=f"u{n}", **counts))
        return len(generate_latest(metrics.registry).splitlines())

    assert flood(30) == flood(3000)
    seen = read(metrics)
    queues = {value for labels in seen.of("notifyq_claimed_total") for _, value in labels}
    assert len(queues) == 21
    assert seen("notifyq_claimed_total", queue="(others)") == 3030 - 2 * 20
    assert seen("notifyq_batches_finished_total", stream="(others)", subscriber="(others)") > 2000


@pytest.mark.parametrize(
    ("kind", "heading"),
    [
        (WorkerMetrics, "Worker"),
        (RelayMetrics, "Relay"),
        (BrokerMetrics, "Broker"),
    ],
)
def test_every_metric_is_documented(kind: type[EventMetrics], heading: str) -> None:
    pytest.importorskip("griffe", reason="pip install 'notifyq[docs]'")
    metrics = kind(CollectorRegistry())
    page = maker("make_reference").metrics()
    text = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|(.*?)\| (.+) \|$", text, re.MULTILINE)
    documented = {name: (kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels, _ in rows}
    there = {}
    for collector in set(metrics.registry._collector_to_names):
        labels = tuple(getattr(collector, "_labelnames", ()))
        for family in collector.collect():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            there[name] = (family.type, labels)
    assert documented == there


def test_a_registry_of_the_program_is_served() -> None:
    registry = CollectorRegistry()
    WorkerMetrics(registry)
    with start_server(registry, port=0) as server:
        assert "notifyq_slots" in scrape(server.url).names
        assert get(f"{server.url}/healthz") == (200, "ok\n")
