"""Roll-ups of a lake: each message once, whatever ends a run, and the same on every engine."""

from __future__ import annotations

import errno
import pickle
import random
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cli.programs import Notifyq
from notifyq.database.pool import Database
from notifyq.errors import AccessDeniedError, LakeError
from notifyq.operations.report import gather
from notifyq.spark.analysis import rollup as module
from notifyq.spark.analysis.counts import count, merge
from notifyq.spark.analysis.fingerprints import fingerprint
from notifyq.spark.analysis.rollup import ROLLUP, rollup
from notifyq.spark.connection import connect
from notifyq.spark.engine import LocalEngine, SparkEngine
from notifyq.spark.lake import storage
from notifyq.spark.lake.lake import Lake
from notifyq.spark.lake.tidy import tidy
from spark.lakes import as_role, grow
from sql.lake.test_rollup import FILL, FINGERPRINTS
from support.database import session

if TYPE_CHECKING:
    from pathlib import Path

    from support.database import Connection

HALF = "r.id <= 3000"
REST = "r.id > 3000"

_ALPHABET = [
    *"'\" \t\n/\\aF019-:.,_%~()[]{};ZxT", "<n>", "é", "0x", "http://", "..", "C:", "deadbeef1",
    "2026-01-02 03:04:05.6+00", "123e4567-e89b-12d3-a456-426614174000", "\u0663", "\u00a0",
    "\u2028",
]  # fmt: skip


@pytest.fixture
async def filled(connection: Connection) -> Connection:
    await connection.execute(FILL)
    return connection


async def counted(connection: Connection) -> list[Any]:
    """Return all counts, without which lake they are of."""
    tables = ("rollup", "rollup_error", "rollup_worker")
    return [
        row[0]
        for table in tables
        for row in await connection.fetch(
            f"select to_jsonb(r) - 'lake' from notifyq.{table} as r order by 1"
        )
    ]


async def expected(connection: Connection) -> list[Any]:
    """Return what the roll-up of the whole archive has to be, as the server counts it."""
    found = await connection.fetch(
        "select to_jsonb(r) - 'lake' from notifyq.count_archive(null, null) as r order by 1"
    )
    return [row[0] for row in found]


async def agrees(connection: Connection) -> bool:
    rows = await connection.fetch("select to_jsonb(r) - 'lake' from notifyq.rollup as r order by 1")
    return [row[0] for row in rows] == await expected(connection)


async def test_a_fingerprint_is_that_of_the_server(connection: Connection) -> None:
    chance = random.Random(7)
    texts = [
        *FINGERPRINTS,
        *("".join(chance.choices(_ALPHABET, k=chance.randint(1, 40))) for _ in range(4000)),
    ]
    rows = await connection.fetch(
        "select notifyq.error_fingerprint(t) from unnest($1::text[]) with ordinality as u (t, n) "
        "order by n",
        texts,
    )
    assert [row[0] for row in rows] == [fingerprint(text) for text in texts]


async def test_it_counts_what_the_server_counts(
    filled: Connection, database: str, tmp_path: Path
) -> None:
    grow(database, tmp_path / "lake")
    progress: list[tuple[int, int]] = []
    done = rollup(database, tmp_path / "lake", on_progress=lambda *it: progress.append(it))
    assert (done.messages, done.batches, progress[-1]) == (6000, 1, (6000, 6000))
    assert await agrees(filled)
    errors = await filled.fetch("select fingerprint, errors from notifyq.rollup_errors()")
    assert [tuple(row) for row in errors] == [("order <n> is unknown", 600)]
    workers = await filled.fetch("select worker, finished from notifyq.rollup_workers()")
    assert sum(row["finished"] for row in workers) == 6000


