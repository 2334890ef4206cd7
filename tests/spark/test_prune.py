"""Prune: a day leaves PostgreSQL only when the lake, read back, has all of it."""

from __future__ import annotations

from contextlib import closing
from datetime import date
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from notifyq.errors import LakeError
from notifyq.spark.connection import connect
from notifyq.spark.lake import prune as pruning
from notifyq.spark.lake.export import export
from notifyq.spark.lake.lake import Lake
from notifyq.spark.lake.prune import prune, verify
from spark.archived import archive

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from psycopg import Connection

DAY = date(2026, 3, 1)


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        archive(opened, 200)
        opened.execute(
            "update messages.message_archive set result = '{\"a\": [1.50]}', details = 'ä', "
            "key = 'k', dedup_key = 'd', max_attempts = 3, subscriber = 's', event_id = 5, "
            "cancelled_by = 'ann' "
            "where id % 3 = 0"
        )
        opened.execute("select notifyq.make_partitions()")
        yield opened


@pytest.fixture
def folder(database: str, session: Connection[Any], tmp_path: Path) -> Path:
    export(database, tmp_path / "lake")
    return tmp_path / "lake"


def rows(session: Connection[Any]) -> int:
    [[found]] = session.execute("select count(*) from messages.message_archive").fetchall()
    return int(found)


def damage(database: str, folder: Path, change: Any) -> None:
    """Replace the content of the first file."""
    path = folder / Lake(database, folder).files()[0].path
    pq.write_table(change(pq.read_table(path)), path)


def test_a_day_that_is_in_the_lake_is_dropped(
    database: str, session: Connection[Any], folder: Path
) -> None:
    summary = prune(database, folder)
    assert [(it.day, it.rows) for it in summary.dropped] == [(DAY, 200)]
    assert rows(session) == 0
    assert Lake(database, folder).dataset().count_rows() == 200
    assert prune(database, folder).dropped == []
    assert export(database, folder).rows == 0


def test_today_and_days_that_are_not_exported_stay(
    database: str, session: Connection[Any], folder: Path
) -> None:
    archive(session, 1, first=200)
    session.execute("select messages.publish('default', '1'), messages.take('default')")
    summary = prune(database, folder, keep_days=0)
    assert summary.dropped == []
    assert summary.kept == {DAY: f"some of it is still to be exported into {folder}"}
    export(database, folder)
    assert [it.rows for it in prune(database, folder).dropped] == [201]


def test_an_export_beside_a_prune_is_part_of_the_comparison(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(session, 1, first=200)

    def late(*given: Any, **options: Any) -> Any:
        assert export(database, folder).rows == 1
        return connect(*given, **options)

    monkeypatch.setattr("notifyq.spark.lake.prune.connect", late)
    assert [it.rows for it in prune(database, folder).dropped] == [201]


def test_a_day_stays_until_every_lake_has_it(
    database: str, session: Connection[Any], folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    export(database, other)
    archive(session, 1, first=200)
    export(database, folder)
    assert prune(database, folder).kept == {DAY: f"some of it is still to be exported into {other}"}
    session.execute("select messages.forget_lake(l.id) from notifyq.lake as l where id > 1")
    assert len(prune(database, folder).dropped) == 1


@pytest.mark.parametrize("held", [7, 200_000])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda table: table.slice(0, 60),
            "does not have 40 messages of 2026-03-01 as they are in PostgreSQL, the first is",
        ),
        (
            lambda table: table.slice(1),
            "does not have 1 messages of 2026-03-01 as they are in PostgreSQL",
        ),
        (
            lambda table: pa.concat_tables([table, table.slice(0, 1)]),
            "twice: 2026-03-01 was kept",
        ),
    ],
)
def test_a_lake_that_lacks_a_row_or_has_one_twice_is_an_error(
    database: str,
    session: Connection[Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    held: int,
    change: Any,
    reason: str,
) -> None:
    monkeypatch.setattr("notifyq.spark.lake.prune._HELD", held)
    damage(database, folder, change)
    with pytest.raises(LakeError, match=reason):
        prune(database, folder)
    with pytest.raises(LakeError, match="is not as it was written"):
        verify(database, folder)
    assert rows(session) == 200


def test_a_file_that_cannot_be_read_is_an_error(
    database: str, session: Connection[Any], folder: Path
) -> None:
    path = folder / Lake(database, folder).files()[0].path
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(LakeError, match=r"\.parquet cannot be read"):
        prune(database, folder)
    path.unlink()
    for action in (prune, verify):
        with pytest.raises(LakeError, match=r"\.parquet cannot be read"):
            action(database, folder)
    assert rows(session) == 200


def test_deleted_dead_messages_do_not_prevent_a_prune(
    database: str, session: Connection[Any], folder: Path
) -> None:
    [[deleted]] = session.execute("select messages.dead_delete(7)").fetchall()
    assert deleted
    assert verify(database, folder) == 2
    assert [it.rows for it in prune(database, folder).dropped] == [199]


def test_a_comparison_of_rows_holds_few_of_a_day(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.execute("select messages.dead_delete(7)")
    # All rows between two that stay: the lake has more in that range than PostgreSQL.
    session.execute("delete from messages.message_archive where id between 90 and 150")
    lacking = pruning._lacking
    held: list[int] = []

    def counted(*given: Any) -> list[int]:
        held.append(len(given[-1]))
        return lacking(*given)

    monkeypatch.setattr(pruning, "_HELD", 16)
    monkeypatch.setattr(pruning, "_lacking", counted)
    assert [it.rows for it in prune(database, folder).dropped] == [138]
    assert (sum(held), max(held)) == (138, 16)


def test_a_day_in_use_is_kept_and_blocks_no_finish(
    database: str, session: Connection[Any], folder: Path
) -> None:
    with session.transaction():
        rows(session)
        assert prune(database, folder).kept == {DAY: "it is in use"}
    assert len(prune(database, folder).dropped) == 1


def test_retention_waits_for_a_lake(
    database: str, session: Connection[Any], tmp_path: Path, folder: Path
) -> None:
    session.execute("update messages.queue set retention = '1 day'")
    archive(session, 1, first=200)
    [[dropped]] = session.execute("select notifyq.drop_partitions()").fetchall()
    assert dropped == 1  # of the attempts
    assert rows(session) == 201
    export(database, folder)
    [[dropped]] = session.execute("select notifyq.drop_partitions()").fetchall()
    assert (dropped, rows(session)) == (1, 0)


@pytest.mark.parametrize("lost", ["file", "part of a file", "folder"])
def test_retention_does_not_trust_a_lake_that_cannot_be_read(
    database: str, session: Connection[Any], folder: Path, lost: str
) -> None:
    session.execute("update messages.queue set retention = '1 day'")
    file = folder / Lake(database, folder).files()[0].path
    content = file.read_bytes()
    away = folder.with_name("away")
    match lost:
        case "file":
            file.unlink()
        case "part of a file":
            file.write_bytes(content[:-1])
        case _:
            folder.rename(away)
            folder.mkdir()  # where nothing is mounted
    with pytest.raises(LakeError, match="mount or restore"):
        export(database, folder)
    session.execute("select notifyq.drop_partitions()")
    assert rows(session) == 200
    [[obstacle]] = session.execute("select obstacle from messages.lakes()").fetchall()
    assert str(folder) in obstacle
    if lost == "folder":
        folder.rmdir()
        away.rename(folder)
    else:
        file.write_bytes(content)
    assert export(database, folder).rows == 0
    session.execute("select notifyq.drop_partitions()")
    assert rows(session) == 0
