"""The metrics of a relay, after it has moved messages, and while its target is away."""

from __future__ import annotations

import json
import signal
from typing import Any

from prometheus_client import generate_latest

from cli.programs import Running
from notifyq.database.pool import Database
from notifyq.operations.metrics import RelayMetrics, start_server
from notifyq.relay import (
    Relay,
    RelayMessage,
    RelayResumed,
    RelayStalled,
    RelayStarted,
    RelayStopped,
)
from operations.metrics.scrapes import Scrape, get, scrape
from support.database import Connection, until


def read(metrics: RelayMetrics) -> Scrape:
    return Scrape(generate_latest(metrics.registry).decode())


async def test_moved_messages_are_counted(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    await connection.execute(
        "select messages.publish_many('default', array(select to_jsonb(n) from "
        "generate_series(1, 10) as n))"
    )

    def odd(message: RelayMessage) -> RelayMessage | None:
        return message if message.payload() % 2 else None

    metrics = RelayMetrics()
    await Relay(
        Database(database), Database(far), {"default": "default"}, once=True, transform=odd,
        telemetry=metrics,
    ).run()  # fmt: skip
    seen = read(metrics)
    source = {"source": "default"}
    assert seen("notifyq_relay_messages_total", outcome="new", **source) == 5
    assert seen("notifyq_relay_messages_total", outcome="dropped", **source) == 5
    assert seen("notifyq_relay_messages_total", outcome="known", **source) == 0
    assert seen("notifyq_relay_lag_seconds_count", **source) >= 1
    assert seen("notifyq_relay_lag_seconds_sum", **source) > 0
    assert seen("notifyq_relays") == 0


async def test_a_relay_whose_target_is_away_is_not_ready() -> None:
    metrics = RelayMetrics()
    with start_server(metrics, port=0) as server:
        assert metrics.health.unready() == "starting"
        metrics(RelayStarted(relay="r", routes=()))
        assert metrics.health.unready() is None
        assert read(metrics)("notifyq_relay_stalled_seconds") == 0
        down: dict[str, Any] = {"relay": "r", "source": None}
        metrics(RelayStalled(reason="down", **down))
        assert metrics.health.unready() == "a target is down"
        assert get(f"{server.url}/readyz") == (503, "a target is down\n")
        assert read(metrics)("notifyq_relay_stalled_seconds") > 0
        metrics(RelayResumed(seconds=1, **down))
        assert metrics.health.unready() is None
        metrics(RelayStalled(reason="down again", **down))
        metrics(RelayStopped(relay="r", moved=0, released=0))
        assert read(metrics)("notifyq_relay_stalled_seconds") == 0
        assert metrics.health.unready() == "stopping"


async def test_a_queue_whose_target_is_full_is_measured_and_the_relay_is_ready() -> None:
    metrics = RelayMetrics()

    def stalled() -> float:
        return read(metrics)("notifyq_relay_stalled_seconds")

    for relay in ("r", "s"):
        metrics(RelayStarted(relay=relay, routes=()))
    for relay in ("r", "s"):
        metrics(RelayStalled(relay=relay, source="one", reason="full"))
    assert metrics.health.unready() is None
    longest = stalled()
    assert longest > 0
    metrics(RelayStalled(relay="r", source="two", reason="paused"))
    metrics(RelayResumed(relay="r", source="two", seconds=1))
    assert stalled() > longest
    metrics(RelayResumed(relay="r", source="one", seconds=1))
    assert stalled() > 0
    metrics(RelayStopped(relay="s", moved=0, released=0))
    assert stalled() == 0
    assert metrics.health.unready() is None


async def test_the_command_serves_metrics(
    database: str, far: str, connection: Connection, there: Connection
) -> None:
    args = ("relay", database, far, "-q", "default", "--metrics-port", "0", "--log-format", "json")
    with Running(database, *args) as running:
        line = json.loads(running.logged("metrics are served"))["message"]
        url = line.removeprefix("metrics are served at ").removesuffix("/metrics")
        await connection.execute("select messages.publish('default', '1')")

        async def has_moved() -> bool:
            moved = scrape(url).of("notifyq_relay_messages_total")
            return sum(moved.values()) == 1

        await until(has_moved, "the message is counted", 20)
        assert get(f"{url}/healthz") == get(f"{url}/readyz") == (200, "ok\n")
        # How far behind it is, also while nothing goes over, is in the database.
        labels = frozenset({("queue", "default")})
        assert labels in scrape(url).of("notifyq_queue_oldest_waiting_seconds")
        assert running.stop(signal.SIGTERM).code == 0
