"""The metrics of the database, which process exports them, and what happens when it is down."""

from __future__ import annotations

import re
import signal

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cli.programs import Running
from docs.pages import maker
from notifyq.operations import monitor
from notifyq.operations.metrics import DatabaseMetrics, WorkerMetrics
from notifyq.operations.metrics import database as module
from notifyq.operations.metrics.families import FIGURES
from operations.metrics.scrapes import Scrape, scrape
from support.database import Connection, until, value


def read(metrics: DatabaseMetrics) -> Scrape:
    registry = CollectorRegistry()
    registry.register(metrics)
    return Scrape(generate_latest(registry).decode())


async def test_the_values_are_those_of_the_database(database: str, connection: Connection) -> None:
    await connection.execute(
        """
        select messages.create_queue('q'), messages.create_queue('p');
        select messages.pause_queue('p');
        select messages.publish('q', '0');
        select messages.sleep(id, lock_token, 'nap', delay => interval '1 hour')
        from messages.claim('{q}', 1);
        select messages.publish_many('q', array['1', '2', '3']::jsonb[]);
        select messages.publish('q', '4', delay => interval '1 hour');
        select messages.finish(id, lock_token, 'rejected', 'no') from messages.claim('{q}', 1);
        select * from messages.claim('{q}', 1);
        select notifyq.run_duty('fail', 'messages', 'reap', -1);
        select messages.create_stream('s'), messages.subscribe('s', 'u');
        select messages.publish('s', '1');
        update messages.message set created_at = created_at - interval '1 minute',
          available_at = available_at - interval '1 minute' where state = 'waiting';
        update messages.message set locked_at = locked_at - interval '1 hour',
          lock_expires_at = lock_expires_at - interval '1 hour' where state = 'locked';
        """
    )
    with DatabaseMetrics(database) as metrics:
        seen = read(metrics)
    assert seen("notifyq_database_exporter") == seen("notifyq_database_up") == 1
    assert seen("notifyq_messages", queue="q", state="waiting") == 1
    assert seen("notifyq_messages", queue="q", state="scheduled") == 1
    assert seen("notifyq_messages", queue="q", state="locked") == 1
    assert seen("notifyq_messages", queue="q", state="parked") == 1
    assert seen("notifyq_queue_expired", queue="q") == 1
    assert seen("notifyq_queue_oldest_expired_seconds", queue="q") > 3000
    assert 50 < seen("notifyq_queue_oldest_waiting_seconds", queue="q") < 300
    assert seen("notifyq_queue_paused", queue="p") == 1
    assert seen("notifyq_maintenance_failures_total", duty="fail") == 1
    assert seen("notifyq_maintenance_failing", duty="fail") == 1
    assert seen("notifyq_queue_dead", queue="q") == 1
    assert seen("notifyq_queue_dead_recently", queue="q") == 1
    assert seen("notifyq_subscription_pending", stream="s", subscriber="u") == 1
    assert seen("notifyq_subscription_lag_seconds", stream="s", subscriber="u") > 0
    assert seen("notifyq_table_bytes", table="message") > 0
    assert seen("notifyq_partitions_ahead", table="message_archive") > 0
    assert seen("notifyq_xmin_age", cause="standby") == 0
    assert 0 <= seen("notifyq_notify_queue_ratio") < 1


async def test_every_number_of_health_has_a_metric_and_is_documented(
    database: str, connection: Connection
) -> None:
    health = await monitor.health(connection)
    assert {it.name for it in health.figures} <= FIGURES.keys()
    pytest.importorskip("griffe", reason="pip install 'notifyq[docs]'")
    page = maker("make_reference").metrics()
    text = page.split("\n## Database\n")[1]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|(.*?)\| .+ \|$", text, re.MULTILINE)
    with DatabaseMetrics(database) as metrics:
        there = {
            f"{it.name}_total" if it.type == "counter" else it.name: (
                it.type, tuple(getattr(it, "_labelnames", ())),
            )
            for it in metrics.collect()
        }  # fmt: skip
    assert {name: (kind, tuple(re.findall(r"\w+", labels))) for name, kind, labels in rows} == there


