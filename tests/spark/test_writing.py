"""Publishing by the data source `notifyq`: all of a load once, whatever becomes of its tasks."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from docs.pages import blocks
from notifyq.errors import DatabaseUnavailableError
from notifyq.spark.publish import staging
from notifyq.spark.session import session
from notifyq.spark.source.frames import Shape
from notifyq.spark.source.writer import BatchWriter, WriteOptions
from support.database import ROOT, Connection, Notifications

LIVE = "select queue, message::text, type, key, priority from messages.message order by id"


def write(frame: Any, dsn: str, **options: str) -> None:
    """Publish a DataFrame."""
    frame.write.format("notifyq").options(dsn=dsn, **options).mode("append").save()


async def live(connection: Connection) -> int:
    """Count live messages."""
    found: int = await connection.fetchval("select count(*) from messages.message")
    return found


async def test_a_load_is_published_once(
    spark: Any, connection: Connection, database: str, notifications: Notifications
) -> None:
    frame = spark.range(1000, numPartitions=3).selectExpr(
        "struct(id, cast(id as decimal(10, 2)) as price, array(null, id) as list) as message",
        "cast(id as string) as key",
        "'t' as type",
        "cast(id % 10 as int) as priority",
        "map('from', 'spark') as headers",
    )
    write(frame, database, load="j", queue="default")
    rows = await connection.fetch(
        "select message, type, priority, headers from messages.message where key = '17'"
    )
    assert [tuple(row) for row in rows] == [
        ({"id": 17, "price": 17.0, "list": [None, 17]}, "t", 7, {"from": "spark"})
    ]
    assert [notification.queue for notification in await notifications.received()] == ["default"]
    write(frame, database, load="j", queue="default")
    assert await live(connection) == 1000
    assert not await notifications.received()


async def test_a_thread_that_gets_the_active_session_publishes(
    spark: Any, connection: Connection, database: str
) -> None:
    def publish() -> None:
        assert session() is spark
        write(spark.range(3).selectExpr("'{}' as message"), database, load="t", queue="default")

    await asyncio.to_thread(publish)
    assert await live(connection) == 3


async def test_rows_may_name_their_queue(spark: Any, connection: Connection, database: str) -> None:
    await connection.execute("select messages.create_stream('s'), messages.create_queue('a')")
    frame = spark.range(10).selectExpr(
        "if(id % 2 = 0, 's', 'a') as queue", "cast(id as string) as message"
    )
    write(frame, database, load="j")
    assert await live(connection) == 5
    assert await connection.fetchval("select count(*) from messages.event") == 5


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        (["'1' as message"], {"queue": "default"}, "option load is missing"),
        (["'1' as message"], {"load": "j"}, "exactly once"),
        (["'1' as message"], {"load": "j", "queue": "gone"}, "gone"),
        (["'1' as message"], {"load": "j", "queue": "a", "qeue": "b"}, "did you mean 'queue'"),
        (["id as message"], {"load": "j", "queue": "default"}, "message is bigint"),
        (["'1' as mesage"], {"load": "j", "queue": "default"}, "did you mean 'message'"),
        (["'1' as key"], {"load": "j", "queue": "default"}, "column message is missing"),
        (
            ["'1' as message", "'x' as priority"],
            {"load": "j", "queue": "default"},
            "column priority is string",
        ),
    ],
)
async def test_a_wrong_write_fails_before_any_task(
    spark: Any, database: str, columns: list[str], options: dict[str, str], why: str
) -> None:
    with pytest.raises(Exception, match=why) as caught:
        write(spark.range(3).selectExpr(*columns), database, **options)
    assert database not in str(caught.value)


def counting(path: str) -> Any:
    """Give a function for mapInArrow that leaves a file for each attempt of a task."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        tempfile.mkstemp(dir=path)
        yield from batches

    return rows


WRONG = [
    (["if(id = 7, '{broken', '1') as message"], r"invalid input syntax.*{broken"),
    (["if(id = 7, null, '1') as message"], r"column message has a null.*\{'key': '7'\}"),
    (["struct(if(id = 7, double('nan'), 1) as x) as message"], r"message: nan is.*'key': '7'"),
    (["if(id = 7, decode(X'00', 'utf-8'), '1') as message"], r"message: it has a NUL.*'key': '7'"),
    (["struct(timestamp_seconds(if(id = 7, 1e12, 0))) as message"], r"date.*range.*'key': '7'"),
    (["'1' as message", "if(id = 7, 10000000000, id) as priority"], r"priority: .*'key': '7'"),
    (["'1' as message", "if(id = 7, 'gone', 'default') as queue"], r"there is no queue 'gone'"),
]


