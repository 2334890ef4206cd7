"""Tidy: fewer files, the same rows, and nothing that a reader still needs goes."""

from __future__ import annotations

import os
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from notifyq.archive.forget import Wanted
from notifyq.cli import main as cli
from notifyq.errors import LakeError
from notifyq.spark.connection import connect
from notifyq.spark.lake.export import export
from notifyq.spark.lake.files import FileWriter
from notifyq.spark.lake.forget import forget
from notifyq.spark.lake.lake import ARCHIVE_SCHEMA, Lake
from notifyq.spark.lake.storage import LocalStorage
from notifyq.spark.lake.tidy import tidy
from spark.archived import archive


def make_old(*paths: Path) -> None:
    """Give files the time of more than a day ago."""
    old = time.time() - timedelta(hours=25).total_seconds()
    for path in paths:
        os.utime(path, (old, old))


def test_small_files_are_merged_and_deleted_a_day_later(database: str, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    with closing(connect(database)) as session:
        for first in range(0, 50, 10):
            archive(session, 10, first=first)
            export(database, folder)
        lake = Lake(database, folder)
        reader = lake.dataset()
        assert len(lake.files()) == 10
        summary = tidy(database, folder)
        assert (summary.replaced, summary.written, summary.deleted) == (10, 2, 0)
        assert len(lake.files()) == 2
        # A reader with the old list continues.
        for dataset in (reader, lake.dataset()):
            assert sorted(dataset.to_table()["id"].to_pylist()) == list(range(1, 51))
        mirror = pa.table(DeltaTable(folder / "archive").scan(columns=["id"]))
        assert sorted(mirror["id"].to_pylist()) == list(range(1, 51))
        assert tidy(database, folder).replaced == 0
        session.execute("update messages.lake_file set removed_at = now() - interval '25 hours'")
        assert tidy(database, folder).deleted == 10
        assert len(list(folder.rglob("*.parquet"))) == 2
        [[rows]] = session.execute("select count(*) from messages.lake_file").fetchall()
        assert rows == 2
    assert export(database, folder).rows == 0


def test_old_files_of_no_batch_are_deleted(database: str, tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    with closing(connect(database)) as session:
        archive(session, 10)
    export(database, folder)
    paths = []
    for _ in range(2):
        with FileWriter(Lake(database, folder).home, "archive", ARCHIVE_SCHEMA) as file:
            paths.append(folder / file.close().path)
    make_old(paths[0], *folder.rglob("queue=*/*.parquet"))
    assert tidy(database, folder).deleted == 1
    assert [path.exists() for path in paths] == [False, True]
    assert Lake(database, folder).dataset().count_rows() == 10


def test_a_file_that_is_replaced_meanwhile_stays_for_its_readers(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    with closing(connect(database)) as session:
        archive(session, 10)
    export(database, folder)
    make_old(*folder.rglob("queue=*/*.parquet"))
    reader, tables = Lake(database, folder).dataset(), LocalStorage.tables

    def late(storage: LocalStorage) -> list[str]:
        monkeypatch.setattr(LocalStorage, "tables", tables)
        assert forget(database, folder, Wanted(None, "$.n < 3", None)).files == 2
        return tables(storage)

    monkeypatch.setattr(LocalStorage, "tables", late)
    assert tidy(database, folder).deleted == 0
    assert reader.count_rows() == 10
    assert Lake(database, folder).dataset().count_rows() == 8


def test_a_lake_is_reset_to_the_list_of_its_database(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lake"
    with closing(connect(database)) as session:
        archive(session, 10)
        export(database, folder)
        [[position]] = session.execute("select position from notifyq.lake").fetchall()
        archive(session, 10, first=10)
        export(database, folder)
        # As after a restore to the moment between the two.
        session.execute(
            "delete from notifyq.lake_batch where id = (select max(id) from notifyq.lake_batch)"
        )
        session.execute("update notifyq.lake set position = %s", (position,))
    with pytest.raises(LakeError, match="tidy --repair"):
        export(database, folder)
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    assert cli._invoke(["spark", "tidy", "--lake", str(folder), "--repair"], debug=False) == 0
    assert export(database, folder).rows == 10
    mirror = pa.table(DeltaTable(folder / "archive").scan(columns=["id"]))
    assert sorted(mirror["id"].to_pylist()) == list(range(1, 21))
