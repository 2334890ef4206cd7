"""Export: each archived message comes into the lake once, whatever happens meanwhile."""

from __future__ import annotations

from contextlib import closing
from datetime import date
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from notifyq.errors import (
    DatabaseUnavailableError,
    ForeignPositionError,
    LakeError,
    LakeInUseError,
)
from notifyq.spark import statements
from notifyq.spark.connection import connect
from notifyq.spark.engine import LocalEngine
from notifyq.spark.lake import delta, mirrors
from notifyq.spark.lake.export import export, write_task
from notifyq.spark.lake.lake import Lake
from spark.archived import archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from psycopg import Connection


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def ids(database: str, folder: Path) -> list[int]:
    return sorted(Lake(database, folder).dataset().to_table(columns=["id"])["id"].to_pylist())


def delta_ids(folder: Path) -> list[int]:
    table = pa.table(DeltaTable(folder / "archive").scan(columns=["id"]))
    return sorted(table["id"].to_pylist())


def test_every_row_and_column_arrives(
    database: str, session: Connection[Any], folder: Path
) -> None:
    archive(session, 300)
    session.execute(
        "update messages.message_archive set result = '{\"a\": 1.50}', details = 'why', key = 'k', "
        "dedup_key = 'd', max_attempts = 3, subscriber = 's', event_id = 5, "
        "cancelled_by = 'ann' where id = 7"
    )
    summary = export(database, folder)
    assert (summary.rows, summary.files, summary.days) == (300, 2, 1)
    table = Lake(database, folder).dataset().to_table().sort_by("id").to_pylist()
    assert [row["id"] for row in table] == list(range(1, 301))
    names = [name for name in table[6] if name != "day"]
    cells = ", ".join(
        f"{name}::text" if name in {"message", "headers", "result", "status"} else name
        for name in names
    ).replace("xid", "xid::text::bigint as xid")
    expected = session.execute(
        f"select {cells} from messages.message_archive where id = 7"
    ).fetchone()
    assert tuple(table[6][name] for name in names) == expected
    assert table[6]["day"] == date(2026, 3, 1)


def test_only_what_is_new_is_exported(
    database: str, session: Connection[Any], folder: Path
) -> None:
    archive(session, 100)
    assert export(database, folder).rows == 100
    again = export(database, folder)
    assert (again.rows, again.batch, again.files) == (0, None, 0)
    archive(session, 50, first=100, day="2026-03-05 00:00+00")
    archive(session, 10, first=150)
    assert export(database, folder).rows == 60
    assert ids(database, folder) == delta_ids(folder) == list(range(1, 161))


def test_a_commit_that_comes_late_is_exported_later_and_once(
    database: str, session: Connection[Any], folder: Path
) -> None:
    with closing(connect(database)) as late:
        with late.transaction():
            archive(late, 10)
            archive(session, 10, first=10)
            assert export(database, folder).rows == 10
            archive(session, 10, first=20)
            assert export(database, folder).rows == 10
        assert export(database, folder).rows == 10
    assert export(database, folder).rows == 0
    assert ids(database, folder) == list(range(1, 31))


