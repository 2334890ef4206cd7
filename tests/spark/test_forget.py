"""Forget in a lake: files are written anew without messages, and nothing else is lost."""

from __future__ import annotations

import weakref
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from notifyq.archive.forget import Wanted
from notifyq.errors import LakeError, LakeInUseError
from notifyq.spark.analysis.rollup import rollup
from notifyq.spark.connection import connect
from notifyq.spark.lake import forget as forgetting
from notifyq.spark.lake.export import export
from notifyq.spark.lake.files import FileWriter
from notifyq.spark.lake.forget import forget
from notifyq.spark.lake.lake import Lake
from notifyq.spark.lake.prune import prune, verify
from notifyq.spark.lake.tidy import tidy
from spark.archived import archive

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

KEY = "customer-42"
WANTED = Wanted(KEY, None, None)


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        for number, day in enumerate(("2026-03-01 00:00+00", "2026-03-02 00:00+00")):
            archive(opened, 40, first=100 * number, day=day)
        opened.execute(
            "update messages.message_archive "
            "set key = case when id %% 4 = 0 then %s end, "
            "dedup_key = case when id = 101 then %s end",
            (KEY, KEY),
        )
        opened.execute("select notifyq.make_partitions()")
        yield opened


@pytest.fixture
def folder(database: str, session: Connection[Any], tmp_path: Path) -> Path:
    export(database, tmp_path / "lake")
    return tmp_path / "lake"


def kept(database: str, folder: Path, table: str = "archive") -> list[int]:
    return sorted(Lake(database, folder).dataset(table).to_table()["id"].to_pylist())


EVERY = [100 * day + i for day in range(2) for i in range(1, 41)]
OTHERS = [i for i in EVERY if i % 4 and i != 101]


def test_files_are_written_anew_without_the_messages(
    database: str, session: Connection[Any], folder: Path
) -> None:
    before = {it.path for it in Lake(database, folder).files()}
    found = forget(database, folder, WANTED, dry_run=True)
    assert (found.rows, found.files) == (21, 3)
    assert kept(database, folder) == EVERY
    assert forget(database, folder, WANTED) == found
    assert kept(database, folder) == OTHERS
    mirror = pa.table(DeltaTable(folder / "archive").scan(columns=["id"]))
    assert sorted(mirror["id"].to_pylist()) == OTHERS
    assert verify(database, folder) == 4
    assert (forget(database, folder, WANTED).rows, export(database, folder).rows) == (0, 0)
    # The old files are there until the time of their readers is over.
    replaced = before - {it.path for it in Lake(database, folder).files()}
    assert len(replaced) == 3
    assert all((folder / path).exists() for path in replaced)
    session.execute("update messages.lake_file set removed_at = now() - interval '25 hours'")
    assert tidy(database, folder).deleted == 3
    assert not any((folder / path).exists() for path in replaced)
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


def test_a_day_is_pruned_after_it(database: str, session: Connection[Any], folder: Path) -> None:
    session.execute('select * from messages.forget(%s, after => \'{"part": "archive"}\')', (KEY,))
    forget(database, folder, WANTED)
    pruned = prune(database, folder)
    assert [(it.day, it.rows) for it in pruned.dropped] == [
        (date(2026, 3, 1), 30), (date(2026, 3, 2), 29)
    ]  # fmt: skip


def test_what_is_left_of_messages_of_a_pruned_day_goes(
    database: str, session: Connection[Any], folder: Path
) -> None:
    prune(database, folder)
    session.execute(
        "insert into messages.attempt (message_id, lock_token, locked_at, number, status, queue) "
        "select i, 1, now(), 1, 'failed', 'mail' from unnest(%s::bigint[]) as i",
        ([4, 5],),
    )
    forget(database, folder, WANTED)
    left = session.execute("select message_id from messages.attempt where message_id in (4, 5)")
    assert left.fetchall() == [(5,)]


def test_samples_of_errors_of_a_pruned_day_go(
    database: str, session: Connection[Any], tmp_path: Path
) -> None:
    session.execute(
        "update messages.message_archive set details = 'no room for ' || id where status = 'failed'"
    )
    export(database, tmp_path / "lake")
    rollup(database, tmp_path / "lake")
    prune(database, tmp_path / "lake")

    def samples() -> list[str]:
        found = session.execute(
            "select sample from notifyq.rollup_error where sample is not null "
            "order by bucket_at, sample"
        )
        return [text for (text,) in found]

    assert samples() == [f"no room for {number}" for number in (28, 35, 128, 135)]
    forget(database, tmp_path / "lake", WANTED)
    assert samples() == [f"no room for {number}" for number in (35, 135)]


