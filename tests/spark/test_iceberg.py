"""The Iceberg tables of a lake: what other engines see, and what happens to their changes."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from notifyq.archive.forget import Wanted
from notifyq.cli import main as cli
from notifyq.errors import AccessDeniedError, ConfigurationError, LakeError
from notifyq.spark.analysis.rollup import ROLLUP, rollup
from notifyq.spark.connection import connect
from notifyq.spark.lake import iceberg, mirrors
from notifyq.spark.lake.export import export
from notifyq.spark.lake.forget import forget
from notifyq.spark.lake.iceberg import IcebergMirror
from notifyq.spark.lake.lake import ARCHIVE, Lake
from notifyq.spark.lake.prune import prune
from notifyq.spark.lake.tidy import tidy
from spark.archived import archive
from spark.lakes import EVENTS, add_events, add_later_version, as_role, update_twice_at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")

ODD = "a/b=c %20#?ä"


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        yield opened


@pytest.fixture
def folder(database: str, session: Connection[Any], tmp_path: Path) -> Path:
    archive(session, 20)
    export(database, tmp_path / "lake", iceberg=True)
    return tmp_path / "lake"


@pytest.fixture
def catalog(database: str, folder: Path) -> Iterator[Any]:
    with closing(iceberg._catalog(Lake(database, folder))) as found:
        yield found


def table_of(catalog: Any, name: str = ARCHIVE) -> Any:
    [namespace] = catalog.list_namespaces()
    return catalog.load_table((*namespace, name))


def ids(catalog: Any, name: str = ARCHIVE) -> list[int]:
    found = table_of(catalog, name).scan(selected_fields=("id",)).to_arrow()
    return sorted(found["id"].to_pylist())


def _delete_queue(table: Any) -> None:
    table.delete("queue = 'mail'")


def _delete_row(table: Any) -> None:
    table.delete("id = 3")


def _append(table: Any) -> None:
    table.append(table.scan(limit=1).to_arrow())


def _go_back(table: Any) -> None:
    table.manage_snapshots().set_current_snapshot(table.snapshots()[0].snapshot_id).commit()


def _partition(table: Any) -> None:
    with table.update_spec() as partitions:
        partitions.add_field("id", "bucket[4]")


def _mark_rows(table: Any) -> None:
    """Add a file of deletes as Spark does, which pyiceberg does not write; here it is empty."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    [one, *_] = [task.file for task in table.scan().plan_files()]
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=one.file_path.replace("part-", "delete-"),
        file_format=FileFormat.PARQUET,
        partition=one.partition,
        record_count=1,
        file_size_in_bytes=1,
    )
    with table.transaction() as change, change.update_snapshot().fast_append() as snapshot:
        snapshot.append_data_file(deletes)


@pytest.mark.parametrize(
    "change", [_delete_queue, _delete_row, _append, _go_back, _partition, _mark_rows]
)
def test_a_change_of_another_engine_is_refused_until_it_is_undone(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Any], None],
) -> None:
    archive(session, 20, first=20)
    export(database, folder)
    change(table_of(catalog))
    changed = table_of(catalog).metadata_location
    archive(session, 20, first=40)
    for write in (
        lambda: export(database, folder),
        lambda: tidy(database, folder),
        lambda: forget(database, folder, Wanted("k", None, None)),
    ):
        with pytest.raises(LakeError, match=r"another program.*notifyq spark tidy --repair"):
            write()
    # Nothing was written: the change is as it was, and the export has not been done.
    assert table_of(catalog).metadata_location == changed
    assert Lake(database, folder).dataset().count_rows() == 40
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    assert cli._invoke(["spark", "tidy", "--lake", str(folder), "--repair"], debug=False) == 0
    assert ids(catalog) == list(range(1, 41))
    assert export(database, folder).rows == 20
    assert ids(catalog) == list(range(1, 61))


def test_what_leaves_the_rows_is_accepted(
    database: str, session: Connection[Any], folder: Path, catalog: Any
) -> None:
    with table_of(catalog).transaction() as change:
        change.set_properties({"owner": "them", "commit.retry.num-retries": "9"})
    table_of(catalog).manage_snapshots().create_tag(
        table_of(catalog).current_snapshot().snapshot_id, "march"
    ).commit()
    archive(session, 20, first=20)
    export(database, folder)
    properties = table_of(catalog).properties
    assert (properties["owner"], properties["commit.retry.num-retries"]) == ("them", "0")
    catalog.drop_table(table_of(catalog).name())
    archive(session, 20, first=40)
    export(database, folder)
    assert ids(catalog) == list(range(1, 61))


