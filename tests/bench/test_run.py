"""A tiny run of notifyq and the limit on a real server: each published message is handled."""

from __future__ import annotations

import os
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from bench.cases import CASES
from bench.processes import PgbenchResult, run_pgbench
from bench.results import Results
from bench.run import choose, run
from bench.systems import every
from bench.workspace import Sizes
from notifyq.errors import ConfigurationError
from support.database import session

TINY = replace(
    Sizes.quick(), clients=(2,), bulk=10, backlog=300, patience=30.0, rate=50, steady=1, idle=3,
    dead_rows=100, events=300, held=0, sessions=(2,),
)  # fmt: skip


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pgbench run for a whole second once only, then for a number of transactions."""
    lengths: list[float | None] = []

    def run_briefly(
        *args: str, seconds: float | None = None, **options: Any
    ) -> Coroutine[Any, Any, PgbenchResult]:
        lengths.append(seconds)
        if len(lengths) == 1:
            return run_pgbench(*args, seconds=seconds, **options)
        return run_pgbench(*args, **{"transactions": 32} | options)

    monkeypatch.setattr("bench.cases.run_pgbench", run_briefly)
    monkeypatch.setattr("bench.streams.run_pgbench", run_briefly)


@pytest.mark.timeout(120)
async def test_a_run_measures_its_cases(server: str, brief: None) -> None:
    steps: list[str] = []
    kept: list[Results] = []
    streams = ["stream-publish", "stream-read", "stream-idle", "stream-held"]
    cases, systems = choose(
        ["publish", "drain", "steady", "idle", "held", *streams, "ceiling", "limits", "steps"],
        ["notifyq", "limit"],
    )
    results = await run(
        server,
        cases,
        systems,
        TINY,
        lambda what, step, number: steps.append(f"{step + 1} of {number}: {what}"),
        kept.append,
    )
    assert not results.not_run
    assert not results.not_measured()
    assert kept == [results]
    assert steps[-1] == "13 of 13: round 1 of 1, steps: notifyq"
    assert {sample.case for sample in results.samples} == {case.name for case in cases}
    assert {sample.system for sample in results.samples if sample.case == "publish"} == {
        "notifyq", "notifyq publish()", "bare INSERT",
    }  # fmt: skip
    published = {sample.system for sample in results.samples if sample.case == "stream-publish"}
    assert published == {"notifyq", "notifyq publish()", "notifyq, read as seldom as pgq"}
    limits = [sample for sample in results.samples if sample.case == "limits"]
    assert {sample.system for sample in limits} >= {"notifyq", "notifyq, fair", "notifyq, rate"}
    assert {sample.variant for sample in limits} == {
        "100 keys, 2 sessions",
        "1500 keys, 2 sessions",
    }
    assert all(sample.values["server_cpu"] > 0 for sample in limits)
    assert len({it.system for it in results.samples if it.case == "steps"}) == 4
    for sample in results.samples:
        assert "left" not in sample.values, f"{sample} has messages that were not handled"
        assert sample.values.get("rate", 1) > 0
    latencies = {sample.case: len(sample.latencies) for sample in results.samples}
    assert (latencies["steady"], latencies["idle"], latencies["stream-idle"]) == (50, 3, 3)
    async with session(server) as connection:
        mine = f"notifyq_bench_{os.getpid()}"
        assert not await connection.fetchval(
            "select count(*) from pg_database where starts_with(datname, $1)", mine
        )


def test_a_case_that_no_chosen_system_has_is_an_error() -> None:
    reason = r"case 'ceiling' does not apply to notifyq, pgq: it needs --system limit$"
    with pytest.raises(ConfigurationError, match=reason):
        choose(["drain", "ceiling"], ["pgq", "notifyq"])
    with pytest.raises(ConfigurationError, match=r"needs --system notifyq or pgq$"):
        choose(["stream-read"], ["pgboss"])


def test_without_named_cases_all_that_apply_are_chosen() -> None:
    assert [case.name for case in choose([], ["limit"])[0]] == ["publish", "flush", "ceiling"]
    cases, systems = choose([], [])
    assert [case.name for case in cases] == list(CASES)
    assert [system.name for system in systems] == [system.name for system in every()]


def test_the_case_limits_measures_notifyq() -> None:
    cases, systems = choose(["limits"], ["notifyq"])
    assert [(case.name, system.name) for case in cases for system in systems] == [
        ("limits", "notifyq")
    ]