def test_a_payload_and_a_queue_select(
    database: str, session: Connection[Any], folder: Path
) -> None:
    queues = dict(session.execute("select id, queue from messages.message_archive").fetchall())
    found = forget(database, folder, Wanted(None, "$.n < 8", "mail"))
    assert found.rows == 8
    gone = {i for i in EVERY if (i - 1) % 100 + 1 < 8 and queues[i] == "mail"}
    assert set(kept(database, folder)) == set(EVERY) - gone
    assert forget(database, folder, Wanted(KEY, "$.n == 4", None)).rows == 2


def test_a_file_that_has_only_such_messages_goes(database: str, folder: Path) -> None:
    assert forget(database, folder, Wanted(None, "$.n > 0", None)).rows == 80
    assert kept(database, folder) == []
    assert Lake(database, folder).files() == []


def test_events_in_a_lake(database: str, session: Connection[Any], folder: Path) -> None:
    lake = Lake(database, folder)
    columns = {"id": [1, 2], "key": [KEY, None], "message": ["1", "2"]}
    rows = pa.table(columns, pa.schema([("id", pa.int64()), ("key", pa.string()),
        ("message", pa.string())]))  # fmt: skip
    with FileWriter(lake.home, "events_x", rows.schema, day=date(2026, 3, 1)) as file:
        file.write(rows)
        written = file.close()
    lake.commit(session, [written], dataset="events_x")
    narrow = forget(database, folder, Wanted(KEY, None, "mail"))
    assert narrow.unsearched == ("events_x",)
    assert kept(database, folder, "events_x") == [1, 2]
    assert forget(database, folder, WANTED).unsearched == ()
    assert kept(database, folder, "events_x") == [2]


def test_a_run_that_was_stopped_goes_on(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = forgetting._Run._without
    done: list[int] = []

    def stop(*args: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(1)
        return write(*args)

    monkeypatch.setattr(forgetting._Run, "_without", stop)
    with pytest.raises(KeyboardInterrupt):
        forget(database, folder, WANTED)
    # The first day is done, the second one is as it was.
    assert kept(database, folder) == [i for i in EVERY if i > 100 or i % 4]
    monkeypatch.undo()
    assert forget(database, folder, WANTED).rows == 11
    assert kept(database, folder) == OTHERS
    assert verify(database, folder) == 4


def test_a_run_that_was_stopped_finds_again_what_it_deleted_in_the_database(
    database: str, session: Connection[Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit", stop)
        with pytest.raises(KeyboardInterrupt):
            forget(database, folder, WANTED)
    assert kept(database, folder) == EVERY
    assert forget(database, folder, WANTED).rows == 21
    assert kept(database, folder) == OTHERS
    left = session.execute("select id from messages.message_archive order by id").fetchall()
    assert [number for (number,) in left] == OTHERS


def test_memory_holds_one_batch_of_a_file(
    database: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = forgetting._mask
    made: list[weakref.ref[Any]] = []
    held: list[int] = []

    def note(*given: Any) -> Any:
        found = make(*given)
        made.append(weakref.ref(found))
        held.append(sum(it() is not None for it in made))
        return found

    monkeypatch.setattr(forgetting, "_ROWS", 2)
    monkeypatch.setattr(forgetting, "_mask", note)
    assert forget(database, folder, WANTED, dry_run=True).rows == 21
    assert forget(database, folder, WANTED).rows == 21
    assert kept(database, folder) == OTHERS
    # That of the batch before is there until the next one is assigned.
    assert max(held) <= 2
    # Of each file every batch once, and once more the first that has such a message.
    assert len(made) == 40 + 40 + 3


def test_a_lake_that_is_being_written_is_refused(
    database: str, session: Connection[Any], folder: Path
) -> None:
    lake = Lake(database, folder)
    with lake.held(session), pytest.raises(LakeInUseError):
        forget(database, folder, WANTED)


def test_a_file_that_is_gone_is_an_error(database: str, folder: Path) -> None:
    (folder / Lake(database, folder).files()[0].path).unlink()
    with pytest.raises(LakeError, match="cannot be read"):
        forget(database, folder, WANTED)