@pytest.mark.parametrize(("columns", "why"), WRONG)
async def test_a_row_that_cannot_be_published_is_named_and_not_retried(
    spark: Any, connection: Connection, database: str, tmp_path: Path, columns: list[str], why: str
) -> None:
    frame = spark.range(10, numPartitions=2).mapInArrow(counting(str(tmp_path)), "id bigint")
    frame = frame.selectExpr("cast(id as string) as key", *columns)
    target = {} if "queue" in frame.columns else {"queue": "default"}
    with pytest.raises(Exception, match=f"nothing was published.*{why}"):
        write(frame, database, load="j", **target)
    assert len(list(tmp_path.iterdir())) == 2
    assert await live(connection) == 0


async def test_a_batch_of_a_stream_that_cannot_be_published_ends_the_query(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "in")
    spark.range(10).write.parquet(folder)
    stream = spark.readStream.schema("id bigint").parquet(folder)
    frame = stream.selectExpr("if(id = 7, null, '1') as message", "cast(id as string) as key")
    query = (
        frame.writeStream.format("notifyq")
        .options(dsn=database, queue="default", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match=r"nothing was published.*has a null.*'key': '7'"):
        query.awaitTermination()
    assert await live(connection) == 0


async def test_a_lost_connection_fails_the_task(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(("message",), frozenset(), "default")
    writer = BatchWriter(WriteOptions(database, "j"), shape)
    monkeypatch.setattr(staging, "connect_arrow", refuse)
    batch = pa.RecordBatch.from_pydict({"message": ["1"]})
    with pytest.raises(DatabaseUnavailableError):
        writer.write(iter([batch]))


def refuse(_: str) -> None:
    raise DatabaseUnavailableError("no connection")


def failing_once(mark: str, how: str) -> Any:
    """Give a function for mapInArrow that fails after all rows are staged, in the first attempt."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        yield from batches
        if not os.path.exists(mark):  # noqa: PTH110 - on executors
            open(mark, "w").close()  # noqa: PTH123
            if how == "exit":
                os._exit(9)
            raise RuntimeError("on purpose")

    return rows


@pytest.mark.parametrize("how", ["raise", "exit"])
async def test_a_task_that_fails_is_published_once(
    spark: Any, connection: Connection, database: str, tmp_path: Path, how: str
) -> None:
    frame = spark.range(2000, numPartitions=2).selectExpr("cast(id as string) as message")
    frame = frame.mapInArrow(failing_once(str(tmp_path / "mark"), how), frame.schema)
    write(frame, database, load="j", queue="default")
    assert (tmp_path / "mark").exists()
    assert await connection.fetchval(
        "select (count(*), count(distinct message::text)) = (2000, 2000) from messages.message"
    )


async def test_each_batch_of_a_stream_is_published_once(
    spark: Any, connection: Connection, database: str, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    for i in range(3):
        spark.range(i * 10, i * 10 + 10).write.mode("append").parquet(str(folder))

    def run(checkpoint: str = "checkpoint") -> None:
        stream = spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 2)
        frame = stream.parquet(str(folder)).selectExpr("cast(id as string) as message")
        query = (
            frame.writeStream.format("notifyq")
            .options(dsn=database, queue="default", checkpointLocation=str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert await live(connection) == 30
    # As after a crash between the commit and the note of it: the last batch is run again.
    commits = sorted((tmp_path / "checkpoint/commits").glob("[0-9]*"), key=lambda it: int(it.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    run()
    assert await live(connection) == 30
    spark.range(30, 40).write.mode("append").parquet(str(folder))
    run()
    assert await live(connection) == 40
    # Another checkpoint is another query, whose batches are none of the first one's.
    run("other")
    assert await live(connection) == 80


async def test_the_address_is_in_no_plan(
    spark: Any, connection: Connection, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = psycopg.conninfo.make_conninfo(database, application_name="sEcReT")
    frame = spark.range(3).selectExpr("cast(id as string) as message")
    write(frame, secret, load="j", queue="default")
    frame.explain(extended=True)
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    plans = [executions.apply(i).physicalPlanDescription() for i in range(executions.size())]
    assert plans
    assert not any("sEcReT" in plan for plan in plans)
    assert "sEcReT" not in "".join(capsys.readouterr())
    assert await live(connection) == 3


async def test_the_example_runs(spark: Any, connection: Connection, database: str) -> None:
    await connection.execute("select messages.create_queue('billing')")
    page = ROOT / "docs/integrations/loads.md"
    [block] = blocks(page, "python")
    exec(
        compile("\n" * (block.line - 1) + block.text, str(page), "exec"),
        {"spark": spark, "DSN": database},
    )
    assert await live(connection) == 1
