"""`notifyq archive export`: every value comes back, files are whole or not there."""

from __future__ import annotations

import asyncio
import csv
import gzip
import json
import shlex
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cli.programs import NOTIFYQ, Notifyq, environment
from support.database import session, until

FILL = """
    insert into messages.message_archive (
      id, created_at, available_at, locked_at, archived_at, lock_token, priority, attempts, status,
      queue, type, message, headers, details, result, key
    )
    select n, t, case n when 3 then 'infinity' else t end, t, t + interval '1 second', 1, 0, 1,
      (case n % 3 when 0 then 'failed' else 'success' end)::messages.message_status,
      case when n % 2 = 0 then 'even' else E'odd "quoted", \\\\ line\\nbreak' end,
      case n when 1 then '' end,
      (case n when 1 then '{"n": 12345678901234567890.123456789012345678901234567890, "a": "x"}'
        when 2 then '"\\u0001 \\\\ \\" \\n \\u00e9 \\ud83d\\udc15"' else n::text end)::jsonb,
      '{"h": 1.10}', case when n = 2 then E'\\\\.\\r\\n,"' end, 'null', null
    from generate_series(1, 9) as g (n), (
      select now() - interval '1 day' * (n % 3) from (select) as o) as w (t)
"""


@pytest.fixture(scope="module")
def filled(shared_database: str) -> str:
    async def fill() -> None:
        async with session(shared_database) as connection:
            await connection.execute(FILL.replace("(n % 3) from", "3 from"))
            await connection.execute(
                "update messages.message_archive set archived_at = archived_at - "
                "interval '1 day' * (id % 3); select notifyq.make_partitions()"
            )

    asyncio.run(fill())
    return shared_database


async def _expected(dsn: str) -> list[dict[str, Any]]:
    async with session(dsn) as connection:
        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, encoder=str, decoder=str, schema="pg_catalog")
        return [
            dict(row)
            for row in await connection.fetch("select * from messages.message_archive order by id")
        ]


@pytest.fixture(scope="module")
def expected(filled: str) -> list[dict[str, Any]]:
    return asyncio.run(_expected(filled))


def test_csv_has_every_value(
    notifyq: Notifyq, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "all.csv"
    printed = notifyq.good("archive", "export", str(file)).out
    assert printed.startswith(f"{file}: 9 messages, ")
    with file.open(newline="", encoding="utf-8") as opened:
        found = sorted(csv.DictReader(opened), key=lambda row: int(row["id"]))
    for row, wanted in zip(found, expected, strict=True):
        for name in ("queue", "status", "message", "headers", "result"):
            assert row[name] == wanted[name]
        assert row["details"] == (wanted["details"] or "")
        assert datetime.fromisoformat(row["archived_at"]) == wanted["archived_at"]
    assert found[2]["available_at"] == "infinity"
    assert "" not in file.read_text().splitlines()
    again = tmp_path / "again.csv.gz"
    notifyq.good("archive", "export", str(again))
    assert gzip.decompress(again.read_bytes()) == file.read_bytes()


def test_json_lines_keep_digits_and_escapes(
    notifyq: Notifyq, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "all.jsonl"
    notifyq.good("archive", "export", str(file))
    lines = file.read_bytes().decode().split("\n")
    assert lines.pop() == ""
    found = {json.loads(line)["id"]: line for line in lines}
    for row in expected:
        line = found[row["id"]]
        assert f'"message" : {row["message"]}, ' in line
        decoded = json.loads(line)
        assert (decoded["queue"], decoded["details"]) == (row["queue"], row["details"])
        assert decoded["type"] == row["type"]


def test_parquet_has_the_columns_of_a_lake(
    notifyq: Notifyq, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    lake = pytest.importorskip("notifyq.spark.lake.lake")
    file = tmp_path / "all.parquet"
    [summary] = notifyq.good("archive", "export", str(file), "--json").data
    assert (summary["rows"], summary["files"]) == (9, 1)
    assert summary["bytes"] == file.stat().st_size
    table = pq.read_table(file)
    fields = {field.name: field.type for field in table.schema}
    queue = fields.pop("queue")
    assert fields == {field.name: field.type for field in lake.ARCHIVE_SCHEMA}
    found = sorted(table.to_pylist(), key=lambda row: row["id"])
    for row, wanted in zip(found, expected, strict=True):
        for name in set(fields) - {"available_at", "xid"}:
            assert row[name] == wanted[name], name
        assert row["queue"] == wanted["queue"]
    assert str(queue) == "string"
    assert found[2]["available_at"] == datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def test_filters_and_a_file_for_each_day(
    notifyq: Notifyq, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    run = notifyq.good
    folder = tmp_path / "by day"
    [summary] = run(
        "archive", "export", str(folder), "--by", "day", "--format", "jsonl", "--json"
    ).data
    days: dict[str, set[int]] = {}
    for row in expected:
        days.setdefault(str(row["archived_at"].astimezone(UTC).date()), set()).add(row["id"])
    assert summary["files"] == len(days)
    found = {
        path.name: {json.loads(line)["id"] for line in path.read_text().splitlines()}
        for path in folder.iterdir()
    }
    assert found == {f"archive-{day}.jsonl": ids for day, ids in days.items()}

    file = tmp_path / "part.jsonl"
    middle = sorted(row["archived_at"] for row in expected)[4]
    options = ["--queue", "even", "--status", "failed", "--since", middle.isoformat()]
    run("archive", "export", str(file), *options)
    assert {json.loads(line)["id"] for line in file.read_text().splitlines()} == {
        row["id"]
        for row in expected
        if row["queue"] == "even" and row["status"] == "failed" and row["archived_at"] >= middle
    }
    until = (middle - timedelta(days=3650)).isoformat()
    assert "0 messages" in run("archive", "export", str(file), "--until", until, "--force").out
    assert file.read_text() == ""


def test_files_are_not_replaced_and_mistakes_are_reported(notifyq: Notifyq, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine")
    assert "--force" in notifyq.refused("archive", "export", str(file))
    assert file.read_text() == "mine"
    assert "--format" in notifyq.refused("archive", "export", str(tmp_path / "what"))
    assert "there is no folder" in notifyq.refused("archive", "export", str(tmp_path / "n/a.csv"))
    assert "is a folder" in notifyq.refused("archive", "export", str(tmp_path), "--format", "csv")
    gz = str(tmp_path / "a.parquet.gz")
    assert "compressed by itself" in notifyq.refused("archive", "export", gz)
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    notifyq.good("archive", "export", str(file), "--force")
    assert file.read_text().startswith("id,queue,type,status,")
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


async def test_an_interrupt_leaves_nothing(filled: str, tmp_path: Path) -> None:
    """The export waits for a lock when it is interrupted."""
    async with session(filled) as holder, holder.transaction():
        await holder.execute("lock table messages.message_archive in access exclusive mode")
        process = await asyncio.create_subprocess_exec(
            *NOTIFYQ, "archive", "export", str(tmp_path / "a.csv"), "--dsn", filled,
            env=environment(), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip

        async def waits() -> bool:
            found = "select exists (select from pg_locks where not granted)"
            return bool(await holder.fetchval(found))

        await until(waits, "the export to wait")
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(20):
            await process.communicate()
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_no_fault_of_the_server(
    filled: str, tmp_path: Path
) -> None:
    command = f"ulimit -f 0; exec {shlex.join(NOTIFYQ)} archive export {tmp_path}/rows.csv"
    done = subprocess.run(
        ["sh", "-c", command],
        check=False,
        env=environment(NOTIFYQ_DSN=filled),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "notifyq: File too large\n")
    assert list(tmp_path.iterdir()) == []
