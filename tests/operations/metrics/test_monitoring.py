"""The rules and the dashboard of `monitoring/`: by promtool, and by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from notifyq import App
from notifyq.operations.metrics import (
    BrokerMetrics,
    DatabaseMetrics,
    RelayMetrics,
    WorkerMetrics,
    start_server,
)
from operations.metrics.alerts import CASES
from operations.metrics.scrapes import Scrape, get, scrape
from support.database import ROOT, until
from support.ports import free_port
from support.running import Events, working

RULES = ROOT / "monitoring/rules.yml"
DASHBOARD = ROOT / "monitoring/grafana/dashboards/notifyq.json"

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Debian's package prometheus is not installed",
)


def alerts() -> dict[str, str]:
    """Return the expression of every alert."""
    text = RULES.read_text(encoding="utf-8")
    found = re.findall(r"- alert: (\w+)\n +expr: \|-\n((?: {10}.*\n)+)", text)
    assert len(found) == text.count("- alert:")
    return dict(found)


def panels() -> list[tuple[str, str]]:
    """Return title and expression of every query of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    found = [
        (panel["title"], target["expr"].replace("$__rate_interval", "1m").replace("$queue", ".*"))
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(found) > 30
    return found


def named(expression: str) -> set[str]:
    """Return the metrics that an expression names."""
    return set(re.findall(r"\bnotifyq_\w+", expression))


def exported(page: Scrape) -> set[str]:
    """Return the metrics of a page, also those that have no sample yet."""
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}
    return {
        f"{name}{suffix}"
        for name, family in page.families.items()
        for suffix in suffixes.get(family.type, [""])
    }


@needs_prometheus
def test_prometheus_accepts_rules_and_configuration() -> None:
    for what, path in (("rules", RULES), ("config", ROOT / "monitoring/prometheus.yml")):
        subprocess.run(["promtool", "check", what, str(path)], check=True, capture_output=True)


@needs_prometheus
def test_every_alert_fires_only_in_its_case(tmp_path: Path) -> None:
    assert {case.alert for case in CASES} == alerts().keys()

    def tested(series: dict[str, str], at: str, alert: str, **expected: Any) -> dict[str, Any]:
        return {
            "interval": "1m",
            "input_series": [{"series": it, "values": values} for it, values in series.items()],
            "alert_rule_test": [{"eval_time": at, "alertname": alert, **expected}],
        }

    text = RULES.read_text(encoding="utf-8")
    tests = []
    for case in CASES:
        tests.append(tested(case.quiet, case.at, case.alert, exp_alerts=[]))
        tests.append(tested(case.series, case.at, case.alert, exp_alerts=[]))
    # Annotations are texts with values: what is compared is which alerts there are.
    (tmp_path / "rules.yml").write_text(
        re.sub(r" +annotations:\n(?: {10}.*\n)+", "", text), encoding="utf-8"
    )
    for number, case in enumerate(CASES):
        labels = [{"exp_labels": case.labels}]
        tests[2 * number + 1]["alert_rule_test"][0]["exp_alerts"] = labels
    # YAML has JSON in it.
    (tmp_path / "tests.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


async def test_rules_and_panels_use_existing_metrics(database: str) -> None:
    there = set()
    for metrics in (WorkerMetrics(), RelayMetrics(), BrokerMetrics()):
        with DatabaseMetrics(database) as figures, start_server(metrics, port=0) as server:
            metrics.registry.register(figures)
            there |= exported(scrape(server.url))
    for title, expression in [*alerts().items(), *panels()]:
        assert named(expression) <= there, title


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[str]:
    """Run a Prometheus that scrapes these, with our rules; give its address."""
    port = free_port()
    settings = {
        "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "notifyq", "static_configs": [{"targets": targets}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(settings))
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def answer(address: str) -> Any:
    status, text = get(address)
    if status == 503:
        raise ConnectionError("it still loads its store")
    assert status == 200, text
    return json.loads(text)["data"]


@needs_prometheus
async def test_prometheus_scrapes_a_worker(
    app: App, database: str, events: Events, tmp_path: Path
) -> None:
    @app.handler("q")
    async def handle(n: int) -> None: ...

    def asked(path: str, **query: str) -> Any:
        return answer(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}")

    async def value(expression: str) -> float | None:
        found = (await asyncio.to_thread(asked, "query", query=expression))["result"]
        return float(found[0]["value"][1]) if found else None

    metrics = WorkerMetrics()
    with (
        DatabaseMetrics(database, every=0.1) as figures,
        start_server(metrics, port=0) as server,
        prometheus(tmp_path, server.url.removeprefix("http://")) as url,
    ):
        metrics.registry.register(figures)
        async with working(app, events, metrics=metrics):
            await handle.publish_many(range(20))

            async def has_read() -> bool:
                try:
                    query = 'sum(notifyq_finished_total{status="success"})'
                    return await value(query) == 20 and await value("notifyq_database_up") == 1
                except OSError:  # it has not started yet
                    return False

            await until(has_read, "Prometheus has read the worker", 20)
            assert await value('up{job="notifyq"}') == 1
            for _, expression in panels():
                await value(expression)

            async def has_judged() -> bool:
                groups = (await asyncio.to_thread(asked, "rules"))["groups"]
                return all(it["health"] != "unknown" for one in groups for it in one["rules"])

            await until(has_judged, "the rules are evaluated", 20)
            groups = (await asyncio.to_thread(asked, "rules"))["groups"]
            rules = [rule for group in groups for rule in group["rules"]]
            assert len(rules) == len(alerts())
            assert [it for it in rules if it["health"] != "ok"] == []
            assert [it["name"] for it in rules if it["state"] == "firing"] == []


def test_every_panel_has_queries_and_a_unique_title() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    source = (ROOT / "monitoring/grafana/provisioning/datasources/notifyq.yml").read_text()
    titles = [panel["title"] for panel in dashboard["panels"]]
    assert len(titles) == len(set(titles))
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            assert panel["targets"]
            assert f"uid: {panel['datasource']['uid']}\n" in source
