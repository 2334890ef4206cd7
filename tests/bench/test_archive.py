"""A tiny run over two archives: every statement runs, and a finish costs the same in both."""

from __future__ import annotations

import pytest

from bench.archive import measure


@pytest.mark.timeout(120)
async def test_every_statement_has_a_cost_in_both_archives(server: str) -> None:
    costs = await measure(server, rows=40_000, days=4, runs=1)
    assert {"ls", "show, old", "finish", "maintenance", "charts of 24 h, all"} <= set(costs)
    assert {len(both) for both in costs.values()} == {2}
    (_, small), (_, large) = costs["finish"]
    assert small > 0
    assert large < 2 * small