async def test_one_process_reads_and_another_one_takes_over(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY_EVERY", 0.01)

    def reads(metrics: DatabaseMetrics) -> bool:
        return read(metrics)("notifyq_database_exporter") == 1

    with DatabaseMetrics(database, every=0) as first, DatabaseMetrics(database) as second:
        assert reads(first)
        assert not reads(second)
        assert read(second).names == {"notifyq_database_exporter", "notifyq_database_up"}
        assert reads(first)
        with DatabaseMetrics(database, chosen=True) as chosen:
            assert not reads(chosen)
            await until(
                lambda: not reads(first) and reads(chosen),
                "the worker leaves it to the process that is there for it",
            )
            assert not reads(second)
        first.close()
        await until(lambda: reads(second), "another one takes over")


async def test_a_viewer_exports_its_queues_beside_the_process_that_exports_all(
    database: str, connection: Connection
) -> None:
    role = "notifyq_viewer_of_metrics"
    for name in ("mine", "theirs"):
        await value(connection, "create_queue", name=name)
        await value(connection, "publish", queue=name, message=1)
    await connection.execute(f"create role {role} login password 'x' in role notifyq_viewer")
    try:
        await value(connection, "grant_read", queue="mine", role=role)
        dsn = f"postgresql://{role}:x@{database.split('@')[1]}"
        with (
            DatabaseMetrics(database, every=0) as all_,
            DatabaseMetrics(dsn, chosen=True) as own,
            DatabaseMetrics(dsn) as other,
        ):
            assert read(all_)("notifyq_messages", queue="theirs", state="waiting") == 1
            seen = read(own)
            assert seen("notifyq_database_exporter") == 1
            assert seen("notifyq_messages", queue="mine", state="waiting") == 1
            assert seen("notifyq_waiting_for_seconds") >= 0
            assert not any("theirs" in dict(it).values() for it in seen.of("notifyq_messages"))
            assert not {"notifyq_xmin_age", "notifyq_connections"} & seen.names
            assert not any(it.startswith("notifyq_published") for it in seen.names)
            assert read(all_)("notifyq_database_exporter") == 1
            assert read(other)("notifyq_database_exporter") == 0
    finally:
        await connection.execute(f"drop owned by {role}; drop role {role}")


async def test_metrics_report_that_the_database_is_down_and_up_again(
    database: str, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with DatabaseMetrics("postgresql://127.0.0.1:1/nowhere") as nowhere:
        assert read(nowhere)("notifyq_database_up") == 0
        assert read(nowhere)("notifyq_database_exporter") == 0
    with DatabaseMetrics(database, every=0) as metrics:
        assert read(metrics)("notifyq_database_up") == 1
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'notifyq metrics' and datname = current_database()"
        )
        await until(lambda: read(metrics)("notifyq_database_exporter") == 1, "it reads again")
    assert "cannot read the metrics of the database" in caplog.text


async def test_the_number_of_queue_series_is_limited(database: str, connection: Connection) -> None:
    await connection.execute(
        """
        select messages.create_queue('q' || n) from generate_series(1, 30) as n;
        select messages.publish('q' || n, '1') from generate_series(1, 30) as n;
        select messages.publish('q30', '1');
        """
    )
    with DatabaseMetrics(database, most_names=10) as metrics:
        seen = read(metrics)
    waiting = {
        dict(labels)["queue"]: value
        for labels, value in seen.of("notifyq_messages").items()
        if ("state", "waiting") in labels
    }
    assert len(waiting) == 11
    assert waiting["q30"] == 2
    assert sum(waiting.values()) == 31


async def test_the_metrics_command_exports_the_database(database: str) -> None:
    with Running(database, "metrics", "--port", "0") as process:
        line = process.logged("metrics are served at ").strip()
        seen = scrape(line.removeprefix("metrics are served at ").removesuffix("/metrics"))
        assert seen("notifyq_database_exporter") == 1
        assert process.stop(signal.SIGTERM).code == 0


def test_worker_and_database_metrics_share_a_registry(database: str) -> None:
    both = WorkerMetrics()
    with DatabaseMetrics(database) as metrics:
        both.registry.register(metrics)
        seen = Scrape(generate_latest(both.registry).decode())
    assert {"notifyq_slots", "notifyq_database_up"} <= seen.names
