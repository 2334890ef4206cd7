"""The examples of docs/integrations/pipelines.md, run by the tools that they are for.

Each tool has an environment of its own, as its packages do not go with all of ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
from sqlalchemy.engine import make_url

from docs.pages import DOCS, blocks
from notifyq import App
from spark.archived import archive
from support.database import until

PAGE = DOCS / "integrations/pipelines.md"
ENVIRONMENTS = Path(os.environ.get("NOTIFYQ_PIPELINES", "none"))
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        not ENVIRONMENTS.is_dir(),
        reason="Airflow, Dagster and dbt have environments of their own, which "
        "`.ci/run --all --step pipelines` makes",
    ),
]


def example(language: str, tool: str) -> str:
    """Return the example with this word."""
    [text] = [block.text for block in blocks(PAGE, language) if tool in block.text]
    return text


def run(program: str, *args: str, home: Path, code: int = 0, given: Mapping[str, str]) -> str:
    """Run TOOL/PROGRAM with the environment of the tool active, and return its output."""
    tool, _, name = program.partition("/")
    programs = ENVIRONMENTS / tool / "bin"
    kept = {
        variable: value
        for variable, value in os.environ.items()
        if variable != "PYTHONPATH" and not variable.startswith("NOTIFYQ_")
    }
    path = f"{programs}{os.pathsep}{kept['PATH']}"
    done = subprocess.run(
        [programs / name, *args],
        env={**kept, "PATH": path, "HOME": str(home), **given},
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


_AIRFLOW = """
from datetime import UTC, datetime

import nightly

at = datetime(2026, 11, 2, 0, 30, tzinfo=UTC)
for _ in range(2):  # the same run again
    run = nightly.nightly().test(run_after=at, logical_date=at)
    assert run.state == "success", run.state
"""


async def test_airflow(app: App, database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as session:
        for number, day in enumerate(("2026-10-31", "2026-11-01", "2026-11-02")):
            archive(session, 5, day=f"{day} 00:00+00", first=10 * number)
    await app.admin.create_queue("billing")
    text = example("python", "airflow.sdk").replace("/data/", f"{tmp_path}/")
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags/nightly.py").write_text(text)
    given = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "false",
        "NOTIFYQ_DSN": database,
        "PYTHONPATH": str(tmp_path / "dags"),
    }

    def call(program: str, *args: str) -> str:
        return run(f"airflow/{program}", *args, home=tmp_path, given=given)

    async def close() -> None:
        async with app.inbox() as inbox:
            while True:
                if message := await inbox.wait(["billing"], timeout=10):
                    await inbox.finish(message, result="closed")

    await asyncio.to_thread(call, "airflow", "db", "migrate")
    closing = asyncio.create_task(close())
    try:
        await asyncio.to_thread(call, "python", "-c", _AIRFLOW)
    finally:
        closing.cancel()
        await asyncio.wait([closing])
    ended = await app.archive.finished("billing")
    assert [it.payload() for it in ended if it.dedup_key] == [{"day": "2026-11-01"}]
    assert [it.name for it in tmp_path.glob("*.parquet")] == ["2026-11-01.parquet"]
    copied = pq.read_table(tmp_path / "2026-11-01.parquet").column("id").to_pylist()
    assert sorted(copied) == [11, 12, 13, 14, 15]


_DAGSTER = """
import json
import os

import dagster as dg
import psycopg

import pipeline

DSN = os.environ["NOTIFYQ_DSN"]
done = {"failed": {}}
with dg.DagsterInstance.ephemeral() as instance:
    for day in ("2026-11-01", "2026-11-02", "2026-11-01"):
        result = dg.materialize(
            [pipeline.archive, pipeline.failures], partition_key=day, instance=instance
        )
        [made] = result.asset_materializations_for_node("failures")
        done["failed"][day] = {name: value.value for name, value in made.metadata.items()}
    with psycopg.connect(DSN) as first, psycopg.connect(DSN) as late:
        publish = "select messages.publish('orders', jsonb_build_object('order_id', %s::int))"
        first.execute(publish, [1])
        late.execute(publish, [2])
        first.commit()
        first.execute(publish, [3])
        first.commit()
        cursor, done["runs"] = None, []
        for _ in range(3):
            context = dg.build_sensor_context(instance=instance, cursor=cursor)
            found = pipeline.orders(context)
            done["runs"].append(
                [
                    dg.materialize(
                        [pipeline.invoice], run_config=it.run_config, instance=instance
                    ).output_for_node("invoice")
                    for it in found.run_requests
                ]
            )
            cursor = found.cursor
            late.commit()
