"""Lakes are folders or URIs in one form, files are paths: others are refused before all else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from notifyq.cli import main as cli
from notifyq.errors import ConfigurationError, InvalidArgumentError
from notifyq.paths import lake_location
from notifyq.spark import pipelines
from notifyq.spark.connection import connect, translated
from notifyq.spark.publish.history import lake_counts
from spark.archived import archive

LOCATIONS = {
    "s3://bucket/lake": "s3://bucket/lake",
    "S3://bucket/lake/": "s3://bucket/lake",
    "gs://bucket": "gs://bucket",
    "hdfs://host:8020/a/lake": "hdfs://host:8020/a/lake",
    "abfss://container@account.dfs.core.windows.net/lake": (
        "abfss://container@account.dfs.core.windows.net/lake"
    ),
    "file:///data/a%20lake": "/data/a lake",
    "file://localhost/data/lake": "/data/lake",
    "/data/../data/lake": "/data/lake",
}
REFUSED = [
    "s3a://bucket/lake", "s3:/bucket/lake", "s3:lake", "s3://", "s3://bucket//lake",
    "s3://bucket/../lake", "s3://key:hidden@bucket/lake", "s3://key:hid/hidden@bucket/lake",
    "s3://bucket/lake?key=hidden",
    "s3://bucket/a b", "hdfs:/lake", "hdfs:", "dbfs:/lake", "https://bucket/lake",
    "abfs://container@account.dfs.core.windows.net/lake", "abfss://container/lake",
    "abfss://container:hidden@account.dfs.core.windows.net/lake", "wasbs://c@a/lake",
    "file:/data/lake", "file://host/data/lake",
]  # fmt: skip
URIS = [*REFUSED, *(uri for uri in LOCATIONS if "://" in uri)]
PRECISE = {"s3://bucket//lake", "s3://bucket/../lake", "s3://bucket/a b"}
"""What only Python refuses."""
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


def test_a_location_has_one_form() -> None:
    assert {given: lake_location(given) for given in LOCATIONS} == LOCATIONS


@pytest.mark.parametrize("name", LAKES)
def test_a_uri_that_is_no_lake_is_refused_and_creates_nothing(name: str, here: Path) -> None:
    # A path has lost a slash of its URI.
    for given in (*REFUSED, *map(Path, URIS)):
        with pytest.raises(ConfigurationError, match="is a URI that cannot be a lake") as caught:
            # It is refused before any connection: there is no database.
            LAKES[name]("host=/nowhere", given)
        assert "hidden" not in str(caught.value)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", FILES)
def test_a_uri_of_a_file_is_refused_and_creates_nothing(name: str, here: Path) -> None:
    for uri in URIS:
        for given in (uri, Path(uri)):
            with pytest.raises(ConfigurationError, match="is a URI") as caught:
                FILES[name]("host=/nowhere", given)
            assert "hidden" not in str(caught.value)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_refuses_a_uri(
    command: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "host=/nowhere")
    words = ["spark", *command.replace("URI", "s3a://bucket/path").split()]
    assert cli._invoke(words, debug=False) == 2
    assert "s3a://bucket/path is a URI" in " ".join(capfd.readouterr().err.split())
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        "archive export s3://bucket/archive.parquet",
        "archive export s3://bucket/days --by day --format csv",
        "report --out s3://bucket/report.html",
        "archive export s3://key:hidden@bucket/archive.parquet",
        "report --out s3://key:hidden@bucket/report",
    ],
)
def test_a_command_without_a_lake_refuses_a_uri(
    command: str, here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", "host=/nowhere")
    assert cli._invoke(command.split(), debug=False) == 1
    output = capfd.readouterr().err
    assert "bucket" in output
    assert "is a URI" in output
    assert "hidden" not in output
    assert list(here.iterdir()) == []


def test_the_database_keeps_no_credentials_and_no_other_uri_as_a_location(database: str) -> None:
    locations = list(dict.fromkeys(LOCATIONS.values()))
    with closing(connect(database)) as session:
        for uri in REFUSED:
            if uri in PRECISE:
                continue
            with pytest.raises(InvalidArgumentError, match="cannot be a lake"), translated():
                session.execute("select notifyq.create_lake(%s)", (uri,))
        assert session.execute("select from notifyq.lake").fetchall() == []
        for location in locations:
            session.execute("select notifyq.create_lake(%s)", (location,))
        found = session.execute("select location from messages.lakes() order by id").fetchall()
        assert [row[0] for row in found] == locations


def test_a_path_with_a_colon_is_a_path(database: str, here: Path) -> None:
    with closing(connect(database)) as session:
        archive(session, 10)
    for lake in ("./a:b/lake", "12:00", "a b:c", here / "s3:" / "lake", "C"):
        (here / "rows").mkdir(exist_ok=True)
        assert pipelines.export(database, lake).rows == 10
        assert pipelines.verify(database, lake) == 2
    assert not {it.name for it in here.iterdir()} - {"a:b", "12:00", "a b:c", "s3:", "C", "rows"}