async def test_later_messages_are_added_to_hours_that_were_counted(
    filled: Connection, database: str, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    for condition, number in (("r.id % 2 = 0", 3000), ("r.id % 2 = 1", 3000), ("false", 0)):
        grow(database, lake, condition)
        assert rollup(database, lake).messages == number
    assert rollup(database, lake).batches == 0
    assert await agrees(filled)
    assert rollup(database, lake, rebuild=True).messages == 6000
    assert await agrees(filled)


async def merged(connection: Connection, database: str, lake: Path) -> None:
    """Merge the files of a lake, and delete the old ones as a week later."""
    assert tidy(database, lake).replaced > 0
    await connection.execute(
        "update messages.lake_file set removed_at = now() - interval '8 days' "
        "where removed is not null"
    )
    await connection.execute(
        "update notifyq.lake_batch set committed_at = now() - interval '8 days'"
    )
    assert tidy(database, lake).deleted > 0


async def test_a_first_roll_up_counts_files_that_were_merged(
    filled: Connection, database: str, tmp_path: Path
) -> None:
    for part in range(5):
        grow(database, tmp_path / "lake", f"r.id % 5 = {part}")
    await merged(filled, database, tmp_path / "lake")
    for is_rebuilt in (False, True):
        assert rollup(database, tmp_path / "lake", rebuild=is_rebuilt).messages == 6000
        assert await agrees(filled)
    assert rollup(database, tmp_path / "lake").batches == 0


async def test_a_roll_up_that_comes_after_the_files_were_deleted_is_an_error(
    filled: Connection, database: str, tmp_path: Path
) -> None:
    grow(database, tmp_path / "lake", "r.id % 5 = 0")
    rollup(database, tmp_path / "lake")
    before = await counted(filled)
    for part in range(1, 5):
        grow(database, tmp_path / "lake", f"r.id % 5 = {part}")
    await merged(filled, database, tmp_path / "lake")
    with pytest.raises(LakeError, match="--rebuild"):
        rollup(database, tmp_path / "lake")
    assert await counted(filled) == before
    assert rollup(database, tmp_path / "lake", rebuild=True).messages == 6000
    assert await agrees(filled)


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.usefixtures("filled")
def test_a_rebuild_leaves_no_counts_of_days_without_messages(
    database: str, tmp_path: Path, kept: int
) -> None:
    grow(database, tmp_path / "lake")
    rollup(database, tmp_path / "lake")
    lake = Lake(database, tmp_path / "lake")
    days = sorted({file.day for file in lake.files() if file.day})
    assert len(days) > 1
    gone = [file.id for file in lake.files() if file.day not in days[:kept]]
    with connect(database, name="test") as connection:
        lake.commit(connection, [], removed=gone)
    rollup(database, tmp_path / "lake", rebuild=True)
    assert [file.day for file in lake.files(ROLLUP)] == days[:kept]


async def test_the_lake_has_the_same_counts(
    filled: Connection, database: str, tmp_path: Path
) -> None:
    for condition in (HALF, REST):
        grow(database, tmp_path / "lake", condition)
        rollup(database, tmp_path / "lake")
    table = Lake(database, tmp_path / "lake").dataset(ROLLUP).to_table()
    names = ["bucket_at", "queue", "type", "status", "finished", "wait_bins", "run_counts"]
    rows = await filled.fetch(
        "select bucket_at, queue, type, status::text, finished, wait_bins, run_counts "
        "from notifyq.rollup order by 1, 2, 3, 4"
    )
    table = table.sort_by([(name, "ascending") for name in names[:4]]).select(names)
    assert [tuple(row.values()) for row in table.to_pylist()] == [tuple(row) for row in rows]
    delta = DeltaTable(str(tmp_path / "lake" / ROLLUP))
    assert sum(pa.table(delta.to_pyarrow_table())["finished"].to_pylist()) == 6000


@pytest.mark.parametrize("position", ["_count", "_publish", "mirrors.follow"])
async def test_a_run_that_fails_anywhere_is_repeated_once(
    filled: Connection,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    position: str,
) -> None:
    grow(database, tmp_path / "lake", HALF)
    rollup(database, tmp_path / "lake")
    before = await counted(filled)
    grow(database, tmp_path / "lake", REST)

    def end(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(f"{module.__name__}.{position}", end)
        with pytest.raises(SystemExit):
            rollup(database, tmp_path / "lake", engine=LocalEngine(1))
    is_done = position == "mirrors.follow"
    assert (await counted(filled) == before) is not is_done
    assert rollup(database, tmp_path / "lake").messages == (0 if is_done else 3000)
    assert await agrees(filled)
    delta = DeltaTable(str(tmp_path / "lake" / ROLLUP))
    assert sum(pa.table(delta.to_pyarrow_table())["finished"].to_pylist()) == 6000


async def test_a_full_disk_leaves_nothing_to_see(
    filled: Connection, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(database, tmp_path / "lake")
    write, days = storage.Output.write, len(list((tmp_path / "lake" / "archive").glob("day=*")))
    written: dict[int, Any] = {}

    def refuse(output: Any, data: Any) -> int:
        written[id(output)] = output
        if len(written) == days:  # the last one
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(output, data)

    with monkeypatch.context() as patched:
        patched.setattr(storage.Output, "write", refuse)
        with pytest.raises(OSError, match="No space left on device"):
            rollup(database, tmp_path / "lake")
    assert len(written) == days > 1
    assert list((tmp_path / "lake" / ROLLUP).rglob("*.parquet")) == []
    assert await filled.fetchval("select count(*) from notifyq.rollup") == 0
    assert rollup(database, tmp_path / "lake").messages == 6000
    assert await agrees(filled)


@pytest.mark.usefixtures("filled")
async def test_a_role_that_may_not_count_gets_an_error_also_without_messages(
    database: str, tmp_path: Path
) -> None:
    grow(database, tmp_path / "lake")
    rollup(database, tmp_path / "lake")
    with pytest.raises(AccessDeniedError, match="roll_up: an admin must grant"):
        rollup(as_role(database, "notifyq_reader"), tmp_path / "lake")
    assert rollup(as_role(database, "notifyq_admin"), tmp_path / "lake").messages == 0


async def test_one_of_two_concurrent_roll_ups_counts(
    filled: Connection, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(database, tmp_path / "lake")
    commit = module._commit

    def be_late(*arguments: Any) -> int | None:
        monkeypatch.setattr(module, "_commit", commit)
        assert rollup(database, tmp_path / "lake").messages == 6000
        return commit(*arguments)

    monkeypatch.setattr(module, "_commit", be_late)
    late = rollup(database, tmp_path / "lake")
    assert (late.is_behind, late.messages) == (True, 0)
    assert await agrees(filled)


@pytest.mark.usefixtures("filled")
async def test_an_incomplete_file_is_reported(database: str, tmp_path: Path) -> None:
    grow(database, tmp_path / "lake")
    [file, *_] = Lake(database, tmp_path / "lake").files()
    path = tmp_path / "lake" / file.path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(LakeError, match="cannot be read"):
        rollup(database, tmp_path / "lake")
    path.unlink()
    with pytest.raises(LakeError, match="--rebuild"):
        rollup(database, tmp_path / "lake")
    async with session(database) as connection:
        assert await counted(connection) == []


@pytest.mark.timeout(120)  # each command imports what weighs a lot
@pytest.mark.usefixtures("filled")
async def test_the_command_prints_its_result(database: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    grow(database, tmp_path / "lake")
    with Notifyq(database) as notifyq:
        assert notifyq("spark", "rollup", "--lake", lake).out.startswith("6000 messages of ")
        wrong = notifyq("spark", "rollup", "--lake", str(tmp_path))
        assert (wrong.code, "is not a lake" in wrong.err) == (1, True)
    async with Database(database) as opened:
        report = await gather(opened)
    assert report.lake > 0
    assert report.total is not None
    assert report.total.finished == 6000


async def test_spark_counts_the_same(
    spark: Any, filled: Connection, database: str, tmp_path: Path
) -> None:
    grow(database, tmp_path / "lake", HALF)
    rollup(database, tmp_path / "lake")
    grow(database, tmp_path / "lake", REST)
    assert rollup(database, tmp_path / "lake", engine=SparkEngine(spark)).messages == 3000
    assert await agrees(filled)


def test_a_task_sends_no_more_than_its_counts() -> None:
    number, at = 200_000, datetime(2026, 3, 1, tzinfo=UTC)
    instants = pa.repeat(pa.scalar(at, pa.timestamp("us", "UTC")), number)
    given = {
        **dict.fromkeys(("queue", "type", "status", "details"), pa.repeat("success", number)),
        **dict.fromkeys(("created_at", "available_at", "locked_at", "archived_at"), instants),
        "attempts": pa.repeat(1, number),
        "handled_by": pa.array([f"worker-{it}" for it in range(number)]),
        "cancelled_by": pa.nulls(number, pa.string()),
    }
    found = merge([count(pa.table(given))])
    assert found is not None
    assert len(found.workers) == number
    assert len(pickle.dumps(found)) < 1.1 * found.workers.nbytes