def test_others_read_the_same_rows(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive(session, 10, first=20, day="2026-03-02 00:00+00", queues=(ODD,))
    export(database, folder)
    columns = ["id", "queue", "day", "status"]
    wanted = Lake(database, folder).dataset().to_table(columns=columns).sort_by("id").to_pylist()
    assert len(wanted) == 30
    table = table_of(catalog)
    frame = table.scan(selected_fields=tuple(columns)).to_pandas()
    assert frame[columns].sort_values("id").to_dict("records") == wanted
    found = table.scan(row_filter=f"queue = '{ODD}' and day = '2026-03-02'").to_arrow()
    assert sorted(found["id"].to_pylist()) == list(range(21, 31))
    assert len(list(table.scan(row_filter="id > 20").plan_files())) == 1
    polars = pytest.importorskip("polars")
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other one is no dependency
    lazy = polars.scan_iceberg(table).select(columns)
    assert lazy.collect().sort("id").to_dicts() == wanted
    assert lazy.filter(polars.col("queue") == ODD).collect().height == 10


def test_duckdb_reads_the_same_rows(
    database: str, session: Connection[Any], folder: Path, catalog: Any
) -> None:
    duckdb = pytest.importorskip("duckdb")
    archive(session, 10, first=20, day="2026-03-02 00:00+00", queues=(ODD,))
    export(database, folder)
    columns = ["id", "queue", "day", "status"]
    wanted = Lake(database, folder).dataset().to_table(columns=columns).sort_by("id").to_pylist()
    with duckdb.connect() as connection:
        for name in ("avro", "iceberg"):
            package = pytest.importorskip(f"duckdb_extension_{name}")
            [file] = Path(package.__path__[0]).rglob("*.duckdb_extension")
            connection.execute(f"load '{file}'")
        rows = connection.execute(
            f"select {', '.join(columns)} from iceberg_scan($1) order by id",
            [table_of(catalog).metadata_location],
        ).fetchall()
        assert [dict(zip(columns, row, strict=True)) for row in rows] == wanted
        [counted] = connection.execute(
            "select count(*) from iceberg_scan($1) where queue = $2 and day = '2026-03-02'",
            [table_of(catalog).metadata_location, ODD],
        ).fetchall()
        assert counted == (10,)


def test_the_table_follows_tidy_forget_and_prune(
    database: str, session: Connection[Any], folder: Path, catalog: Any
) -> None:
    session.execute("select notifyq.make_partitions()")
    for first in (20, 40, 60):
        archive(session, 20, first=first)
        export(database, folder)
    assert tidy(database, folder).written == 2
    assert [task.file.record_count for task in table_of(catalog).scan().plan_files()] == [40, 40]
    assert ids(catalog) == list(range(1, 81))
    session.execute("update messages.message_archive set key = 'k' where id > 80")
    archive(session, 20, first=80)
    session.execute("update messages.message_archive set key = 'k' where id > 80")
    export(database, folder)
    assert forget(database, folder, Wanted("k", None, None)).rows == 20
    assert ids(catalog) == list(range(1, 81))
    session.execute("delete from messages.message_archive where id > 80")
    assert [it.rows for it in prune(database, folder).dropped] == [80]
    assert export(database, folder).rows == 0
    assert ids(catalog) == list(range(1, 81))


def test_all_tables_follow_with_columns_of_a_later_version(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = Lake(database, folder)
    add_events(session, lake, 1)
    mirrors.follow(lake, "events_x")
    add_events(session, lake, 11, EVENTS.append(pa.field("colour", pa.string())))
    mirrors.follow(lake, "events_x")
    assert ids(catalog, "events_x") == list(range(1, 21))
    rollup(database, folder)
    counts = table_of(catalog, ROLLUP).scan().to_arrow()
    assert set(counts["queue"].to_pylist()) == {"billing", "mail"}
    add_later_version(session, lake, monkeypatch)
    mirrors.follow(lake)
    found = table_of(catalog).scan(selected_fields=("id", "colour")).to_arrow()
    assert dict(zip(found["id"].to_pylist(), found["colour"].to_pylist(), strict=True)) == {
        **dict.fromkeys(range(1, 21)),
        99: "red",
    }


def test_two_updates_at_once_both_end(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive(session, 20, first=20)
    update_twice_at_once(IcebergMirror, database, folder, monkeypatch)
    assert len(table_of(catalog).snapshots()) == 2
    assert ids(catalog) == list(range(1, 41))


def test_a_run_that_ended_too_early_is_made_good(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    archive(session, 20, first=20)
    with monkeypatch.context() as patch:
        patch.setattr(IcebergMirror, "_update", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export(database, folder)
    assert ids(catalog) == list(range(1, 21))
    assert export(database, folder).rows == 0
    assert ids(catalog) == list(range(1, 41))


def _move(folder: Path) -> Path:
    return folder.rename(folder.with_name("other"))


def _lose(folder: Path) -> Path:
    """Leave what a power failure may leave of files that are not on the disk yet."""
    for file in (folder / "_iceberg").rglob("*.*"):
        file.write_bytes(b"")
    return folder


def _lose_lists(folder: Path) -> Path:
    for file in (folder / "_iceberg").rglob("*.avro"):
        file.write_bytes(file.read_bytes()[:300])
    return folder


@pytest.mark.parametrize("damage", [_move, _lose, _lose_lists])
def test_metadata_that_cannot_be_read_is_made_anew(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    damage: Callable[[Path], Path],
) -> None:
    there = damage(folder)
    archive(session, 20, first=20)
    with pytest.raises(LakeError, match=r"_iceberg/archive cannot be read.*tidy --repair"):
        export(database, there)
    lake = Lake(database, there)
    mirrors.follow(lake, *lake.tables(), is_repair=True)
    assert export(database, there).rows == 20
    assert ids(catalog) == list(range(1, 41))


def test_old_metadata_is_deleted(
    database: str, session: Connection[Any], folder: Path, catalog: Any
) -> None:
    metadata = folder / "_iceberg" / ARCHIVE / "metadata"
    (metadata / "snap-of-a-killed-run.avro").touch()
    (metadata / "theirs.stats").touch()
    for file in metadata.iterdir():
        os.utime(file, (time.time() - 90_000, time.time() - 90_000))
    (metadata / "snap-of-a-run.avro").touch()
    before = {file.name for file in metadata.iterdir()}
    tidy(database, folder)
    after = {file.name for file in metadata.iterdir()}
    assert before - after == {"snap-of-a-killed-run.avro"}
    assert ids(catalog) == list(range(1, 21))


def test_snapshots_expire(
    database: str,
    session: Connection[Any],
    folder: Path,
    catalog: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(iceberg, "_KEPT", -iceberg._KEPT)
    for first in (20, 40, 60):
        archive(session, 20, first=first)
        [current] = table_of(catalog).snapshots()[-1:]
        export(database, folder)
        # A reader may just have opened the one that was replaced.
        assert [it.snapshot_id for it in table_of(catalog).snapshots()][:-1] == [
            current.snapshot_id
        ]
    assert ids(catalog) == list(range(1, 81))


def test_a_lake_has_them_only_from_the_option_on(
    database: str, session: Connection[Any], folder: Path, tmp_path: Path, catalog: Any
) -> None:
    archive(session, 20, first=20)
    export(database, tmp_path / "plain")
    assert not (tmp_path / "plain/_iceberg").exists()
    assert len(catalog.list_namespaces()) == 1
    export(database, folder)
    assert ids(catalog) == list(range(1, 41))
    found = session.execute(
        "select distinct n.nspname from pg_class as c join pg_namespace as n "
        "on n.oid = c.relnamespace where c.relname like 'iceberg%'"
    ).fetchall()
    assert found == [("notifyq_iceberg",)]


def test_without_the_package_a_lake_that_has_them_is_not_written(
    database: str,
    session: Connection[Any],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    archive(session, 20, first=20)
    with pytest.raises(ConfigurationError, match=r"pip install 'notifyq\[iceberg\]'"):
        export(database, folder)
    assert Lake(database, folder).dataset().count_rows() == 20
    assert export(database, tmp_path / "plain").rows == 40


def test_the_first_one_needs_a_right_and_later_ones_the_role(
    database: str, session: Connection[Any], tmp_path: Path
) -> None:
    admin = as_role(database, "notifyq_admin")
    archive(session, 20)
    with pytest.raises(AccessDeniedError, match="permission denied for database"):
        export(admin, tmp_path / "lake", iceberg=True)
    assert export(database, tmp_path / "other", iceberg=True).rows == 20
    assert export(admin, tmp_path / "lake", iceberg=True).rows == 20
    lake = Lake(database, tmp_path / "lake")
    with closing(iceberg._catalog(lake)) as catalog:
        assert len(catalog.list_namespaces()) == 2
    with closing(iceberg._catalog(Lake(as_role(database, "notifyq_reader"), lake.location))) as it:
        found = it.load_table((iceberg.namespace(lake), ARCHIVE))
        assert found.scan().to_arrow().num_rows == 20


def test_only_a_folder_and_s3_can_have_them(database: str, tmp_path: Path) -> None:
    lake = Lake.create(database, tmp_path / "lake")
    object.__setattr__(lake.storage, "location", "gs://bucket/lake")
    with pytest.raises(ConfigurationError, match="cannot have Iceberg tables"):
        iceberg.keep(lake)
