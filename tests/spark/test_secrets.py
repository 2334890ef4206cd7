"""The address of the database is nowhere to be seen: plans, logs, what the UI shows, errors."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from notifyq.errors import NotifyqError
from notifyq.spark import pipelines
from spark.sources import finish, publish
from support.database import Connection


def refusals(spark: Any, why: str, **options: str) -> list[str]:
    """Return Spark's errors about an unreadable table, up to the one with notifyq's error.

    Sometimes Spark sees the end of its worker before its error, and reports only that.
    """
    shown: list[str] = []
    while not shown or why not in shown[-1]:
        assert len(shown) < 5, shown
        with pytest.raises((PySparkException, Py4JError)) as caught:
            spark.read.format("notifyq").options(**options).load().count()
        shown.append(str(caught.value))
    return shown


async def test_no_file_or_log_has_the_password(
    spark: Any,
    connection: Connection,
    database: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    password = urlsplit(database).password
    assert password
    await publish(connection, 10)
    await finish(connection, 10)
    await connection.execute("select messages.create_stream('s')")
    await connection.execute("select messages.publish('s', '1')")
    frame = spark.read.format("notifyq").option("dsn", database).load()
    assert frame.where("id > 3").count() == 7
    shown = [frame._jdf.queryExecution().toString(), repr(frame)]
    frame.explain("extended")
    query = (
        spark.readStream.format("notifyq")
        .options(dsn=database, stream="s")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination()
    query.explain(True)
    shown += [str(query.lastProgress), str(query.status)]
    user = urlsplit(database).username
    wrong = database.replace(f"//{user}:", "//nobody_at_all:")
    broken = database.replace("//", "//a b ", 1)
    for dsn in (wrong, broken):
        shown += refusals(spark, "notifyq.errors", dsn=dsn)
    shown += refusals(spark, "no option 'tabel'", dsn=database, tabel="x")
    shown += capfd.readouterr()
    logs = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    files = [
        path.read_text(encoding="utf-8", errors="replace")
        for folder in (logs, tmp_path)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert any("SparkListenerSQLExecutionStart" in text for text in files)
    assert not [text for text in [*shown, *files] if password in text]


async def test_the_password_is_in_nothing_that_a_pipeline_leaves(
    spark: Any,
    connection: Connection,
    database: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    password = urlsplit(database).password
    assert password
    await publish(connection, 10)
    await finish(connection, 10)
    engine = pipelines.SparkEngine(spark)
    lake, rows = tmp_path / "lake", tmp_path / "rows.jsonl"
    rows.write_text('{"n": 1}\n', "utf-8")
    wanted = pipelines.mapping("a", {}, None)
    assert pipelines.export(database, lake, engine=engine).rows == 10
    assert pipelines.load(database, "l", [rows], wanted, engine=engine).published == 1
    again = pipelines.replay(database, "r", lake=lake, to="a", engine=engine)
    assert again.published == 10
    shown = []
    rows.write_text("no JSON\n", "utf-8")
    broken = database.replace("//", "//a b ", 1)
    for dsn, name in ((database, "m"), (broken, "n")):
        with pytest.raises(NotifyqError) as caught:
            pipelines.load(dsn, name, [rows], wanted, engine=engine)
        shown.append("".join(traceback.format_exception(caught.value)))
    shown += capfd.readouterr()
    logs = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    files = [it for folder in (logs, lake) for it in folder.rglob("*") if it.is_file()]
    shown += [it.read_text(encoding="utf-8", errors="replace") for it in files]
    assert any("SparkListenerJobStart" in text for text in shown)
    assert not [text for text in shown if password in text]
