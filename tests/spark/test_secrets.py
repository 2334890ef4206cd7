"""The address of the database is nowhere to be seen: plans, logs, what the UI shows, errors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from spark.sources import finish, publish

if TYPE_CHECKING:
    from database import Connection


async def test_the_password_is_nowhere(
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
        with pytest.raises(Exception, match=r"notifyq\.errors") as caught:
            spark.read.format("notifyq").option("dsn", dsn).load().count()
        shown.append(str(caught.value))
    with pytest.raises(Exception, match="no option 'tabel'") as caught:
        spark.read.format("notifyq").options(dsn=database, tabel="x").load()
    shown += [str(caught.value), *capfd.readouterr()]
    logs = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    files = [
        path.read_text(encoding="utf-8", errors="replace")
        for folder in (logs, tmp_path)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert any("SparkListenerSQLExecutionStart" in text for text in files)
    assert not [text for text in [*shown, *files] if password in text]
