"""A short run of `python -m bench.held`: every call is measured, and dead rows stay."""

from __future__ import annotations

import pytest

from bench.held import measure, table


@pytest.mark.timeout(120)
async def test_dead_rows_stay_while_the_snapshot_is_held(server: str) -> None:
    found = await measure(server, minutes=1, per_minute=5_000)
    assert list(found) == [0, 1]
    assert {"publish 100", "claim of 100", "claim of 100, full scan", "reap"} <= set(found[0])
    assert found[1]["table, MB"] > 2 * found[0]["table, MB"]
    header, _, *rows = table(found).splitlines()
    assert header == "| minutes held | 0 | 1 |"
    assert len(rows) == len(found[0])
