"""Spark Connect: a client without a SparkContext, and a server that it starts by itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notifyq.spark.connection import connect
from spark.archived import archive

pytestmark = [
    pytest.mark.skipif(
        any(
            importlib.util.find_spec(name) is None
            for name in ("google.rpc", "grpc", "grpc_status", "zstandard")
        ),
        reason="the client of Spark Connect needs pyspark[connect]",
    ),
    pytest.mark.timeout(240),
]

CLIENT = """
import json, sys
from notifyq.errors import LakeError
from notifyq.spark import pipelines
from notifyq.spark.source.source import register

dsn, folder = sys.argv[1:]
fast = {"spark.sql.codegen.wholeStage": "false", "spark.sql.shuffle.partitions": "2"}
spark = pipelines.session("connect", conf=fast)
engine = pipelines.SparkEngine(spark)
seen = []
found = {"class": type(spark).__module__, "slots": engine.slots}
found["zone"] = spark.conf.get("spark.sql.session.timeZone")
found["export"] = pipelines.export(dsn, folder, engine=engine, on_progress=seen.append).rows
found["progress"] = seen[-1]
found["rollup"] = pipelines.rollup(dsn, folder, engine=engine).messages
found["stream"] = pipelines.stream_to_lake(dsn, folder, "orders", engine=engine, once=True).rows
found["handled"] = pipelines.handle_queue(spark, dsn, "work", str).succeeded
found["frame"] = pipelines.Lake(dsn, folder).frame(spark).count()
register(spark)
found["read"] = spark.read.format("notifyq").option("dsn", dsn).load().count()
try:
    engine.run([1], lambda _: pipelines.Lake(dsn, folder + "x"))
except LakeError as error:
    found["error"] = str(error)
print(json.dumps(found))
spark.stop()
"""


def test_all_pipelines_run_with_spark_connect(
    spark_java: None, database: str, tmp_path: Path
) -> None:
    with closing(connect(database)) as session:
        archive(session, 50)
        session.execute("select messages.create_stream('orders')")
        session.execute("select messages.create_queue('work')")
        for name in ("orders", "work"):
            session.execute(
                "select messages.publish_many(%s, array_agg(to_jsonb(n))) "
                "from generate_series(1, 10) as n",
                (name,),
            )
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, database, str(tmp_path / "lake")],
        env={**os.environ, "SPARK_REMOTE": "local[2]"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("class").startswith("pyspark.sql.connect")
    assert "is not a lake" in found.pop("error")
    assert found == {
        "slots": 2,
        "zone": "UTC",
        "export": 50,
        "progress": 50,
        "rollup": 50,
        "stream": 10,
        "handled": 10,
        "frame": 50,
        "read": 60,
    }
