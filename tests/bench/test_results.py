"""Results: medians and percentiles, the file, and tables and charts from the file alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import charts, report
from bench.results import METRICS, Failure, Results, Sample, percentile, percentiles
from bench.system import NotRunError
from bench.systems import PgQ
from notifyq.cli import main as cli
from notifyq.errors import NotifyqError


def sample(system: str, round_: int, rate: float, variant: str = "1 process") -> Sample:
    return Sample("drain", variant, system, round_, {"rate": rate, "wal": 100.0}, [0.5, 0.25])


@pytest.fixture
def results() -> Results:
    rates = {"notifyq": (1000.0, 4000.0, 2000.0), "peer": (500.0, 3000.0, 5000.0)}
    return Results(
        started="2026-11-21T12:00:00+00:00",
        machine={"cpu": "a CPU", "cores": "2", "ram": "4 GiB", "kernel": "Linux", "python": "3.11"},
        settings={"fsync": "on", "server_version": "15.1"},
        options={"rounds": 3},
        systems={"notifyq": "0.1", "peer": "2.0"},
        not_run={"other": "cannot be installed: no network"},
        samples=[
            sample(system, round_, rate)
            for system, measured in rates.items()
            for round_, rate in enumerate(measured)
        ],
        failures=[Failure("steady", "peer", 2, "no reply")],
    )


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(n) for n in range(200, 0, -1)]
    assert percentiles(values) == {"p50": 100.0, "p95": 190.0, "p99": 198.0}
    assert percentile([7.0], 99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
    assert percentiles([]) == {}


def test_a_median_is_that_of_the_rounds(results: Results) -> None:
    assert results.median("drain", "1 process", "notifyq", "rate") == 2000.0
    assert results.median("drain", "1 process", "peer", "rate") == 3000.0
    assert results.median("drain", "1 process", "peer", "p50") is None
    assert results.median("drain", "2 processes", "peer", "rate") is None


def test_a_ratio_is_to_the_median_of_notifyq(results: Results) -> None:
    assert results.ratio("drain", "1 process", "peer", "rate") == 1.5
    assert results.ratio("drain", "1 process", "notifyq", "rate") == 1.0
    results.samples.append(sample("peer", 0, 10.0, "2 processes"))
    assert results.ratio("drain", "2 processes", "peer", "rate") is None


def test_the_file_has_all_of_it(results: Results, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    results.write(path)
    assert Results.read(path) == results
    raw = json.loads(path.read_text(encoding="utf-8"))
    assert len(raw["samples"]) == 6
    assert raw["samples"][0]["latencies"] == [0.5, 0.25]
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_is_printed_as_json(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    results.write(path)
    assert cli._invoke(["bench", "report", str(path), "--json"], debug=False) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["file"] == str(path)
    assert printed["samples"] == json.loads(path.read_text(encoding="utf-8"))["samples"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', "12"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(NotifyqError, match=r"run\.json has"):
        Results.read(path)


def test_a_table_shows_medians_spread_and_ratios(results: Results) -> None:
    [table] = report.tables(results)
    assert table.title == "drain (1 process)"
    assert table.columns == ["system", "rate, messages/s", "WAL, bytes/message"]
    assert table.rows == [
        ["notifyq", "2,000 [1,000 to 4,000]", "100 [100 to 100]"],
        ["peer", "3,000 [500 to 5,000] (1.50)", "100 [100 to 100] (1.00)"],
    ]


def test_several_variants_make_a_table_for_each_metric(results: Results) -> None:
    results.samples.append(sample("notifyq", 0, 8000.0, "2 processes"))
    rates, wal = report.tables(results)
    assert rates.title == "drain: rate, messages/s"
    assert rates.columns == ["system", "1 process", "2 processes"]
    assert rates.rows == [
        ["notifyq", "2,000 [1,000 to 4,000]", "8,000"],
        ["peer", "3,000 [500 to 5,000] (1.50)", ""],
    ]
    assert wal.rows[0] == ["notifyq", "100 [100 to 100]", "100"]


def test_a_case_may_have_another_baseline(results: Results) -> None:
    costs = {"bare INSERT": 0.0001, "notifyq": 0.0003}
    results.samples = [
        Sample("insert", "1 session", system, 0, {"server_cpu": cost})
        for system, cost in costs.items()
    ]
    [table] = report.tables(results)
    assert table.title == "insert (1 session), divided by bare INSERT"
    assert table.rows == [["bare INSERT", "100"], ["notifyq", "300 (3.00)"]]


def test_a_ratio_needs_a_positive_baseline(results: Results) -> None:
    results.samples = [
        Sample("idle", "from the reply", system, 0, {"p50": value})
        for system, value in {"notifyq": -0.001, "peer": 0.002}.items()
    ]
    assert results.ratio("idle", "from the reply", "peer", "p50") is None
    [table] = report.tables(results)
    assert table.rows == [["notifyq", "-1"], ["peer", "2"]]


def test_a_failed_system_has_a_row(results: Results) -> None:
    results.options["cases"] = ["drain"]
    results.failures = [Failure("drain", "other", n, "it has ended") for n in range(3)]
    results.failures.append(Failure("drain", "peer", 1, "no reply"))
    [table] = report.tables(results)
    assert [row[0] for row in table.rows] == [
        "notifyq", "peer, failed in 1 of 3 rounds", "other, failed in 3 of 3 rounds",
    ]  # fmt: skip
    assert report.lists(results)["failed"][0] == "other, drain, round 1: it has ended"
    assert results.not_measured() == ["drain of other"]


def test_the_lists_name_better_peers_and_what_was_not_run(results: Results) -> None:
    lists = report.lists(results)
    assert lists["where a peer is better (divided by notifyq's)"] == [
        "drain, 1 process, rate: peer 1.50"
    ]
    assert lists["not run"] == ["other: cannot be installed: no network"]


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [("rate", 12345.6, "12,346"), ("p50", 0.00123, "1.23"), ("server_cpu", 0.000_05, "50")],
)
def test_numbers_are_in_the_unit_of_their_metric(metric: str, value: float, shown: str) -> None:
    assert report.number(METRICS[metric], value) == shown


def test_charts_are_drawn_from_the_results(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    [path] = charts.draw(results, tmp_path / "charts")
    assert path.name == "drain-rate.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_command_reports_from_the_file_alone(
    results: Results, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    results.write(path)
    assert cli._invoke(["bench", "report", str(path)], debug=False) == 0
    output = capfd.readouterr().out
    assert "PostgreSQL 15.1 (fsync=on)" in output
    assert "3,000 [500 to 5,000] (1.50)" in output
    assert "cannot be installed" in output


def test_an_unknown_case_or_system_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--case", "--system"):
        assert cli._invoke(["bench", option, "nothing"], debug=False) == 1
        assert capfd.readouterr().err.startswith("notifyq: there is no ")


def test_a_case_without_a_sample_was_not_measured(results: Results) -> None:
    results.options["cases"] = ["drain", "idle"]
    assert results.not_measured() == ["idle"]


def test_a_run_without_a_result_is_an_error(
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def install(_system: object, _cache: object) -> str:
        raise NotRunError("cannot be installed here")

    monkeypatch.setattr(PgQ, "install", install)
    command = ["--dsn", server, "--case", "drain", "--system", "pgq", "--output", str(tmp_path)]
    assert cli._invoke(["bench", "--quick", *command], debug=False) == 1
    output = capfd.readouterr()
    assert "pgq: cannot be installed here" in output.out
    assert 'not measured: drain; the lists "not run" and "failed" have the reasons' in output.err


def test_rates_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    charts.draw_rates({"export": 300_000.0, "read": 2.5}, "2 rows", tmp_path / "rates.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
