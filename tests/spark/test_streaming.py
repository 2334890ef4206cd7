"""A stream in the lake: each event once, also when a run ends anywhere or its files are gone."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from notifyq.cli import main as cli
from notifyq.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    LakeChangedError,
    LakeError,
    NotifyqError,
    StreamNotFoundError,
)
from notifyq.spark import streaming
from notifyq.spark.connection import connect, opened
from notifyq.spark.engine import LocalEngine, SparkEngine
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.lake import Lake
from notifyq.spark.streaming import stream_to_lake, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLE = "events_orders"


@pytest.fixture
def folder(database: str, tmp_path: Path) -> Path:
    with closing(connect(database)) as session:
        session.execute("select messages.create_stream('orders')")
    return tmp_path / "lake"


def publish(dsn: str, number: int, stream: str = "orders") -> None:
    with closing(connect(dsn)) as session:
        session.execute(
            "select messages.publish_many(%s, array_agg(to_jsonb(n))) "
            "from generate_series(1, %s) as n",
            (stream, number),
        )


def published(dsn: str) -> list[int]:
    with closing(connect(dsn)) as session:
        found = session.execute("select id from messages.event order by id")
        return [number for (number,) in found]


def carried(dsn: str, folder: Path) -> list[int]:
    """Return the events in the lake; the Delta table has the same."""
    listed = Lake(dsn, folder).dataset(TABLE).to_table(columns=["id"])["id"].to_pylist()
    mirror = pa.table(DeltaTable(folder / TABLE).scan(columns=["id"]))["id"].to_pylist()
    assert sorted(listed) == sorted(mirror)
    return sorted(listed)


def test_each_event_is_in_the_lake_once(database: str, folder: Path) -> None:
    batches: list[int] = []
    publish(database, 10)
    for more in (10, 5, 0):
        done = stream_to_lake(
            database,
            folder,
            "orders",
            once=True,
            rows=4,
            on_batch=lambda _, rows: batches.append(rows),
        )
        assert done.rows == more
        assert carried(database, folder) == published(database)
        if more == 10:
            publish(database, 5)
    assert batches == [4, 4, 2, 4, 1]
    found = {str(path.relative_to(folder)) for path in folder.rglob("part-*.parquet")}
    assert found == {file.path for file in Lake(database, folder).files(TABLE)}


def test_executors_carry_events(spark: Any, database: str, folder: Path) -> None:
    publish(database, 10)
    done = stream_to_lake(database, folder, "orders", once=True, engine=SparkEngine(spark))
    assert done.rows == 10
    assert carried(database, folder) == published(database)


def test_the_position_is_in_the_database_alone(database: str, folder: Path) -> None:
    publish(database, 10)
    stream_to_lake(database, folder, "orders", once=True)
    assert {it.name for it in folder.iterdir()} == {"_notifyq.json", TABLE}
    shutil.rmtree(folder / TABLE / "_delta_log")
    publish(database, 3)
    assert stream_to_lake(database, folder, "orders", once=True).rows == 3
    assert carried(database, folder) == published(database)


@pytest.mark.parametrize("at", ["work", "commit", "mirror"])
def test_a_run_that_ends_anywhere_loses_and_doubles_nothing(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    publish(database, 10)

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("lost")

    class Failing(LocalEngine):
        def run(self, *given: Any, **options: Any) -> Any:
            super().run(*given, **options)
            fail()

    with monkeypatch.context() as patch:
        if at == "commit":
            patch.setattr(Lake, "commit", fail)
        elif at == "mirror":
            patch.setattr(mirrors, "follow", lambda it, _: fail() if it.tables() else None)
        engine = Failing() if at == "work" else LocalEngine()
        with pytest.raises(RuntimeError, match="lost"):
            stream_to_lake(database, folder, "orders", once=True, engine=engine)
    left = 10 if at == "mirror" else 0
    assert len(list(folder.rglob("part-*.parquet"))) == (1 if left else 0)
    assert stream_to_lake(database, folder, "orders", once=True).rows == 10 - left
    assert carried(database, folder) == published(database)


def test_of_two_runs_at_once_one_is_refused(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(database, 10)
    commit = streaming._Run._commit

    def late(*given: Any) -> None:
        monkeypatch.setattr(streaming._Run, "_commit", commit)
        stream_to_lake(database, folder, "orders", once=True)
        commit(*given)

    monkeypatch.setattr(streaming._Run, "_commit", late)
    with pytest.raises(LakeChangedError, match="written by another session"):
        stream_to_lake(database, folder, "orders", once=True)
    assert carried(database, folder) == published(database)
    assert len(list(folder.rglob("part-*.parquet"))) == 1


def test_files_stay_where_the_answer_to_the_commit_is_lost(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(database, 10)

    @contextmanager
    def lost(dsn: str, **options: Any) -> Iterator[Any]:
        with opened(dsn, **options) as session:
            yield session
        # The block of a commit has ended its transaction before.
        if options and Lake(database, folder).tables():
            raise DatabaseUnavailableError("the connection was lost: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(streaming, "opened", lost)
        with pytest.raises(DatabaseUnavailableError):
            stream_to_lake(database, folder, "orders", once=True)
    assert stream_to_lake(database, folder, "orders", once=True).rows == 0
    assert carried(database, folder) == published(database)
    assert all((folder / file.path).exists() for file in Lake(database, folder).files(TABLE))


def test_it_follows_until_it_is_stopped(database: str, folder: Path) -> None:
    stop = threading.Event()
    batches: list[int] = []

    def note(_: int, rows: int) -> None:
        batches.append(rows)
        if len(batches) == 1:
            publish(database, 5)
        else:
            stop.set()

    publish(database, 10)
    done = stream_to_lake(database, folder, "orders", every=0.01, on_batch=note, stop=stop)
    assert (done.rows, batches) == (15, [10, 5])


def test_a_table_belongs_to_its_stream(database: str, folder: Path) -> None:
    with closing(connect(database)) as session:
        session.execute("select messages.create_stream('others')")
    publish(database, 10)
    stream_to_lake(database, folder, "orders", once=True)
    with pytest.raises(ConfigurationError, match="has the events of stream 'orders'"):
        stream_to_lake(database, folder, "others", table=TABLE, once=True)
    with closing(connect(database)) as session:
        Lake(database, folder).commit(session, [], dataset="mine")
    with pytest.raises(ConfigurationError, match="was not written by"):
        stream_to_lake(database, folder, "others", table="mine", once=True)
    assert table_of("Orders / EU") == "events_orders___eu"
    with pytest.raises(ConfigurationError, match="belongs to `notifyq spark export`"):
        stream_to_lake(database, folder, "orders", table="archive")


def test_events_that_were_dropped_before_are_an_error(database: str, folder: Path) -> None:
    publish(database, 10)
    stream_to_lake(database, folder, "orders", once=True)
    with closing(connect(database)) as session:
        session.execute("select messages.drop_stream('orders')")
        session.execute("select messages.create_stream('orders')")
    with pytest.raises(NotifyqError, match=r"dropped by retention.*another table"):
        stream_to_lake(database, folder, "orders", once=True)


def test_an_unknown_stream_is_refused_before_anything_starts(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(StreamNotFoundError, match="there is no stream 'ordres'"):
        stream_to_lake(database, tmp_path / "lake", "ordres", once=True)
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    monkeypatch.setattr("notifyq.spark.session.session", lambda *_: pytest.fail("Spark started"))
    words = ["spark", "stream", "ordres", "--lake", str(tmp_path / "lake"), "--engine", "spark"]
    assert cli._invoke(words, debug=False) == 1
    assert "there is no stream 'ordres'" in capfd.readouterr().err
    assert not (tmp_path / "lake").exists()


def test_the_command_carries_events(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    publish(database, 10)
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    words = ["spark", "stream", "orders", "--lake", str(folder), "--once"]
    assert cli._invoke(words, debug=False) == 0
    assert "10 events of orders" in capfd.readouterr().out
    assert carried(database, folder) == published(database)


def test_a_change_of_another_engine_is_refused(database: str, folder: Path) -> None:
    publish(database, 10)
    stream_to_lake(database, folder, "orders", once=True)
    DeltaTable(folder / TABLE).delete("id > 3")
    publish(database, 10)
    with pytest.raises(LakeError, match="another program"):
        stream_to_lake(database, folder, "orders", once=True)
    assert Lake(database, folder).dataset(TABLE).count_rows() == 10
