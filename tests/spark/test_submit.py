"""Pipelines by the spark-submit that comes with PySpark."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from notifyq.cli.spark.common import make_engine
from notifyq.spark import session
from support.database import Connection


def located() -> str:
    command = [sys.executable, "-m", "notifyq.spark.submit"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.timeout(240)
async def test_spark_submit_writes_a_stream_to_a_lake(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    await connection.execute("select messages.create_stream('orders')")
    await connection.execute("select messages.publish('orders', '1')")
    command = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--master", "local[1]"),
        *("--conf", "spark.ui.enabled=false", "--driver-memory", "700m"),
        *("--driver-java-options", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"),
        *(located(), "stream", "orders", "--lake", str(tmp_path / "lake"), "--once", "--json"),
    ]
    # Without it driver and workers compile Spark's archive of itself, each anew.
    python = session._python()
    variables = os.environ | {"NOTIFYQ_DSN": database, "PYSPARK_PYTHON": python}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert '{"batch":1,"events":1}' in done.stdout
    assert database not in done.stdout + done.stderr


@pytest.mark.parametrize(("given", "used"), [(None, "spark"), ("local", "local")])
def test_under_spark_submit_spark_is_the_default(
    monkeypatch: pytest.MonkeyPatch, given: Literal["local"] | None, used: str
) -> None:
    monkeypatch.setattr(session, "session", lambda: "session")
    monkeypatch.setattr("notifyq.spark.engine.SparkEngine", lambda _: "spark")
    monkeypatch.setattr("notifyq.spark.engine.LocalEngine", lambda: "local")
    assert make_engine(None) == "local"
    monkeypatch.setenv(session.GATEWAY, "4711")
    assert make_engine(given) == used


def test_workers_are_forked_from_a_process_that_has_loaded_notifyq(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(session._WRAPPER % "echo")
    program.chmod(0o700)
    output = [
        subprocess.run([program, *given.split()], capture_output=True, text=True, check=True).stdout
        for given in ("-m pyspark.daemon pyspark.sql.worker.x", "-m pyspark.worker", "-c 1")
    ]
    assert output == [
        "-m notifyq.spark.daemon pyspark.sql.worker.x\n",
        "-m pyspark.worker\n",
        "-c 1\n",
    ]
