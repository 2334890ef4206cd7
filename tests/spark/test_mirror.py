"""The Delta tables of a lake: what other engines see, and what happens to their changes."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from notifyq.archive.forget import Wanted
from notifyq.cli import main as cli
from notifyq.errors import LakeError, NotifyqError
from notifyq.spark.analysis.rollup import ROLLUP, rollup
from notifyq.spark.connection import connect
from notifyq.spark.lake import mirrors
from notifyq.spark.lake.delta import DeltaMirror
from notifyq.spark.lake.export import export
from notifyq.spark.lake.forget import forget
from notifyq.spark.lake.lake import ARCHIVE, Lake
from notifyq.spark.lake.tidy import tidy
from spark.archived import archive
from spark.lakes import EVENTS, add_events, add_later_version, update_twice_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from psycopg import Connection


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        yield opened


@pytest.fixture
def folder(database: str, session: Connection[Any], tmp_path: Path) -> Path:
    archive(session, 20)
    export(database, tmp_path / "lake")
    return tmp_path / "lake"


def table_of(folder: Path, name: str = ARCHIVE) -> DeltaTable:
    return DeltaTable(folder / name)


def ids(folder: Path, name: str = ARCHIVE) -> list[int]:
    return sorted(pa.table(table_of(folder, name).scan(columns=["id"]))["id"].to_pylist())


def _delete_queue(folder: Path) -> None:
    table_of(folder).delete("queue = 'mail'")


def _delete_rows(folder: Path) -> None:
    table_of(folder).delete("id = 3")


def _compact(folder: Path) -> None:
    table_of(folder).optimize.compact()


def _append(folder: Path) -> None:
    first = pa.table(table_of(folder).scan()).slice(0, 1)
    write_deltalake(folder / ARCHIVE, first, mode="append")


@pytest.mark.parametrize("change", [_delete_queue, _delete_rows, _compact, _append])
def test_a_change_of_another_engine_is_refused_until_it_is_undone(
    database: str,
    session: Connection[Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
) -> None:
    archive(session, 20, first=20)
    export(database, folder)
    change(folder)
    seen, version = ids(folder), table_of(folder).version()
    archive(session, 20, first=40)
    for write in (
        lambda: export(database, folder),
        lambda: tidy(database, folder),
        lambda: forget(database, folder, Wanted("k", None, None)),
    ):
        with pytest.raises(LakeError, match=r"another program.*notifyq spark tidy --repair"):
            write()
    # Nothing was written: the change is as it was, and the export has not been done.
    assert (ids(folder), table_of(folder).version()) == (seen, version)
    assert Lake(database, folder).dataset().count_rows() == 40
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    assert cli._invoke(["spark", "tidy", "--lake", str(folder), "--repair"], debug=False) == 0
    assert ids(folder) == list(range(1, 41))
    assert export(database, folder).rows == 20
    assert ids(folder) == list(range(1, 61))


def test_a_change_between_the_check_and_the_commit_is_refused_too(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = mirrors.check
    archive(session, 20, first=20)

    def check(*given: Any) -> None:
        found(*given)
        _delete_queue(folder)

    monkeypatch.setattr(mirrors, "check", check)
    with pytest.raises(LakeError, match="another program"):
        export(database, folder)
    assert len(ids(folder)) < 20
    mirrors.follow(Lake(database, folder), is_repair=True)
    assert ids(folder) == list(range(1, 41))


def test_rows_deleted_by_a_vector_are_refused(
    database: str, session: Connection[Any], folder: Path
) -> None:
    log = folder / ARCHIVE / "_delta_log"
    [added, *_] = [
        action["add"]
        for line in (log / f"{0:020}.json").read_text().splitlines()
        if "add" in (action := json.loads(line))
    ]
    features = ["deletionVectors"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    # A bitmap of rows 2 and 3.
    vector = {
        "storageType": "i",
        "pathOrInlineDv": "^Bg9^0rr910000000000iXQKl0rr91000315c8Xg0SSr5",
        "sizeInBytes": 36,
        "cardinality": 2,
    }
    actions = [
        {"protocol": protocol},
        {"remove": {"path": added["path"], "dataChange": True}},
        {"add": {**added, "deletionVector": vector}},
    ]
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, actions)))
    lake = Lake(database, folder)
    for write in (lambda: export(database, folder), lambda: mirrors.follow(lake, is_repair=True)):
        with pytest.raises(LakeError, match=r"another program.*delete its folder _delta_log"):
            write()
    shutil.rmtree(log)
    export(database, folder)
    assert ids(folder) == list(range(1, 21))


def test_changes_that_leave_the_rows_are_accepted(
    database: str, session: Connection[Any], folder: Path
) -> None:
    table_of(folder).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    table_of(folder).create_checkpoint()
    archive(session, 20, first=20)
    export(database, folder)
    table_of(folder).vacuum(dry_run=False, retention_hours=0, enforce_retention_duration=False)
    archive(session, 20, first=40)
    export(database, folder)
    assert ids(folder) == list(range(1, 61))


def test_writers_of_a_lake_commit_one_after_the_other(
    database: str, session: Connection[Any], folder: Path
) -> None:
    lake = Lake(database, folder)
    add_events(session, lake, 1)
    with closing(connect(database)) as first, closing(connect(database)) as second:
        with first.transaction():
            add_events(first, lake, 11)
            # Batches are numbered in the order of their commits: the next one waits.
            second.execute("set lock_timeout = '50ms'")
            with pytest.raises(NotifyqError, match="lock timeout"):
                add_events(second, lake, 21)
        add_events(second, lake, 31)
    mirrors.follow(lake, "events_x")
    assert ids(folder, "events_x") == [*range(1, 21), *range(31, 41)]


def test_two_mirrors_at_once_both_end(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(session, 20, first=20)
    update_twice_at_once(DeltaMirror, database, folder, monkeypatch)
    assert table_of(folder).version() == 1
    assert ids(folder) == list(range(1, 41))


def test_an_old_table_gets_the_columns_of_a_new_version(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert export(database, folder).rows == 0
    lake = Lake(database, folder)
    add_later_version(session, lake, monkeypatch)
    mirrors.follow(lake)
    wanted = {**dict.fromkeys(range(1, 21)), 99: "red"}
    for found in (
        pa.table(table_of(folder).scan(columns=["id", "colour"])),
        lake.dataset().to_table(columns=["id", "colour"]),
    ):
        assert sorted(found["id"].to_pylist()) == [*range(1, 21), 99]
        assert dict(zip(*found.to_pydict().values(), strict=True)) == wanted
    polars = pytest.importorskip("polars")
    frame = polars.read_delta(str(folder / ARCHIVE))
    assert dict(frame.select("id", "colour").iter_rows()) == wanted


def test_a_table_of_events_gets_the_columns_of_its_new_files(
    database: str, session: Connection[Any], folder: Path
) -> None:
    lake = Lake(database, folder)
    add_events(session, lake, 1)
    mirrors.follow(lake, "events_x")
    add_events(session, lake, 11, EVENTS.append(pa.field("colour", pa.string())))
    mirrors.follow(lake, "events_x")
    assert ids(folder, "events_x") == list(range(1, 21))
    names = table_of(folder, "events_x").schema().to_arrow()
    assert set(pa.schema(names).names) == {*EVENTS.names, "colour", "day"}
    # The files of both are merged.
    assert tidy(database, folder, least_files=2).written == 1
    found = pa.table(table_of(folder, "events_x").scan(columns=["id", "colour"]))
    assert found.num_rows == 20


def test_small_files_of_events_are_merged(
    database: str, session: Connection[Any], folder: Path
) -> None:
    lake = Lake(database, folder)
    for first in range(1, 51, 10):
        add_events(session, lake, first)
    summary = tidy(database, folder)
    assert (summary.replaced, summary.written) == (5, 1)
    [file] = lake.files("events_x")
    assert (file.rows, file.first_id, file.last_id) == (50, 1, 50)
    assert ids(folder, "events_x") == list(range(1, 51))
    table_of(folder, "events_x").delete("id = 7")
    with pytest.raises(LakeError, match=r"events_x was changed by another program"):
        tidy(database, folder)
    with pytest.raises(LakeError, match=r"events_x was changed by another program"):
        forget(database, folder, Wanted("k", None, None))
    assert export(database, folder).rows == 0


def test_forgotten_events_leave_the_delta_table(
    database: str, session: Connection[Any], folder: Path
) -> None:
    lake = Lake(database, folder)
    keyed = EVENTS.append(pa.field("key", pa.string()))
    add_events(session, lake, 1)
    add_events(session, lake, 11, keyed, key="k")
    mirrors.follow(lake, "events_x")
    found = forget(database, folder, Wanted("k", None, None))
    assert (found.rows, found.files) == (10, 1)
    add_events(session, lake, 21, keyed)
    assert tidy(database, folder, least_files=2).replaced == 2
    assert ids(folder, "events_x") == [*range(1, 11), *range(21, 31)]


def test_a_table_of_roll_ups_is_checked_before_it_is_written(
    database: str, session: Connection[Any], folder: Path
) -> None:
    rollup(database, folder)
    found = pa.table(table_of(folder, ROLLUP).scan(columns=["queue"]))
    assert set(found["queue"].to_pylist()) == {"billing", "mail"}
    table_of(folder, ROLLUP).delete()
    archive(session, 20, first=20)
    export(database, folder)
    with pytest.raises(LakeError, match="another program"):
        rollup(database, folder)
    [[counted]] = session.execute("select sum(finished) from notifyq.rollup").fetchall()
    assert counted == 20
