"""A short storm over a stream: publishers, readers and maintenance are ended, cancelled and paused.

A longer one: NOTIFYQ_STORM_SECONDS=600 NOTIFYQ_STORM_SEED=7 pytest --timeout 0 this file.
"""

from __future__ import annotations

import os

import pytest

from concurrency.storm import Storm

SECONDS = float(os.environ.get("NOTIFYQ_STORM_SECONDS", "1.5"))
SEED = int(os.environ.get("NOTIFYQ_STORM_SEED", "1"))


@pytest.mark.timeout(120)
async def test_each_committed_event_is_finished_once(database: str) -> None:
    storm = Storm(database, SEED)
    await storm.run(SECONDS)
    assert not await storm.wrong()
    assert storm.counts["maintenance"]
    assert storm.counts["batches"]
