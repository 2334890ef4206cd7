"""Pipelines on a standalone cluster whose executors are as on another machine. Needs root."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from notifyq.spark.connection import connect
from notifyq.spark.lake.export import export
from notifyq.spark.lake.lake import Lake
from spark.archived import archive
from spark.cluster import Cluster, lives, until
from spark.killed import ALL, MANY, Export

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def cluster(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    probe = ["unshare", "--net", "--mount", "true"]
    if os.geteuid() or subprocess.run(probe, capture_output=True, check=False).returncode:
        give_up = pytest.fail if os.environ.get("NOTIFYQ_REQUIRE_SPARK") == "1" else pytest.skip
        give_up("only root may give the executors a network of their own, and not everywhere")
    with Cluster(tmp_path_factory.mktemp("cluster"), server) as made:
        yield made


@pytest.fixture
def session(database: str) -> Iterator[Connection[Any]]:
    with closing(connect(database)) as opened:
        yield opened


@pytest.fixture
def private(cluster: Cluster) -> Iterator[Path]:
    """Give a folder that the driver has, and the executors have not."""
    folder = cluster.private / "mine"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)
    for number in range(len(cluster.workers)):
        if cluster.workers[number].poll() is None:
            cluster.inside(number, f"rm -rf {folder}")


def everywhere(cluster: Cluster, file: Path) -> None:
    """Give the executors a copy of a file in the folder that is another one there."""
    for number in range(len(cluster.workers)):
        cluster.inside(number, f"mkdir -p {file.parent}; echo '{file.read_text()}' > {file}")


def test_executors_get_nothing_that_is_on_the_driver_only(cluster: Cluster) -> None:
    facts = cluster.call("facts")
    assert facts["host"] == cluster.here
    assert facts["python"] == sys.executable
    assert {python for _, python in facts["machines"]} == {sys.executable}
    assert len({machine for machine, _ in facts["machines"]}) == 1


@pytest.mark.parametrize("name", [it.name for it in ALL.values() if it.has_workers])
def test_each_pipeline_moves_all_rows_once(cluster: Cluster, database: str, name: str) -> None:
    folder = cluster.shared / name
    folder.mkdir()
    pipeline = ALL[name](database, folder)
    pipeline.begin()
    pipeline.prepare(0)
    cluster.call("run", pipeline=name, dsn=cluster.dsn(database), folder=str(folder))
    assert pipeline.check(0) == MANY


def test_a_read_has_all_rows(cluster: Cluster, database: str, session: Connection[Any]) -> None:
    archive(session, MANY)
    lake = cluster.shared / "frame"
    export(database, lake)
    assert cluster.call("read", dsn=cluster.dsn(database)) == MANY
    assert cluster.call("frame", dsn=cluster.dsn(database), lake=str(lake)) == MANY


def test_files_of_a_load_are_found_from_where_the_call_is(
    cluster: Cluster, database: str, private: Path
) -> None:
    text = "".join(f"{json.dumps({'n': n})}\n" for n in range(MANY))
    dsn, queue = cluster.dsn(database), "default"
    (cluster.shared / "rows.jsonl").write_text(text)
    # The driver is in the shared folder, and no executor is.
    given = {"dsn": dsn, "name": "relative", "files": ["rows.jsonl"], "queue": queue}
    assert cluster.call("load", **given) == MANY
    hidden = private / "hidden.jsonl"
    hidden.write_text(text)
    given = {"dsn": dsn, "name": "hidden", "files": [str(hidden)], "queue": queue}
    with pytest.raises(AssertionError, match=r"ConfigurationError: .*hidden.jsonl cannot be read"):
        cluster.call("load", **given)
    for number in (0, 1):
        cluster.inside(number, f"mkdir -p {private}; echo '{{}}' > {hidden}")
    with pytest.raises(
        AssertionError, match=r"has 3 bytes on .* every executor must have the same"
    ):
        cluster.call("load", **given)
    with closing(connect(database)) as session:
        assert session.execute("select count(*) from messages.message").fetchall() == [(MANY,)]


def test_a_loopback_address_is_refused_where_it_is_another_machine(
    cluster: Cluster, database: str, session: Connection[Any]
) -> None:
    archive(session, 10)
    words = ["export", "--lake", str(cluster.shared / "loopback"), "--engine", "spark"]
    assert cluster.call("command", words=words, dsn=database) == 1
    assert Lake(database, cluster.shared / "loopback").files() == []
    with pytest.raises(AssertionError, match=r"the DSN names 127.0.0.1, which on"):
        cluster.call("read", dsn=database)
    assert cluster.call("command", words=words, dsn=cluster.dsn(database)) == 0
    assert Lake(database, cluster.shared / "loopback").dataset().count_rows() == 10


def test_a_lake_that_executors_do_not_share_gets_nothing(
    cluster: Cluster, database: str, session: Connection[Any], private: Path
) -> None:
    archive(session, MANY)
    session.execute("select notifyq.make_partitions(), messages.create_stream('facts')")
    session.execute("select messages.publish('facts', '1')")
    session.execute("update messages.queue set retention = '1 day'")
    dsn, lake = cluster.dsn(database), private / "lake"
    words = ["export", "--lake", str(lake), "--engine", "spark", "--prune"]
    streamed = ["stream", "facts", "--lake", str(lake), "--once", "--engine", "spark"]

    def refused(reason: str) -> None:
        before = cluster.log("driver")
        assert cluster.call("command", words=words, dsn=dsn) == 1
        assert reason in (output := cluster.log("driver").removeprefix(before))
        assert cluster.call("command", words=streamed, dsn=dsn) == 1
        assert reason in cluster.log("driver").removeprefix(before + output)
        opened = Lake(database, lake)
        assert opened.files() == opened.files("events_facts") == []
        # Retention trusts in what was committed.
        session.execute("select notifyq.drop_partitions()")
        here = session.execute("select count(*) from messages.message_archive").fetchall()
        assert here == [(MANY,)]

    refused("is not visible on")
    # Executors that have a lake of the same name there, and the driver none of their files.
    everywhere(cluster, lake / "_notifyq.json")
    refused("though a task wrote it: nothing was committed")


def test_a_lake_that_executors_do_not_share_is_not_read(
    cluster: Cluster, database: str, session: Connection[Any], private: Path
) -> None:
    archive(session, MANY)
    dsn, lake = cluster.dsn(database), private / "lake"
    export(database, lake)
    session.execute("select messages.create_queue('again')")
    rollup = ["rollup", "--lake", str(lake), "--engine", "spark"]
    replay = ["replay", "r", "--lake", str(lake), "--to", "again", "--engine", "spark"]
    for words in (rollup, replay):
        before = cluster.log("driver")
        assert cluster.call("command", words=words, dsn=dsn) == 1
        assert "is not visible on" in cluster.log("driver").removeprefix(before)
    with pytest.raises(AssertionError, match=r"FILE_NOT_EXIST|does not exist"):
        cluster.call("frame", dsn=dsn, lake=str(lake))
    for table in ("notifyq.rollup", "messages.message"):
        assert session.execute(f"select from {table}".encode()).fetchall() == []


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_an_executor_or_a_worker_that_is_killed_loses_and_doubles_nothing(
    cluster: Cluster, database: str, victim: str
) -> None:
    folder = cluster.shared / victim
    gate = folder / "gate"
    gate.mkdir(parents=True)
    pipeline = Export(database, folder)
    pipeline.has_iceberg = False
    pipeline.prepare(0)
    given = {"dsn": cluster.dsn(database), "lake": str(folder / "lake"), "gate": str(gate)}
    cluster.begin("gated", **given)
    # Each executor has written all files of a task, and has not reported them.
    until("two tasks", lambda: len(list(gate.iterdir())) == 2)
    executor = until("an executor", lambda: cluster.executor(0))
    worker = cluster.workers[0]
    os.kill(executor if victim == "executor" else worker.pid, signal.SIGKILL)
    until("the executor's end", lambda: not lives(executor))
    (gate / "open").touch()
    assert cluster.result() == MANY
    assert pipeline.check(0) == MANY
    known = {file.path for file in Lake(database, folder / "lake").files()}
    found = list((folder / "lake/archive").rglob("part-*.parquet"))
    assert len(found) > len(known)
    # The position that was killed comes again, but for a worker.
    assert cluster.executors() == (2 if victim == "executor" else 1)
