"""Each pipeline, killed: `tests/spark/kill.py` does it for longer, and kills the server, too."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from spark import kill
from spark.killed import ALL
from spark.killing import working


@pytest.mark.parametrize("name", [it.name for it in ALL.values() if not it.wants_spark])
def test_a_process_that_is_killed_loses_and_doubles_nothing(
    database: str, tmp_path: Path, name: str
) -> None:
    case = kill.Case({name: database}, "local", tmp_path)
    try:
        [result] = case.run("driver", 1, print)
    finally:
        case.end()
    assert not result.failure


@pytest.mark.parametrize("name", [it.name for it in ALL.values() if it.has_workers])
def test_a_worker_of_spark_that_is_killed_loses_and_doubles_nothing(
    spark: Any, database: str, tmp_path: Path, name: str
) -> None:
    pipeline = ALL[name](database, tmp_path)
    pipeline.begin()
    pipeline.prepare(0)
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(pipeline.run, 0, spark)
        running.add_done_callback(lambda _: ended.set())
        worker = working(os.getpid(), ended)
        assert worker is not None
        os.kill(worker, signal.SIGKILL)
        wait([running])
    # Spark tries a task again, or the whole fails, and is run again.
    pipeline.relax()
    pipeline.run(0, spark)
    assert pipeline.check(0)
