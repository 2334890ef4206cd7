"""Lakes: only files in the list of PostgreSQL are part of it."""

from __future__ import annotations

import errno
import json
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("psycopg", reason="the extra `spark` is not installed")

from notifyq.errors import LakeError  # noqa: E402
from notifyq.spark.connection import connect  # noqa: E402
from notifyq.spark.lake import lake as lake_module  # noqa: E402
from notifyq.spark.lake.files import FileWriter, encoded  # noqa: E402
from notifyq.spark.lake.lake import ARCHIVE_SCHEMA, Lake  # noqa: E402
from notifyq.spark.lake.storage import LocalStorage  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

    from notifyq.spark.lake.files import WrittenFile

DAY = date(2026, 3, 1)


def written(lake: Lake, ids: list[int], queue: str = "billing", **columns: object) -> WrittenFile:
    rows = [{"id": id_, "archived_at": datetime(2026, 3, 1, tzinfo=UTC)} for id_ in ids]
    schema = pa.schema([field for field in ARCHIVE_SCHEMA if field.name not in columns])
    with FileWriter(lake.home, "archive", schema, day=DAY, queue=queue) as file:
        file.write(pa.Table.from_pylist(rows, schema=schema))
        return file.close()


def test_a_lake_has_the_files_that_were_committed_and_no_others(
    database: str, tmp_path: Path
) -> None:
    lake = Lake.create(database, tmp_path / "lake")
    kept, lost = written(lake, [1, 2]), written(lake, [3])
    with connect(database) as session:
        assert lake.commit(session, [kept]) is not None
    assert (tmp_path / "lake" / lost.path).exists()
    [file] = Lake(database, tmp_path / "lake").files()
    assert (file.path, file.rows, file.first_id, file.last_id) == (kept.path, 2, 1, 2)
    table = lake.dataset().to_table()
    assert table.column("id").to_pylist() == [1, 2]
    assert table.column("queue").to_pylist() == ["billing"] * 2
    assert table.column("day").to_pylist() == [DAY] * 2


def test_a_batch_with_a_known_key_does_nothing(database: str, tmp_path: Path) -> None:
    lake = Lake.create(database, tmp_path / "lake")
    with connect(database) as session:
        first = lake.commit(session, [written(lake, [1])], dataset="stream_orders", key="q/1")
        second = lake.commit(session, [written(lake, [1])], dataset="stream_orders", key="q/1")
    assert first is not None
    assert second is None
    assert len(lake.files("stream_orders")) == 1
    assert lake.files() == []


def test_files_are_replaced_at_once(database: str, tmp_path: Path) -> None:
    lake = Lake.create(database, tmp_path / "lake")
    with connect(database) as session:
        lake.commit(session, [written(lake, [1]), written(lake, [2])])
        lake.commit(session, [written(lake, [1, 2])], removed=[file.id for file in lake.files()])
    [file] = lake.files()
    assert file.rows == 2


def test_a_column_that_an_older_file_lacks_is_null(database: str, tmp_path: Path) -> None:
    lake = Lake.create(database, tmp_path / "lake")
    with connect(database) as session:
        lake.commit(session, [written(lake, [1], subscriber=None), written(lake, [2])])
    table = lake.dataset().to_table(columns=["id", "subscriber"])
    assert sorted(table.column("id").to_pylist()) == [1, 2]
    assert table.column("subscriber").null_count == 2


@pytest.mark.parametrize("queue", ["a/b=c %", "..", "__HIVE_DEFAULT_PARTITION__", "ä" * 100, "~"])
def test_any_queue_has_a_folder_of_its_own(database: str, tmp_path: Path, queue: str) -> None:
    assert len(f"queue={encoded(queue)}") < 255
    lake = Lake.create(database, tmp_path / "lake")
    with connect(database) as session:
        lake.commit(session, [written(lake, [1], queue)])
    assert lake.dataset().to_table().column("queue").to_pylist() == [queue]


def test_folders_of_no_lake_of_this_database_are_refused(database: str, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    with pytest.raises(LakeError, match="is not a lake"):
        Lake(database, folder)
    folder.mkdir()
    (folder / "mine.txt").write_text("")
    with pytest.raises(LakeError, match="is not empty, and not a lake"):
        Lake.create(database, folder)
    (folder / "_notifyq.json").write_text(json.dumps({"format": 1, "lake": "another"}))
    with pytest.raises(LakeError, match="belongs to another database"):
        Lake.create(database, folder)
    (folder / "_notifyq.json").write_text(json.dumps({"format": 2, "lake": "another"}))
    with pytest.raises(LakeError, match="a lake of format 2"):
        Lake.create(database, folder)
    (folder / "_notifyq.json").write_text("{")
    with pytest.raises(LakeError, match="is damaged"):
        Lake.create(database, folder)


def test_who_fails_does_not_forget_the_lake_of_another(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    listed, write = lake_module._listed, LocalStorage.write
    me = threading.current_thread()

    with ThreadPoolExecutor(1) as pool, connect(database) as session:
        others: list[Future[Lake]] = []

        def is_waiting() -> bool:
            waiting = session.execute(
                "select from pg_locks where locktype = 'advisory' and not granted "
                "and database = (select oid from pg_database where datname = current_database())"
            )
            return bool(waiting.fetchall())

        def late(*given: Any) -> Any:
            found = listed(*given)
            if threading.current_thread() is me:
                others.append(pool.submit(Lake.create, database, folder))
                until = time.monotonic() + 60
                while not (others[0].done() or is_waiting()):
                    assert time.monotonic() < until
                    time.sleep(0.01)
            return found

        def refuse(*given: Any) -> None:
            if threading.current_thread() is me:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(*given)

        monkeypatch.setattr(lake_module, "_listed", late)
        monkeypatch.setattr(LocalStorage, "write", refuse)
        with pytest.raises(OSError, match="No space left"):
            Lake.create(database, folder)
        other = others[0].result()
    assert Lake(database, folder).id == other.id


def test_a_mark_that_was_written_though_its_write_failed_keeps_its_lake(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = LocalStorage.write

    def fail(*given: Any) -> None:
        write(*given)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "write", fail)
        with pytest.raises(OSError, match="Input/output"):
            Lake.create(database, tmp_path / "lake")
    assert Lake.create(database, tmp_path / "lake").files() == []
