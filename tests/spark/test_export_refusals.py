"""Export, refused: no rights, no disk, instants out of range; nothing is half there."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from notifyq.cli import main as cli
from notifyq.errors import AccessDeniedError, NotifyqError, SchemaMissingError
from notifyq.spark.connection import connect
from notifyq.spark.lake import storage
from notifyq.spark.lake.export import export
from notifyq.spark.lake.lake import Lake
from notifyq.spark.lake.prune import prune
from spark.archived import archive
from spark.lakes import as_role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from psycopg import Connection


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        yield opened


def test_a_role_without_the_right_gets_an_error_and_changes_nothing(
    database: str, session: Connection[Any], tmp_path: Path
) -> None:
    archive(session, 10)
    for role in ("notifyq_worker", "notifyq_reader"):
        with pytest.raises(AccessDeniedError, match="permission denied for function"):
            export(as_role(database, role), tmp_path / "lake")
    assert not (tmp_path / "lake").exists()
    assert export(as_role(database, "notifyq_admin"), tmp_path / "lake").rows == 10


def test_a_missing_schema_is_reported(empty_database: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaMissingError, match="notifyq init"):
        export(empty_database, tmp_path / "lake")


def test_a_full_disk_leaves_nothing_to_see(
    database: str,
    session: Connection[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", "part.parquet")

    archive(session, 100)
    folder = tmp_path / "lake"
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    with monkeypatch.context() as patch:
        patch.setattr(storage.Output, "write", refuse)
        assert cli._invoke(["spark", "export", "--lake", str(folder)], debug=False) == 1
    assert capfd.readouterr().err == "notifyq: part.parquet: No space left on device\n"
    assert list((folder / "archive").rglob("*.parquet")) == []
    assert Lake(database, folder).files() == []
    assert export(database, folder).rows == 100


def test_a_disk_that_is_too_small_leaves_nothing_to_see(
    database: str, session: Connection[Any], tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a disk, and not everywhere")
    try:
        archive(session, 3000, length=500)
        session.execute(
            "update messages.message_archive set result = to_jsonb("
            "(select string_agg(md5(id::text || i), '') from generate_series(1, 8) as i))"
        )
        with pytest.raises((NotifyqError, OSError), match="No space left on device"):
            export(database, folder / "lake")
        assert Lake(database, folder / "lake").files() == []
        assert list((folder / "lake" / "archive").rglob("*.parquet")) == []
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
        assert export(database, folder / "lake").rows == 3000
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_lost_server_is_reported(
    database: str, session: Connection[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(session, 100)
    commit = Lake.commit

    def end(*arguments: Any, **named: Any) -> Any:
        session.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where application_name = 'notifyq export' and datname = current_database()"
        )
        return commit(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit", end)
        with pytest.raises(NotifyqError) as error:
            export(database, tmp_path / "lake")
    password = session.info.password
    assert not password or password not in str(error.value)
    assert Lake(database, tmp_path / "lake").files() == []
    assert export(database, tmp_path / "lake").rows == 100


def test_infinite_instants_become_the_last_or_the_first(
    database: str, session: Connection[Any], tmp_path: Path
) -> None:
    archive(session, 3)
    # Rows of an archive that came from elsewhere: a check of the tests keeps all others out.
    session.execute("alter table messages.message_archive drop constraint guard_instants_ck")
    session.execute(
        "update messages.message_archive set available_at = case id "
        "when 1 then 'infinity' when 2 then '-infinity' else '20000-01-01' end::timestamptz"
    )
    session.execute("select notifyq.make_partitions()")
    export(database, tmp_path / "lake")
    table = Lake(database, tmp_path / "lake").dataset().to_table().sort_by("id")
    last = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    first = datetime(1, 1, 1, tzinfo=UTC)
    assert table["available_at"].to_pylist() == [last, first, last]
    assert [it.rows for it in prune(database, tmp_path / "lake").dropped] == [3]
