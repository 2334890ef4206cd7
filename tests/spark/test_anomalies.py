"""Anomalies: what was planted is found, a quiet past raises no alarm, and each is reported once."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from notifyq.errors import AccessDeniedError, ConfigurationError
from notifyq.spark.analysis.anomalies import DAY, HOUR, Anomaly, Hour, anomalies, detect
from notifyq.spark.analysis.rollup import rollup
from notifyq.spark.connection import connect
from notifyq.spark.lake.export import export
from spark.archived import archive_incident
from spark.lakes import as_role
from support.database import Connection

END = datetime(2026, 3, 1, tzinfo=UTC)


def quiet(seed: int, queues: int = 4, days: int = 15) -> list[Hour]:
    """Give hours of queues where nothing happens, with nights, a nightly run and noise."""
    dice = random.Random(seed)
    found = []
    for queue in range(queues):
        size, failing = 10 ** dice.uniform(1.8, 4), 10 ** dice.uniform(-2, -0.7)
        wait, noise = dice.uniform(10, 2000), dice.uniform(0, 0.15)
        mix = [dice.random() ** 2 + 0.01 for _ in range(6)]
        for step in range(24 * days, 0, -1):
            at = END - step * HOUR
            number = max(1, round(size * (1 + 0.6 * math.sin(at.hour / 24 * 6.28))))
            chance = min(0.9, failing * math.exp(dice.gauss(0, noise)))
            # A normal deviate instead of many draws.
            dead = round(dice.gauss(number * chance, math.sqrt(number * chance * (1 - chance))))
            dead = min(number, max(0, dead))
            errors = Counter(f"error {e}" for e in dice.choices(range(6), mix, k=min(dead, 200)))
            varies = math.sqrt(2.86 / number)
            waits = wait * (3 if at.hour == 2 else 1) * math.exp(dice.gauss(0, noise + varies))
            runs = 50 * math.exp(dice.gauss(0, varies))
            found.append(Hour(at, f"queue {queue}", number, dead, waits, runs, dict(errors)))
    return found


def changed(hours: list[Hour], queue: str, at: datetime, **values: Any) -> list[Hour]:
    return [
        replace(hour, **values) if (hour.queue, hour.bucket_at) == (queue, at) else hour
        for hour in hours
    ]


def test_a_normal_hour_raises_no_alarm() -> None:
    tested = 0
    false: list[Anomaly] = []
    for seed in range(20):
        found, hours = detect(quiet(seed), END - 2 * DAY)
        tested += hours
        false += found
    assert tested > 3500
    # The default rate.
    assert len(false) <= tested * 0.001, false


@pytest.mark.parametrize(
    ("metric", "found_of_ten"),
    [("wait", 8), ("run", 9), ("failures", 7)],
)
def test_a_threefold_value_is_found_in_busy_hours(metric: str, found_of_ten: int) -> None:
    at = END - 5 * HOUR
    found = planted = 0
    for seed in range(15):
        hours = quiet(seed)
        for hour in hours:
            if hour.bucket_at != at or hour.finished < 300:
                continue
            assert hour.wait_p95 is not None
            assert hour.run_p95 is not None
            values: dict[str, dict[str, Any]] = {
                "wait": {"wait_p95": 3 * hour.wait_p95},
                "run": {"run_p95": 3 * hour.run_p95},
                "failures": {"dead": min(hour.finished, 3 * hour.dead)},
            }
            reported, _ = detect(changed(hours, hour.queue, at, **values[metric]), at)
            planted += 1
            found += (hour.queue, at, metric) in {
                (one.queue, one.bucket_at, one.metric) for one in reported
            }
    assert planted == 30
    assert 10 * found >= found_of_ten * planted


@pytest.mark.parametrize(
    ("metric", "values"),
    [
        ("wait", {"wait_p95": 100_000.0}),
        ("run", {"run_p95": 400.0}),
        ("failures", {"finished": 1000, "dead": 500}),
        ("errors", {"errors": {"error 0": 5, "something new": 60}}),
    ],
)
def test_planted_incidents_are_found(metric: str, values: dict[str, Any]) -> None:
    for seed in range(3):
        hours = changed(quiet(seed), "queue 1", END - 5 * HOUR, **values)
        found, _ = detect(hours, END - DAY)
        assert ("queue 1", END - 5 * HOUR, metric) in {
            (one.queue, one.bucket_at, one.metric) for one in found
        }


def test_a_nightly_run_and_a_new_queue_raise_no_alarm() -> None:
    hours = [hour for hour in quiet(1, 1) if hour.bucket_at >= END - 20 * HOUR]
    last = replace(hours[-1], wait_p95=1e6)
    assert detect([*hours[:-1], last], END - HOUR) == ([], 0)


def test_hours_of_few_messages_are_not_tested() -> None:
    hours = changed(quiet(2, 1), "queue 0", END - HOUR, finished=20, dead=20, wait_p95=1e9)
    assert detect(hours, END - HOUR) == ([], 0)


def fill(dsn: str) -> None:
    with connect(dsn) as session:
        archive_incident(session, END)


async def test_each_anomaly_is_reported_once(database: str, connection: Connection) -> None:
    fill(database)
    span = {"since": END - 3 * HOUR, "until": END}
    unreported = anomalies(database, report=False, **span)  # type: ignore[arg-type]
    assert (unreported.new, unreported.hours) == (0, 3)
    assert await connection.fetchval("select count(*) from messages.anomaly") == 0
    first = anomalies(database, **span)  # type: ignore[arg-type]
    assert {(one.queue, one.bucket_at, one.metric) for one in first.anomalies} == {
        ("mail", END - HOUR, metric) for metric in ("wait", "failures", "errors")
    }
    assert first.new == 3
    again = anomalies(database, **span)  # type: ignore[arg-type]
    assert (again.anomalies, again.new) == (first.anomalies, 0)
    alerts = await connection.fetch(
        "select message, type from messages.message where queue = 'anomalies' order by id"
    )
    reported = [alert["message"] for alert in alerts]
    assert [one["metric"] for one in reported] == ["errors", "failures", "wait"]
    assert "no disk left" in reported[0]["details"]
    assert {alert["type"] for alert in alerts} == {"anomaly"}
    kept = await connection.fetchval("select count(message_id) from messages.anomaly")
    assert kept == 3


async def test_pruned_hours_are_compared_by_their_roll_up(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    fill(database)
    lake = tmp_path / "lake"
    export(database, lake)
    rollup(database, lake)
    query = "select * from notifyq.archive_hours($1, $2) order by bucket_at"
    span = (END - 240 * HOUR, END)
    before = await connection.fetch(query, *span)
    # All but the last five hours, and a part of one that is rolled up.
    await connection.execute(
        "delete from messages.message_archive "
        "where archived_at < $1 or archived_at < $2 and id % 2 = 0",
        END - 5 * HOUR,
        END - 4 * HOUR,
    )
    after = await connection.fetch(query, *span)
    same = ("bucket_at", "queue", "finished", "dead", "errors")
    assert [[row[name] for name in same] for row in after] == [
        [row[name] for name in same] for row in before
    ]
    assert len(after) == 240
    for name in ("wait_p95", "run_p95"):
        assert [row[name] for row in after] == pytest.approx(
            [row[name] for row in before], rel=0.02
        )
    found = anomalies(database, since=END - 3 * HOUR, until=END, report=False)
    assert found.hours == 3
    assert {one.metric for one in found.anomalies} == {"wait", "failures", "errors"}


async def test_old_anomalies_are_forgotten_and_unknown_metrics_refused(
    database: str, connection: Connection
) -> None:
    row = {"bucket_at": "2026-01-01T00:00Z", "value": 1, "expected": 1, "chance": 0, "finished": 1}
    row |= {"queue": "mail", "metric": "wait", "details": "slow"}
    statement = "select count(*) from notifyq.report_anomalies($1)"
    assert await connection.fetchval(statement, [row]) == 1
    await connection.execute("update messages.anomaly set found_at = now() - interval '2 years'")
    assert await connection.fetchval(statement, [row | {"metric": "run"}]) == 1
    assert await connection.fetchval("select array_agg(metric) from messages.anomaly") == ["run"]
    with pytest.raises(Exception, match="unknown metric 'luck'"):
        await connection.fetchval(statement, [row | {"metric": "luck"}])
    with pytest.raises(ConfigurationError, match="whole hour"):
        anomalies(database, since=END, until=END + timedelta(minutes=30))
    with pytest.raises(ConfigurationError, match="rate"):
        anomalies(database, rate=0)


def test_a_role_that_may_not_report_gets_an_error_also_without_anomalies(database: str) -> None:
    reader = as_role(database, "notifyq_reader")
    with pytest.raises(AccessDeniedError, match="report_anomalies: an admin must grant"):
        anomalies(reader)
    assert anomalies(reader, report=False).anomalies == ()
