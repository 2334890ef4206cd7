"""The examples of the page on the lake, and its command as a user types it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from docs.pages import PAGES, blocks
from notifyq.cli import main as cli
from notifyq.spark.connection import connect
from spark.archived import archive


def test_the_examples_run(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    pytest.importorskip("pyiceberg", reason="the extra `iceberg` is not installed")
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    call = ["spark", "export", "--lake", str(tmp_path / "lake"), "--iceberg"]
    assert cli._invoke(call, debug=False) == 0
    with closing(connect(database)) as session:
        archive(session, 10)
    given: dict[str, Any] = {"spark": spark}
    [page] = [page for page in PAGES if page.name == "lake.md"]
    for block in blocks(page, "python"):
        if "s3://" in block.text:
            continue  # tests/spark/test_storage.py has a store
        exec(block.text.replace("/data/lake", str(tmp_path / "lake")), given)
    given["catalog"].close()
    assert given["summary"].rows == 10
    assert len(given["billing"]) == 5


def test_the_command(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    with closing(connect(database)) as session:
        archive(session, 10)
        session.execute("select notifyq.make_partitions()")
    call = ["spark", "export", "--lake", str(tmp_path / "lake")]
    assert cli._invoke([*call, "--verify", "--prune"], debug=False) == 0
    output = capfd.readouterr().out.splitlines()
    assert output[0].startswith("10 messages of 1 days exported into")
    assert output[1:] == [
        "2 files are as they were written",
        "2026-03-01: 10 messages dropped here, all are in the lake",
    ]
    assert cli._invoke([*call, "--prune", "--json"], debug=False) == 0
    result = json.loads(capfd.readouterr().out)
    assert (result["rows"], result["batch"], result["pruned"]) == (
        0,
        None,
        {"dropped": [], "kept": {}},
    )
    assert cli._invoke(["spark", "export", "--lake", "/proc/none"], debug=False) == 1
    assert capfd.readouterr().err.startswith("notifyq: /proc/none: ")
