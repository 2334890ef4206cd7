"""Loads of files: all rows once, and what cannot be published in a file with the reason."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import textwrap
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from notifyq.errors import ConfigurationError, InvalidArgumentError, QueueNotFoundError
from notifyq.spark.publish import datasets
from notifyq.spark.publish.load import load
from notifyq.spark.publish.mapping import mapping
from support.database import Connect, Connection, until

LIVE = "select queue, message::text, priority, key from messages.message order by id"


async def live(connection: Connection) -> list[tuple[Any, ...]]:
    """Give live messages."""
    return [tuple(row) for row in await connection.fetch(LIVE)]


async def test_json_lines_are_published_as_they_are(
    connection: Connection, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.jsonl"
    # In chunks that end within lines.
    monkeypatch.setattr(datasets, "_BYTES", 1500)
    rows = [{"id": i, "name": "ä" * (i % 7), "price": 1.50} for i in range(200)]
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), "utf-8")
    done = load(database, "l", [file], mapping("default", {"key": "id"}, None))
    assert (done.is_new, done.published, done.queues) == (True, 200, {"default": 200})
    found = await connection.fetch("select message, key from messages.message")
    assert sorted((row["message"] for row in found), key=lambda it: it["id"]) == rows
    assert {row["key"] for row in found} == {str(i) for i in range(200)}
    again = load(database, "l", [file], mapping("default", {}, None))
    assert (again.is_new, again.published) == (False, 200)
    assert len(await live(connection)) == 200


async def test_parquet_keeps_its_values(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.parquet"
    instant = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    table = pa.table(
        {
            "price": pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
            "at": pa.array([instant, None], pa.timestamp("us", "UTC")),
            "list": pa.array([[1, None], None], pa.list_(pa.int64())),
            "deep": pa.array([{"a": "x", "b": b"\x00"}, None]),
            "p": pa.array([3, None], pa.int64()),
        }
    )
    pq.write_table(table, file)
    load(
        database, "l", [file],
        mapping("default", {"priority": "p"}, ["price", "at", "list", "deep"]),
    )  # fmt: skip
    assert await live(connection) == [
        (
            "default",
            '{"at": "2026-01-02T03:04:05.678901+00:00", "deep": {"a": "x", "b": "AA=="}, '
            '"list": [1, null], "price": 1.10}',
            3,
            None,
        ),
        ("default", '{"at": null, "deep": null, "list": null, "price": null}', 0, None),
    ]


async def test_rows_that_cannot_be_published_are_rejected_and_none_is_lost(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    await connection.execute(
        """select messages.create_queue('q', payload_schema => '{"required": ["note"]}')"""
    )
    file, rejects = tmp_path / "rows.csv.gz", tmp_path / "rejects.jsonl"
    text = 'q,p,note\nq,1,"one, quoted\nline"\nq,x,two\ngone,1,three\nq,1\nq,,"five"\n'
    file.write_bytes(gzip.compress(text.encode()))
    wanted = mapping(None, {"queue": "q", "priority": "p"}, ["note"])
    with pytest.raises(ConfigurationError, match="row 2: column 'p' cannot be priority"):
        load(database, "l", [file], wanted)
    assert await live(connection) == []
    done = load(database, "l", [file], wanted, rejects=rejects)
    assert (done.published, done.rejected, done.queues) == (2, 3, {"q": 2})
    found = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert sorted((one["row"], one["reason"]) for one in found) == [
        (2, "column 'p' cannot be priority: invalid literal for int() with base 10: 'x'"),
        (3, "there is no queue 'gone'"),
        (4, "2 values for 3 columns"),
    ]
    assert [row[1:3] for row in await live(connection)] == [
        ('{"note": "one, quoted\\nline"}', 1),
        ('{"note": "five"}', 0),
    ]


async def test_what_the_queue_refuses_is_rejected_too(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    await connection.execute(
        """select messages.create_queue('q', payload_schema => '{"required": ["id"]}')"""
    )
    file, rejects = tmp_path / "rows.jsonl", tmp_path / "rejects.jsonl"
    file.write_text('{"id": 1}\n{"no": 2}\n{"id": "\\u0000"}\nbroken\n{"id": 4}\n')
    done = load(database, "l", [file], mapping("q", {}, None), rejects=rejects)
    assert (done.published, done.rejected) == (2, 3)
    found = {
        json.loads(line)["offset"]: json.loads(line) for line in rejects.read_text().splitlines()
    }
    assert sorted(found) == [10, 20, 37]
    assert found[10]["data"] == '{"no": 2}'
    assert "does not take this message" in found[10]["reason"]


async def test_texts_that_postgres_does_not_store_are_rejected(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    file, rejects = tmp_path / "rows.jsonl", tmp_path / "rejects.jsonl"
    keys = ("a", "a\0b", "a\ud800b", "ä")
    file.write_text("".join(json.dumps({"id": key}) + "\n" for key in keys))
    done = load(database, "l", [file], mapping("default", {"key": "id"}, None), rejects=rejects)
    assert (done.published, done.rejected) == (2, 2)
    assert [row["key"] for row in await connection.fetch(LIVE)] == ["a", "ä"]
    nul, half = [json.loads(line)["reason"] for line in rejects.read_text().splitlines()]
    assert nul == "key has a NUL, which PostgreSQL does not store"
    assert half == "key has half of a surrogate pair: not valid text"


async def test_rejects_that_find_no_space_publish_nothing(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    file, rejects = tmp_path / "rows.jsonl", tmp_path / "rejects.jsonl"
    file.write_text('{"id": 1}\nbroken\n')
    part = tmp_path / "rejects.jsonl.part"
    part.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as raised:
        load(database, "l", [file], mapping("default", {}, None), rejects=rejects)
    assert raised.value.filename == str(rejects)
    assert not part.is_symlink()
    assert await live(connection) == []


async def test_too_many_rejects_stop_it(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n' + "broken\n" * 5)
    with pytest.raises(ConfigurationError, match="more than 3 rows were rejected, the first is"):
        load(
            database, "l", [file], mapping("default", {}, None),
            rejects=tmp_path / "r", most_rejects=3,
        )  # fmt: skip
    assert await live(connection) == []


async def test_a_dry_run_publishes_nothing(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n' * 5)
    done = load(database, "l", [file], mapping("default", {}, None), dry_run=True)
    assert (done.published, done.queues) == (0, {"default": 5})
    assert not await connection.fetchval("select exists (select from notifyq.load)")
    with pytest.raises(QueueNotFoundError):
        load(database, "l", [file], mapping("gone", {}, None), dry_run=True)


async def test_an_event_has_no_priority(
    connection: Connection, database: str, tmp_path: Path
) -> None:
    await connection.execute("select messages.create_stream('s')")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1, "p": 1}\n')
    with pytest.raises((InvalidArgumentError, ConfigurationError), match="has no priority"):
        load(database, "l", [file], mapping("s", {"priority": "p"}, None))
    assert load(database, "l", [file], mapping("s", {}, None)).published == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((None, {}, None), "exactly once"),
        (("q", {"queue": "a"}, None), "exactly once"),
        (("q", {"kee": "a"}, None), "has no 'kee'"),
        (("q", {"message": "a"}, ["b"]), "one column"),
        (("q", {"delay": "a", "available_at": "b"}, None), "exclude each other"),
    ],
)
def test_a_mapping_is_checked(arguments: tuple[Any, ...], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        mapping(*arguments)


LOADING = """
from notifyq.spark.publish.load import load
from notifyq.spark.publish.mapping import mapping
load({dsn!r}, "l", [{file!r}], mapping("default", {{}}, None))
"""


@pytest.mark.timeout(120)
async def test_a_load_that_is_killed_at_its_commit_is_published_once(
    connection: Connection, connect: Connect, database: str, tmp_path: Path
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id": {i}}}\n' for i in range(3000)))
    code = textwrap.dedent(LOADING).format(dsn=database, file=str(file))
    # Its commit waits for this lock, and is killed while it does.
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await other.execute("lock table messages.message in share mode")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        await until(
            lambda: connection.fetchval(
                "select exists (select from pg_stat_activity where wait_event_type = 'Lock' "
                "and query like '%commit_load%')"
            ),
            "the load commits",
            60,
        )
    finally:
        process.kill()
        await process.wait()
        await transaction.rollback()
    # The server may still be at it, and finish: both are right.
    done = load(database, "l", [file], mapping("default", {}, None))
    assert done.published == 3000
    assert await connection.fetchval(
        "select (count(*), count(distinct message)) = (3000, 3000) from messages.message"
    )
