"""The metrics of a broker: of its procedures and of its session."""

from __future__ import annotations

import asyncio
import json
import signal

from prometheus_client import generate_latest

from broker.procedures import prepare, register, send, until_seen
from cli.programs import Running
from notifyq.broker import Broker
from notifyq.operations.metrics import BrokerMetrics
from notifyq.telemetry import BrokerLost, BrokerStarted
from operations.metrics.scrapes import Scrape, get, scrape
from support.database import Connection, until


async def test_a_dead_event_is_counted(connection: Connection, database: str) -> None:
    await prepare(connection, "s")
    await register(connection, "fails", "raise exception 'no stock';")
    metrics = BrokerMetrics()

    def read() -> Scrape:
        return Scrape(generate_latest(metrics.registry).decode())

    async with Broker(database, telemetry=metrics) as broker:
        task = asyncio.create_task(broker.serve())
        assert read()("notifyq_brokers") == 1
        assert metrics.health.unready() is None
        await send(connection, "1")
        await until(
            lambda: sum(read().of("notifyq_procedure_dead_events_total").values()) == 1,
            "the failure is counted",
        )
        broker.stop()
        await task
    assert read()("notifyq_brokers") == 0
    assert metrics.health.unready() == "no broker runs"


async def test_a_broker_without_its_session_is_not_ready() -> None:
    metrics = BrokerMetrics()
    where = {"role": "app", "database": "shop"}
    metrics(BrokerStarted(**where, backend_pid=1, again=False))
    metrics(BrokerLost(**where, error="gone"))
    assert metrics.health.unready() == "reconnecting: app in shop"
    metrics(BrokerStarted(**where, backend_pid=2, again=True))
    assert metrics.health.unready() is None
    seen = Scrape(generate_latest(metrics.registry).decode())
    assert seen("notifyq_broker_losses_total", **where) == 1
    assert seen("notifyq_brokers") == 1


async def test_the_command_serves_metrics(connection: Connection, database: str) -> None:
    await prepare(connection, "s")
    await register(connection, "works")
    args = ("broker", "--metrics-port", "0", "--log-format", "json")
    with Running(database, *args) as running:
        line = json.loads(running.logged("metrics are served"))["message"]
        url = line.removeprefix("metrics are served at ").removesuffix("/metrics")
        await send(connection, "1")
        await until_seen(connection, "1")
        assert scrape(url)("notifyq_brokers") == 1
        assert get(f"{url}/healthz") == get(f"{url}/readyz") == (200, "ok\n")
        assert running.stop(signal.SIGTERM).code == 0
