"""A tiny run of notifyq and the limits on a real server: all that is published is handled."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.place import Sizes
from bench.run import chosen_cases, chosen_systems, run
from support.database import session

if TYPE_CHECKING:
    from bench.results import Results

TINY = replace(
    Sizes.quick(), clients=(2,), bulk=10, backlog=300, patience=30.0, rate=50, steady=1, idle=3,
    dead_rows=100, events=300, held=0, sessions=(2,),
)  # fmt: skip


@pytest.mark.timeout(120)
async def test_a_run_measures_what_it_says(server: str) -> None:
    said: list[str] = []
    kept: list[Results] = []
    streams = ["stream-publish", "stream-read", "stream-idle", "stream-held"]
    cases = chosen_cases(["publish", "drain", "steady", "idle", "held", *streams, "limits", "flow"])
    results = await run(
        server,
        cases,
        chosen_systems(["notifyq", "limit"]),
        TINY,
        lambda what, step, steps: said.append(f"{step + 1} of {steps}: {what}"),
        kept.append,
    )
    assert not results.not_run
    assert kept == [results]
    assert said[-1] == "12 of 12: round 1 of 1, flow: notifyq"
    assert {sample.case for sample in results.samples} == {case.name for case in cases}
    assert {sample.system for sample in results.samples if sample.case == "publish"} == {
        "notifyq", "notifyq publish()", "bare INSERT",
    }  # fmt: skip
    published = {sample.system for sample in results.samples if sample.case == "stream-publish"}
    assert published == {"notifyq", "notifyq publish()", "notifyq, read as seldom as pgq"}
    flow = [sample for sample in results.samples if sample.case == "flow"]
    assert {sample.system for sample in flow} >= {"notifyq", "notifyq, fair", "notifyq, rate"}
    assert {sample.variant for sample in flow} == {"100 keys, 2 sessions", "1500 keys, 2 sessions"}
    assert all(sample.values["server_cpu"] > 0 for sample in flow)
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
