"""Lakes and files are paths: a URI is refused before anything is made, wherever it is given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notifyq.cli import main as cli
from notifyq.errors import ConfigurationError, InvalidArgumentError
from notifyq.spark import pipelines
from notifyq.spark.connection import connect
from notifyq.spark.publish.history import lake_counts
from spark.archived import archive

URIS = [
    "s3://bucket/lake", "s3a://bucket/lake", "S3://bucket/lake", "s3:/bucket/lake", "s3:lake",
    "hdfs://host:8020/lake", "hdfs:/lake", "hdfs:", "gs://bucket", "dbfs:/lake",
    "abfss://container@account.dfs.core.windows.net/lake", "file:///data/lake", "file:/data/lake",
]  # fmt: skip
MAPPING = pipelines.mapping("default", {}, None)

LAKES: dict[str, Callable[[str, Any], object]] = {
    "Lake": pipelines.Lake,
    "create": pipelines.Lake.create,
    "export": pipelines.export,
    "prune": pipelines.prune,
    "verify": pipelines.verify,
    "rollup": pipelines.rollup,
    "tidy": pipelines.tidy,
    "replay": lambda dsn, lake: pipelines.replay(dsn, "r", lake=lake, to="default"),
    "dry replay": lambda dsn, lake: pipelines.replay(dsn, "r", lake=lake, dry_run=True),
    "counts": lambda dsn, lake: lake_counts(dsn, lake, pipelines.Choice()),
    "stream": lambda dsn, lake: pipelines.stream_to_lake(dsn, lake, "default"),
}
FILES: dict[str, Callable[[str, Any], object]] = {
    "load": lambda dsn, file: pipelines.load(dsn, "l", [file], MAPPING),
    "rejects": lambda dsn, file: pipelines.load(dsn, "l", [], MAPPING, rejects=file),
}
COMMANDS = [
    "export --lake URI",
    "rollup --lake URI",
    "tidy --lake URI",
    "tidy --repair --lake URI",
    "replay r --lake URI --to default",
    "replay r --lake URI --dry-run",
    "stream s --lake URI",
    "load l URI --queue default",
    "load l rows.jsonl --queue default --rejects URI",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty folder, in which a URI that is taken for a path would make another."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [*LAKES, *FILES])
def test_a_uri_is_refused_and_creates_nothing(name: str, here: Path) -> None:
    for uri in URIS:
        for given in (uri, Path(uri)):
            with pytest.raises(ConfigurationError, match="is a URI"):
                # It is refused before any connection: there is no database.
                {**LAKES, **FILES}[name]("host=/nowhere", given)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_uri(
    command: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "host=/nowhere")
    words = ["spark", *command.replace("URI", "s3://bucket/path").split()]
    assert cli._invoke(words, debug=False) == 2
    assert "s3://bucket/path is a URI" in " ".join(capfd.readouterr().err.split())
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "archive export s3://bucket/archive.parquet",
        "archive export s3://bucket/days --by day --format csv",
        "report --out s3://bucket/report.html",
    ],
)
def test_a_command_without_a_lake_refuses_a_uri(
    command: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "host=/nowhere")
    assert cli._invoke(command.split(), debug=False) == 1
    assert "s3:/bucket" in (output := capfd.readouterr().err)
    assert "is a URI" in output
    assert list(here.iterdir()) == []


def test_the_database_keeps_no_uri_as_a_location(database: str) -> None:
    from notifyq.spark.connection import translated

    with closing(connect(database)) as session:
        for uri in URIS:
            with pytest.raises(InvalidArgumentError, match="is a URI"), translated():
                session.execute("select notifyq.create_lake(%s)", (uri,))
        assert session.execute("select from notifyq.lake").fetchall() == []


def test_a_path_with_a_colon_is_a_path(database: str, here: Path) -> None:
    with closing(connect(database)) as session:
        archive(session, 10)
    for lake in ("./a:b/lake", "12:00", "a b:c", here / "s3:" / "lake", "C"):
        (here / "rows").mkdir(exist_ok=True)
        assert pipelines.export(database, lake).rows == 10
        assert pipelines.verify(database, lake) == 2
    assert not {it.name for it in here.iterdir()} - {"a:b", "12:00", "a b:c", "s3:", "C", "rows"}
