"""The pages of a worker while it starts, works, is blocked, and stops."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
from pathlib import Path

import pytest

from cli.programs import Running
from notifyq import App, ConfigurationError
from notifyq.operations.metrics import WorkerMetrics, server, start_server
from notifyq.telemetry import MaintenanceFailing, WorkerStopping
from operations.metrics.scrapes import get, scrape
from support.database import Connection
from support.ports import free_port
from support.refusing import refusing
from support.running import Events, working

APP = """
import notifyq
app = notifyq.App()
@app.handler("good")
async def handle(n: int) -> int: return n
"""


async def fetched(url: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, url)


async def test_a_worker_is_ready_while_it_can_work(app: App, events: Events) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @app.handler("slow")
    async def slow(n: int) -> None:
        entered.set()
        await go_on.wait()

    metrics = WorkerMetrics()
    with start_server(metrics, port=0) as pages:
        assert await fetched(f"{pages.url}/readyz") == (503, "starting\n")
        assert await fetched(f"{pages.url}/healthz") == (200, "ok\n")
        async with working(app, events, metrics=metrics) as worker:
            assert await fetched(f"{pages.url}/readyz") == (200, "ok\n")
            assert await fetched(f"{pages.url}/healthz") == (200, "ok\n")
            await slow.publish(1)
            await entered.wait()
            worker.stop()
            await events.wait(WorkerStopping)
            assert await fetched(f"{pages.url}/readyz") == (503, "stopping\n")
            assert await fetched(f"{pages.url}/healthz") == (200, "ok\n")
            go_on.set()


async def test_a_worker_whose_maintenance_fails_is_degraded(
    app: App, connection: Connection, events: Events
) -> None:
    @app.handler("good")
    async def good(n: int) -> None: ...

    metrics = WorkerMetrics()
    with start_server(metrics, port=0) as pages:
        async with working(app, events, metrics=metrics, maintenance=0.1):
            async with refusing(connection, "notifyq.reap_locks", "XX000"):
                await events.wait(MaintenanceFailing)
                status, text = await fetched(f"{pages.url}/healthz")
                assert status == 200
                assert text.startswith(
                    "degraded; maintenance cannot reap expired locks: refused for a test "
                )
            await events.wait(MaintenanceFailing, failing=())
            assert await fetched(f"{pages.url}/healthz") == (200, "ok\n")


async def test_a_blocked_loop_is_reported_and_scrapes_continue(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_RESPONDS_WITHIN", 0.3)
    entered, go_on = threading.Event(), threading.Event()

    @app.handler("blocks")
    async def blocks(n: int) -> None:
        entered.set()
        go_on.wait(20)

    seen: list[tuple[int, str]] = []
    delays: list[float] = []

    def observe(url: str) -> None:
        assert entered.wait(20)
        seen.append(get(f"{url}/healthz"))
        page = scrape(url)
        delays.append(page("notifyq_handlers_loop_delay_seconds"))
        delays.append(page("notifyq_listener_loop_delay_seconds"))
        go_on.set()

    metrics = WorkerMetrics()
    with start_server(metrics, port=0) as pages:
        async with working(app, metrics=metrics):
            observer = threading.Thread(target=observe, args=[pages.url])
            observer.start()
            await blocks.publish(1)
            await asyncio.to_thread(observer.join)
            assert await fetched(f"{pages.url}/healthz") == (200, "ok\n")
    [(status, text)] = seen
    assert status == 503
    assert text.startswith("the event loop of the handlers has not responded for 0.3 s")
    assert "listener" not in text
    assert delays[0] >= 0.3 > delays[1]


def test_unknown_pages_and_methods_are_refused() -> None:
    with start_server(WorkerMetrics(), port=0) as pages:
        assert get(f"{pages.url}/other")[0] == 404
        assert get(f"{pages.url}/metrics", "POST")[0] == 405
        assert get(f"{pages.url}/metrics", "HEAD") == (200, "")
        assert "/metrics" in get(f"{pages.url}/")[1]


def test_idle_clients_do_not_block_scrapes() -> None:
    with start_server(WorkerMetrics(), port=0) as pages:
        idle = [socket.create_connection(("127.0.0.1", pages.port)) for _ in range(20)]
        assert get(f"{pages.url}/metrics")[0] == 200
        for connection in idle:
            connection.setblocking(False)
            with connection, pytest.raises(BlockingIOError):  # it was not dropped for that
                connection.recv(1)


def test_a_port_that_is_in_use_is_refused() -> None:
    with (
        start_server(WorkerMetrics(), port=0) as pages,
        pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{pages.port}: address alr"),
    ):
        start_server(WorkerMetrics(), port=pages.port)
    assert pages._server.socket.fileno() == -1  # another process may have the port by now
    with start_server(WorkerMetrics(), port=0, host="::1") as pages:
        assert get(f"{pages.url}/readyz") == (503, "starting\n")


async def test_the_command_serves_metrics_and_prints_the_address(
    database: str, tmp_path: Path
) -> None:
    (tmp_path / "good.py").write_text(APP)
    args = ("worker", "good:app", "--log-format", "json", "--metrics-port", "0")
    with Running(database, *args, cwd=tmp_path) as worker:
        message = json.loads(worker.logged("metrics are served"))["message"]
        url = message.removeprefix("metrics are served at ").removesuffix("/metrics")
        worker.logged(" has started")
        assert get(f"{url}/readyz") == (200, "ok\n")
        assert scrape(url)("notifyq_workers") == 1
        second = ("worker", "good:app", "--metrics-port", url.rpartition(":")[2])
        with Running(database, *second, cwd=tmp_path) as other:
            result = other.end()
        assert result.code == 1
        assert result.err.count("\n") == 1
        assert "metrics cannot be served on" in result.err
        assert "address already in use; give each process its own --metrics-port" in result.err
        assert "NOTIFYQ_METRICS_PORT applies to workers, relays and brokers" in result.err
        assert worker.stop(signal.SIGTERM).code == 0


async def test_each_process_has_its_own_port(database: str, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(APP)
    port = free_port(2)
    env = {"NOTIFYQ_METRICS_PORT": str(port)}
    args = ("worker", "good:app", "--processes", "2")
    with Running(database, *args, cwd=tmp_path, env=env) as workers:
        workers.logged("[1] ")
        workers.logged(f":{port + 1}/metrics")
        workers.logged(" has started")
        assert scrape(f"http://127.0.0.1:{port}")("notifyq_workers") == 1
        assert scrape(f"http://127.0.0.1:{port + 1}").names
        assert workers.stop(signal.SIGTERM).code == 0