dg.Definitions(
    assets=[pipeline.archive, pipeline.failures, pipeline.invoice], sensors=[pipeline.orders]
)
print(json.dumps(done))
"""


def test_dagster(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as session:
        session.execute("select messages.create_stream('orders')")
        archive(session, 14, day="2026-11-01 00:00+00")
        archive(session, 7, day="2026-11-02 00:00+00", first=20, queues=("mail",))
    text = example("python", "dagster").replace("/data/lake", str(tmp_path / "lake"))
    (tmp_path / "pipeline.py").write_text(text)
    given = {"NOTIFYQ_DSN": database, "PYTHONPATH": str(tmp_path)}
    output = run("dagster/python", "-c", _DAGSTER, home=tmp_path, given=given)
    done = json.loads(output.splitlines()[-1])
    assert done == {
        "failed": {"2026-11-01": {"billing": 1, "mail": 1}, "2026-11-02": {"mail": 1}},
        "runs": [[1, 3], [2], []],
    }


_PROFILE = {"type": "postgres", "threads": 1, "schema": "analytics"}
_PROJECT = {"name": "shop", "profile": "shop", "config-version": 2}


@pytest.fixture(params=["reader", "viewer"])
def role(request: pytest.FixtureRequest, database: str) -> Iterator[str]:
    """Give a role that may read the queues mail and billing, and has a schema of its own."""
    name = f"test_analyst_{request.param}"
    with psycopg.connect(database, autocommit=True) as session:
        for queue in ("billing", "mail"):
            session.execute("select messages.create_queue(%s)", [queue])
        session.execute(f"create role {name} in role notifyq_{request.param}")
        try:
            session.execute(f"create schema analytics authorization {name}")
            for queue in ("billing", "mail"):
                session.execute("select messages.grant_read(%s, %s)", [queue, name])
            yield name
        finally:
            session.execute(f"drop owned by {name} cascade; drop role {name}")


async def test_dbt(role: str, database: str, tmp_path: Path) -> None:
    where = make_url(database)
    profile = _PROFILE | {
        "host": where.host or where.query["host"],
        "port": int(where.port or str(where.query.get("port", 5432))),
        "user": where.username,
        "password": where.password or "",
        "dbname": where.database,
        "role": role,
    }
    sources = example("yaml", "sources:")
    if role.endswith("viewer"):
        sources = sources.replace("schema: messages", "schema: notifyq")
        name = "- name: message_archive"
        sources = sources.replace(name, f"{name}\n        identifier: readable_archive")
    (tmp_path / "models").mkdir()
    for name, text in {
        "dbt_project.yml": json.dumps(_PROJECT),
        "profiles.yml": json.dumps({"shop": {"target": "test", "outputs": {"test": profile}}}),
        "models/sources.yml": sources,
        "models/finished_message.sql": example("jinja", "incremental"),
    }.items():
        (tmp_path / name).write_text(text)

    def build(code: int = 0) -> str:
        given = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
        return run("dbt/dbt", "build", home=tmp_path, code=code, given=given)

    with ExitStack() as stack:
        session, late = (stack.enter_context(psycopg.connect(database)) for _ in range(2))

        def found() -> list[Any]:
            with session.transaction():
                rows = session.execute("select id from analytics.finished_message order by id")
                return [number for (number,) in rows]

        archive(session, 3)
        archive(late, 1, first=10)  # is not committed when the model first runs
        archive(session, 1, first=20)
        session.commit()
        build()
        assert found() == [1, 2, 3, 21]
        late.commit()
        archive(session, 1, first=30)
        session.commit()
        build()
        assert found() == [1, 2, 3, 11, 21, 31]

        async def is_by_index() -> bool:
            with session.transaction():
                used = session.execute(
                    "select sum(s.idx_scan) from pg_inherits as i "
                    "join pg_stat_all_indexes as s on s.indexrelid = i.inhrelid "
                    "where i.inhparent = 'messages.message_archive_xid_idx'::regclass"
                ).fetchone()
            return used is not None and used[0] > 0

        await until(is_by_index, "a session has reported its use of the index")
        build()
        assert found() == [1, 2, 3, 11, 21, 31]
        session.execute("update analytics.finished_message set position = '1' || position")
        session.commit()
        assert "this position is of another server" in build(code=1)