def test_a_large_day_is_split_by_blocks_and_read_by_nothing_else(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("notifyq.spark.lake.export._FEW", 500)
    monkeypatch.setattr("notifyq.spark.lake.export._LEAST_BLOCKS", 20)
    archive(session, 9000)
    archive(session, 300, first=9000, day="2026-03-03 00:00+00")
    session.execute("select notifyq.make_partitions()")
    seen = Tasks()
    assert export(database, folder, engine=seen).rows == 9300
    # What was never seen is read whole, however small it is.
    assert [task.by_block for task in seen.tasks] == [True] * 5
    assert ids(database, folder) == list(range(1, 9301))
    # The next window is at the end of the table.
    archive(session, 900, first=9300)
    seen = Tasks()
    assert export(database, folder, engine=seen).rows == 900
    assert ids(database, folder) == list(range(1, 10201))
    [task] = seen.tasks
    [[_, query]] = task.queries
    assert task.by_block
    # A few rows are read by an index.
    archive(session, 300, first=10200)
    few = Tasks()
    assert export(database, folder, engine=few).rows == 300
    assert [task.by_block for task in few.tasks] == [False]
    assert ids(database, folder) == list(range(1, 10501))
    with session.transaction():
        for statement in statements.under("", by_block=True)[2:]:
            session.execute(statement)
        plan = "\n".join(row[0] for row in session.execute(f"explain {query}"))
    assert "Tid Range Scan on message_archive_20260301" in plan, plan


class Tasks(LocalEngine):
    """Keeps what it was given."""

    def run(self, tasks: Any, work: Any, **options: Any) -> Any:
        self.tasks = list(tasks)
        return super().run(tasks, work, **options)


class Failing(LocalEngine):
    """Fails when the last task has written its files."""

    def run(self, tasks: Any, work: Any, **options: Any) -> Any:
        super().run(tasks, work, **options)
        raise RuntimeError("lost")


def test_a_failed_export_leaves_no_files_and_can_run_again(
    database: str, session: Connection[Any], folder: Path
) -> None:
    archive(session, 100)
    with pytest.raises(RuntimeError, match="lost"):
        export(database, folder, engine=Failing())
    assert not list((folder / "archive").rglob("*.parquet"))
    assert Lake(database, folder).files() == []
    assert not DeltaTable.is_deltatable(str(folder / "archive"))
    assert export(database, folder).rows == 100
    assert ids(database, folder) == delta_ids(folder) == list(range(1, 101))


def test_a_task_that_is_repeated_counts_once(
    database: str, session: Connection[Any], folder: Path
) -> None:
    class Twice(LocalEngine):
        def run(self, tasks: Any, work: Any, **options: Any) -> Any:
            for task in tasks:
                write_task(task)
            return super().run(tasks, work, **options)

    archive(session, 100)
    assert export(database, folder, engine=Twice()).rows == 100
    assert ids(database, folder) == delta_ids(folder) == list(range(1, 101))


def test_a_mirror_that_lags_is_brought_up_to_date(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(session, 10)
    export(database, folder)
    with monkeypatch.context() as patch:
        patch.setattr(mirrors, "follow", lambda _: 1 / 0)
        archive(session, 10, first=10)
        with pytest.raises(ZeroDivisionError):
            export(database, folder)
    assert (len(ids(database, folder)), len(delta_ids(folder))) == (20, 10)
    assert export(database, folder).rows == 0
    assert delta_ids(folder) == list(range(1, 21))


@pytest.mark.parametrize("queue", ["a/b=c %20", "__HIVE_DEFAULT_PARTITION__", "ä" * 100, "17"])
def test_any_queue_can_be_read_by_others(
    database: str, session: Connection[Any], folder: Path, queue: str
) -> None:
    archive(session, 3, queues=(queue,))
    export(database, folder)
    found = pa.table(DeltaTable(folder / "archive").scan(columns=["id", "queue", "day"]))
    assert sorted(found["id"].to_pylist()) == [1, 2, 3]
    assert found["queue"].to_pylist() == [queue] * 3


def test_a_mirror_whose_paths_were_encoded_twice_is_repaired(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(session, 3, queues=("order confirmed/EU",))
    with monkeypatch.context() as patch:
        patch.setattr(delta, "_inside", lambda path: quote(path.split("/", 1)[1]))
        export(database, folder)
    with pytest.raises(pa.ArrowInvalid, match="Failed to fetch metadata"):
        delta_ids(folder)
    mirrors.follow(Lake(database, folder), is_repair=True)
    archive(session, 3, first=3, queues=("order confirmed/EU",))
    export(database, folder)
    assert delta_ids(folder) == list(range(1, 7))


def test_days_without_a_partition_and_rows_of_no_day_arrive(
    database: str, session: Connection[Any], folder: Path
) -> None:
    archive(session, 5, day="1999-12-31 23:59:59.997+00")
    archive(session, 5, first=5, day="2031-01-01 00:00+00")
    assert export(database, folder).days == 3
    session.execute("select notifyq.make_partitions()")
    assert export(database, folder).rows == 0
    assert ids(database, folder) == list(range(1, 11))


def test_days_are_in_utc_in_any_session(
    database: str, session: Connection[Any], folder: Path
) -> None:
    name = session.info.dbname
    session.execute(f"alter database \"{name}\" set timezone = 'Asia/Tokyo'")
    archive(session, 4, day="2026-03-01 23:30+00")
    export(database, folder)
    assert {file.day for file in Lake(database, folder).files()} == {date(2026, 3, 1)}


def test_no_day_is_made_or_dropped_while_an_export_reads(
    database: str, session: Connection[Any], folder: Path
) -> None:
    class Making(LocalEngine):
        def run(self, tasks: Any, work: Any, **options: Any) -> Any:
            [[made]] = session.execute("select notifyq.make_partitions()").fetchall()
            assert made == 0
            return super().run(tasks, work, **options)

    archive(session, 10)
    assert export(database, folder, engine=Making()).rows == 10
    [[made]] = session.execute("select notifyq.make_partitions()").fetchall()
    assert made > 0


def test_one_export_at_a_time(database: str, session: Connection[Any], folder: Path) -> None:
    class Beside(LocalEngine):
        def run(self, tasks: Any, work: Any, **options: Any) -> Any:
            with pytest.raises(LakeInUseError, match=r"lake \d+ is being written by .*, process"):
                export(database, folder)
            return super().run(tasks, work, **options)

    archive(session, 10)
    assert export(database, folder, engine=Beside()).rows == 10


def test_errors_are_clear_and_leave_nothing(
    database: str, session: Connection[Any], folder: Path
) -> None:
    with pytest.raises(DatabaseUnavailableError, match="no connection") as error:
        export("postgresql://me:secret@127.0.0.1:1/none", folder)
    assert "secret" not in str(error.value)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            "update notifyq.origin set epoch = epoch + 1",
            ForeignPositionError,
            "from before this database was restored",
        ),
        ("delete from notifyq.lake_batch", LakeError, "is newer than its database"),
    ],
)
def test_a_lake_that_does_not_fit_its_database_is_refused(
    database: str, session: Connection[Any], folder: Path, change: str, error: Any, text: str
) -> None:
    archive(session, 10)
    export(database, folder)
    session.execute(change.encode())
    with pytest.raises(error, match=text):
        export(database, folder)
