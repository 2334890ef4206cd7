"""Lakes in a store: the same rows once each, whatever the store does, and no credentials left."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import uuid
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import pytest
from deltalake import DeltaTable

from docs.pages import PAGES, blocks
from notifyq.archive.forget import Wanted
from notifyq.cli import main as cli
from notifyq.errors import ConfigurationError, LakeError
from notifyq.spark import pipelines
from notifyq.spark.connection import connect
from notifyq.spark.lake import iceberg, mark
from notifyq.spark.lake.files import FileWriter
from notifyq.spark.lake.forget import forget
from notifyq.spark.lake.lake import ARCHIVE_SCHEMA, Lake
from notifyq.spark.lake.storage import storage_at
from notifyq.spark.publish.history import lake_counts
from notifyq.spark.source.lakes import lake_options
from spark.archived import archive
from spark.objects import ENVIRONMENT, Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from psycopg import Connection

pytest.importorskip("moto", reason="the extra `dev` is not installed")

SECRET = ENVIRONMENT["AWS_SECRET_ACCESS_KEY"]


@pytest.fixture(scope="module")
def running() -> Iterator[Store]:
    store = Store()
    yield store
    store.end()


@pytest.fixture
def store(running: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Give a store that the environment alone describes."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": running.url}.items():
        monkeypatch.setenv(name, value)
    yield running
    running.break_("")


@pytest.fixture
def lake(store: Store) -> str:
    bucket = f"lake-{uuid.uuid4()}"
    store.create_bucket(bucket)
    return f"s3://{bucket}/notifyq"


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        yield opened


def ids(dsn: str, lake: str) -> list[int]:
    return sorted(Lake(dsn, lake).dataset().to_table(columns=["id"])["id"].to_pylist())


def mirrored(lake: str) -> list[int]:
    table = DeltaTable(f"{lake}/archive", storage_options=storage_at(lake).delta_options)
    return sorted(pa.table(table.scan(columns=["id"]))["id"].to_pylist())


def command(lake: str, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = cli._invoke(["spark", "export", "--lake", lake, *words], debug=False)
    return code, capfd.readouterr().err


def test_each_row_is_exported_once_and_read_by_all(
    database: str, session: Connection[Any], lake: str
) -> None:
    queues = ("billing", "a/b=c %", "ä")
    archive(session, 30, queues=queues)
    session.execute("select notifyq.make_partitions()")
    assert pipelines.export(database, lake).rows == 30
    archive(session, 12, first=30, queues=queues)
    assert pipelines.export(database, lake).rows == 12
    assert pipelines.export(database, lake).rows == 0
    every = list(range(1, 43))
    assert ids(database, lake) == mirrored(lake) == every
    assert set(Lake(database, lake).dataset().to_table()["queue"].to_pylist()) == set(queues)
    assert pipelines.verify(database, lake) == 6
    assert pipelines.tidy(database, lake, least_files=2).replaced == 6
    assert ids(database, lake) == mirrored(lake) == every
    [[location]] = session.execute("select location from notifyq.lake").fetchall()
    assert location == lake
    assert [it.rows for it in pipelines.prune(database, lake).dropped] == [42]


def test_the_other_pipelines_work(database: str, session: Connection[Any], lake: str) -> None:
    archive(session, 40)
    session.execute("update messages.message_archive set key = 'k' where id <= 5")
    pipelines.export(database, lake)
    assert pipelines.rollup(database, lake).messages == 40
    assert len(Lake(database, lake).files("rollup")) == 1
    assert sum(it.messages for it in lake_counts(database, lake, pipelines.Choice())) == 40
    session.execute("select messages.create_queue('again')")
    assert pipelines.replay(database, "r", lake=lake, to="again").published == 40
    assert forget(database, lake, Wanted("k", None, None)).rows == 5
    assert ids(database, lake) == mirrored(lake) == list(range(6, 41))


def test_a_killed_export_is_done_once_by_the_next(
    database: str, session: Connection[Any], store: Store, lake: str, tmp_path: Path
) -> None:
    archive(session, 10)
    pipelines.export(database, lake)
    archive(session, 20, first=10, queues=("a", "b", "c", "d"))
    store.break_("stall", method="PUT", path="part-", after=2)
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "notifyq", "spark", "export", "--lake", lake],
            env={**os.environ, "NOTIFYQ_DSN": database},
            stdout=output,
            stderr=output,
        )
        store.await_stall()
        process.send_signal(signal.SIGKILL)
        process.wait()
    store.break_("")
    assert ids(database, lake) == list(range(1, 11))
    assert pipelines.export(database, lake).rows == 20
    assert ids(database, lake) == mirrored(lake) == list(range(1, 31))
    assert pipelines.verify(database, lake) == 6
    # It left complete objects that are not listed.
    left = len(storage_at(lake).data("archive")) - 6
    assert left >= 2
    assert pipelines.tidy(database, lake).deleted == 0
    assert pipelines.tidy(database, lake, older_than=timedelta(0)).deleted == left
    assert ids(database, lake) == list(range(1, 31))


@pytest.mark.parametrize(
    ("kind", "method", "path"),
    [
        ("500", "PUT", "part-"),
        ("403", "PUT", "part-"),
        ("stall", "PUT", "part-"),
        ("500", "GET", ""),
        ("403", "GET", ""),
        ("403", "HEAD", ""),
    ],
)
def test_a_store_that_fails_is_one_line_and_commits_nothing(
    database: str,
    session: Connection[Any],
    store: Store,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    method: str,
    path: str,
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    archive(session, 10)
    pipelines.export(database, lake)
    archive(session, 10, first=10)
    [[position]] = session.execute("select position from notifyq.lake").fetchall()
    mark._seen.clear()  # as in a new process
    store.break_(kind, method=method, path=path)
    short = ["--storage-option", "timeout=1s", "--storage-option", "connect_timeout=1s"]
    code, error = command(lake, capfd, "--prune", *short)
    assert code == 1
    assert error.startswith(f"notifyq: {lake}")
    assert error.count("\n") == 1
    assert session.execute("select position from notifyq.lake").fetchall() == [(position,)]
    [[rows]] = session.execute("select count(*) from messages.message_archive").fetchall()
    assert rows == 20
    [[obstacle]] = session.execute("select obstacle from messages.lakes()").fetchall()
    # Files that cannot be written leave a lake that can be read.
    assert (obstacle is None) == (method == "PUT")
    store.break_("")
    assert pipelines.export(database, lake).rows == 10
    assert ids(database, lake) == mirrored(lake) == list(range(1, 21))
    [[obstacle]] = session.execute("select obstacle from messages.lakes()").fetchall()
    assert obstacle is None


def test_a_slow_store_is_waited_for(
    database: str, session: Connection[Any], store: Store, lake: str
) -> None:
    archive(session, 10)
    store.break_("slow")
    assert pipelines.export(database, lake).rows == 10
    assert ids(database, lake) == mirrored(lake) == list(range(1, 11))
    # One request for each small file, and two of the Delta table.
    assert store.seen("POST") == 0


def test_a_mirror_that_failed_follows_later(
    database: str, session: Connection[Any], store: Store, lake: str
) -> None:
    archive(session, 10)
    store.break_("500", method="PUT", path="_delta_log")
    with pytest.raises(LakeError, match="archive cannot be written"):
        pipelines.export(database, lake)
    assert ids(database, lake) == list(range(1, 11))
    store.break_("")
    assert pipelines.export(database, lake).rows == 0
    assert mirrored(lake) == list(range(1, 11))


def test_iceberg_tables_are_in_the_store(
    database: str, session: Connection[Any], store: Store, lake: str
) -> None:
    pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")

    def ids_of_iceberg() -> list[int]:
        opened = Lake(database, lake)
        with closing(iceberg._catalog(opened, **opened.storage.iceberg_options)) as catalog:
            table = catalog.load_table((iceberg.namespace(opened), "archive"))
            return sorted(table.scan().to_arrow()["id"].to_pylist())

    queues = ("billing", "a/b=c %", "ä")
    archive(session, 30, queues=queues)
    pipelines.export(database, lake, iceberg=True)
    archive(session, 12, first=30, queues=queues)
    store.break_("500", method="PUT", path="_iceberg")
    with pytest.raises(LakeError, match=r"_iceberg/archive cannot be written"):
        pipelines.export(database, lake)
    assert ids_of_iceberg() == list(range(1, 31))
    store.break_("")
    assert pipelines.export(database, lake).rows == 0
    assert pipelines.tidy(database, lake, least_files=2).replaced == 6
    assert ids_of_iceberg() == ids(database, lake) == list(range(1, 43))
    storage = storage_at(lake)
    selector = pyarrow.fs.FileSelector(storage.key("_iceberg/archive/metadata"))
    metadata = [it.base_name for it in storage.filesystem.get_file_info(selector)]
    assert len(metadata) > 6
    for name in metadata:
        assert SECRET.encode() not in (storage.read(f"_iceberg/archive/metadata/{name}") or b"")


def test_a_large_file_is_sent_in_parts(database: str, store: Store, lake: str) -> None:
    made = Lake.create(database, lake)
    store.break_("")
    rows = [{"id": i, "message": os.urandom(700_000).hex()} for i in range(20)]
    with FileWriter(made.home, "archive", ARCHIVE_SCHEMA) as file:
        file.write(pa.Table.from_pylist(rows, ARCHIVE_SCHEMA))
        written = file.close()
    assert store.seen("POST") >= 2
    with connect(database) as session:
        made.commit(session, [written])
    assert pipelines.verify(database, lake) == 1


def test_a_file_of_another_size_is_not_committed(database: str, lake: str) -> None:
    made = Lake.create(database, lake)
    with FileWriter(made.home, "archive", ARCHIVE_SCHEMA) as file:
        file.write(pa.Table.from_pylist([{"id": 1}], ARCHIVE_SCHEMA))
        written = file.close()
    made.storage.write(written.path, b"other")
    with connect(database) as session, pytest.raises(LakeError, match="has 5 bytes"):
        made.commit(session, [written])
    made.storage.delete(written.path)
    with connect(database) as session, pytest.raises(LakeError, match="is not there"):
        made.commit(session, [written])
    assert made.files() == []


@pytest.mark.parametrize(
    ("where", "words", "code", "text"),
    [
        ("s3://no-such-bucket/lake", [], 1, "there is no bucket no-such-bucket"),
        (
            "s3://bucket/lake",
            ["--storage-option", "AWS_ENDPOINT_URL=http://127.0.0.1:9"],
            1,
            "s3://bucket/lake/_notifyq.json cannot be read",
        ),
        ("s3a://bucket/lake", [], 2, "is a URI that cannot be a lake"),
        ("s3://key:hidden@bucket/lake", [], 2, "s3://…@bucket/lake is a URI that cannot be"),
        ("s3://bucket/lake", ["--storage-option", "AWS_REGIN=hidden"], 1, "did you mean 'AWS_REG"),
        ("s3://bucket/lake", ["--storage-option", "hidden"], 2, "is not KEY=VALUE"),
        ("s3://bucket/lake", ["--storage-option", "timeout=hidden"], 1, "TIMEOUT is no duration"),
        (
            "abfss://c@account.dfs.core.windows.net/lake",
            ["--storage-option", "AZURE_STORAGE_ACCOUNT_KEY=hidden"],
            1,
            "AZURE_STORAGE_ACCOUNT_KEY is not base64",
        ),
        ("/tmp/lake", ["--storage-option", "AWS_REGION=hidden"], 1, "is a local folder"),
    ],
)
def test_a_wrong_lake_is_one_line_and_registers_none(
    database: str,
    session: Connection[Any],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    where: str,
    words: list[str],
    code: int,
    text: str,
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    found, error = command(where, capfd, *words)
    assert found == code
    assert text in " ".join(error.replace("│", "").split())
    assert "hidden" not in error
    assert session.execute("select from notifyq.lake").fetchall() == []


def test_a_mark_that_cannot_be_written_registers_no_lake(
    database: str, session: Connection[Any], store: Store, lake: str
) -> None:
    store.break_("403", method="PUT")
    with pytest.raises(LakeError, match=r"_notifyq\.json cannot be written"):
        Lake.create(database, lake)
    assert session.execute("select from notifyq.lake").fetchall() == []


def test_options_go_before_the_environment_and_are_never_shown(
    database: str,
    session: Connection[Any],
    store: Store,
    lake: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-key")
    given = {"aws_endpoint_url": store.url, "aws_access_key_id": "k"}
    with pytest.raises(ConfigurationError, match="need each other"):
        storage_at(lake, given)
    storage = storage_at(lake, {**given, "aws_secret_access_key": SECRET})
    assert "AWS_SESSION_TOKEN" not in dict(storage.options)
    assert pickle.loads(pickle.dumps(storage)) == storage
    archive(session, 10)
    summary = pipelines.export(database, storage)
    assert summary.rows == 10
    shown = [repr(storage), repr(Lake(database, storage).home), repr(summary)]
    shown += [str(row) for row in session.execute("select * from messages.lakes()")]
    shown += [str(row) for row in session.execute("select * from messages.lake_file")]
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    words = [f"--storage-option={name}={value}" for name, value in storage.options]
    assert cli._invoke(["spark", "export", "--lake", lake, *words], debug=False) == 0
    assert cli._invoke(["forget", "--key", "x", "--yes", *words], debug=False) == 0
    shown += capfd.readouterr()
    for secret in (SECRET, "of-another-key"):
        assert not [text for text in shown if secret in text]


def test_options_of_a_read_are_checked_and_not_shown(store: Store) -> None:
    given = {"dsn": f"host=x password={SECRET}", "lake": "s3://bucket/lake"}
    with pytest.raises(ConfigurationError, match="has no option 'tabel': did you mean 'table'"):
        lake_options({**given, "tabel": "archive"})
    with pytest.raises(ConfigurationError, match="no storage option 'AWS_REGIO'"):
        lake_options({**given, "storage.aws_regio": "x"})
    with pytest.raises(ConfigurationError, match="AWS_REGION is given twice"):
        storage_at("s3://bucket/lake", {"aws_region": "x", "AWS_REGION": "y"})
    with pytest.raises(ConfigurationError, match="option since: 'today' is not a day"):
        lake_options({**given, "since": "today"})
    with pytest.raises(ConfigurationError, match="option until: a lake has files of days"):
        lake_options({**given, "until": "2027-01-31T12:00Z"})
    with pytest.raises(ConfigurationError, match="only the files of the archive"):
        lake_options({**given, "table": "rollup", "queue": "a"})
    found = lake_options({**given, "storage.aws_region": "eu-1", "columns": "id, queue"})
    assert (dict(found.storage.options)["AWS_REGION"], found.columns) == ("eu-1", ("id", "queue"))
    assert SECRET not in repr(found)


def test_spark_reads_without_libraries_of_the_store(
    database: str, session: Connection[Any], store: Store, lake: str, spark: Any
) -> None:
    archive(session, 40)
    archive(session, 20, first=100, day="2026-03-02 00:00+00")
    assert pipelines.export(database, lake, engine=pipelines.SparkEngine(spark)).rows == 60
    options = {f"storage.{name}": value for name, value in storage_at(lake).options}
    frame = spark.read.format("notifyq").options(dsn=database, lake=lake, **options).load()
    assert sorted(row.id for row in frame.select("id").collect()) == ids(database, lake)
    # Filters of one read are not those of another.
    assert [frame.where("id > 110").count(), frame.count()] == [10, 60]
    assert frame.where("id > 110").union(frame.where("id <= 110")).distinct().count() == 60
    given = {**options, "queue": "mail", "since": "2026-03-02", "until": "2026-03-03"}
    chosen = spark.read.format("notifyq").options(dsn=database, lake=lake, **given).load()
    store.break_("")
    assert {(row.id, row.queue) for row in chosen.where("id > 110").collect()} == {
        (i, "mail") for i in range(111, 121) if i % 2
    }
    assert store.seen("GET") <= 8  # the mark and one file, not all four
    narrow = Lake(database, lake).frame(spark, ["id", "status"])
    assert narrow.columns == ["id", "status"]
    assert narrow.where("status = 'failed'").count() == 40 // 7 + 20 // 7
    plan = chosen._jdf.queryExecution().toString()
    assert SECRET not in plan
    assert SECRET not in repr(chosen)


def test_the_example_of_the_page_runs(
    database: str, session: Connection[Any], lake: str, spark: Any
) -> None:
    archive(session, 10)
    session.execute("select notifyq.make_partitions()")
    given = {"spark": spark, "dsn": database, "export": pipelines.export, "Lake": Lake}
    [page] = [page for page in PAGES if page.name == "lake.md"]
    [block] = [it for it in blocks(page, "python") if "s3://" in it.text]
    # Spark has started before the variables of the test were set.
    options = {f"storage.{name}": value for name, value in storage_at(lake).options}
    text = block.text.replace(".load()", f".options(**{options!r}).load()")
    exec(text.replace("s3://bucket/lake", lake), given)
    assert given["billing"].count() == 5


async def test_events_of_a_stream(connection: Any, database: str, lake: str, spark: Any) -> None:
    await connection.execute("select messages.create_stream('orders')")
    for i in range(10):
        await connection.execute("select messages.publish('orders', $1::jsonb)", json.dumps(i))
    engine = pipelines.SparkEngine(spark)
    for found in (10, 0):
        done = pipelines.stream_to_lake(database, lake, "orders", engine=engine, once=True)
        assert done.rows == found
    frame = Lake(database, lake).frame(spark, ["key", "message"], dataset="events_orders")
    assert sorted(int(json.loads(row.message)) for row in frame.collect()) == list(range(10))
