"""Every example in README.md and docs works, page by page and in the order of the page."""

from __future__ import annotations

import asyncio
import base64
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from docs.pages import DOCS, PAGES, Block, blocks, commands, page_id
from docs.reader import Reader
from notifyq.cli import main as cli
from relay.arrivals import SUBSCRIBE, jetstream
from support.brokers import nats_server
from support.database import Connection

# Some need more packages: tests/spark runs them. test_tutorial.py runs its own, and what the page
# on Django shows are parts of workers/django_shop, which tests/integrations runs. Airflow, Dagster
# and dbt run theirs there, too.
APART = {"django", "lake", "loads", "pipelines", "spark", "tutorial"}
PYTHON = [page for page in PAGES if blocks(page, "python") and page.stem not in APART]
SHELL = [page for page in PAGES if any(commands(page))]
# Other tests run these in the order of the page.
IN_ORDER = [DOCS / "start/tutorial.md", DOCS / "operations/growing.md"]
SQL = [page for page in PAGES if blocks(page, "sql") and page.stem != "tutorial"]


# What a server with pg_cron has; for the examples it need not work.
_CRON = """
create schema cron;
create function cron.schedule(text, text, text) returns bigint return 1;
create function cron.schedule_in_database(text, text, text, text) returns bigint return 1;
create function cron.unschedule(bigint) returns boolean return true;
create table cron.job
  (jobid bigint, jobname text, schedule text, username text, database text, active boolean);
create table cron.job_run_details
  (jobid bigint, runid bigint, status text, return_message text, start_time timestamptz,
  end_time timestamptz);
"""


# The tables of other systems whose rows a page moves.
THERE = {
    "awa": "create schema awa; create table awa.jobs (id bigint, kind text, queue text, "
    "args jsonb, state text, priority smallint, attempt smallint, max_attempts smallint, "
    "run_at timestamptz)",
    "chancy": "create table chancy_jobs (kwargs json, func text, priority int, "
    "scheduled_at timestamptz, unique_key text, state text, queue text, created_at timestamptz, "
    "max_attempts int, attempts int, meta json default '{}')",
    "river": "create table river_job (id bigint, args jsonb, kind text, priority smallint, "
    "scheduled_at timestamptz, max_attempts int, attempt int, metadata jsonb, state text)",
    "oban": "create table oban_jobs (id bigint, args jsonb, worker text, priority int, "
    "scheduled_at timestamp, max_attempts int, attempt int, queue text, state text)",
    "graphile-worker": "create schema graphile_worker; "
    "create table graphile_worker._private_tasks (id int, identifier text); "
    "create table graphile_worker._private_jobs (id bigint, task_id int, payload json, "
    "priority smallint, run_at timestamptz, key text, max_attempts smallint, attempts smallint, "
    "locked_at timestamptz, job_queue_id int); "
    "create table graphile_worker._private_job_queues (id int, queue_name text)",
    "pg-boss": "create schema pgboss; create table pgboss.job (name text, data jsonb, "
    "priority int, start_after timestamptz, singleton_key text, retry_limit int, "
    "retry_count int, state text, created_on timestamptz, started_on timestamptz, policy text, "
    "group_id text, blocked boolean, blocking boolean)",
    "good-job": "create table good_jobs (serialized_params jsonb, job_class text, priority int, "
    "scheduled_at timestamp, created_at timestamp, finished_at timestamp, performed_at timestamp, "
    "queue_name text)",
}


@pytest.mark.parametrize("page", SQL, ids=page_id)
async def test_sql_runs(page: Path, database: str, connection: Connection, tmp_path: Path) -> None:
    await connection.fetchval("select messages.create_queue('billing')")
    reader = Reader(tmp_path, database)
    # Roles belong to the server, not to the database of the test: nothing of it is committed.
    found = [
        replace(block, text=re.sub(r"^(begin|commit);$", "", block.text, flags=re.MULTILINE))
        for block in blocks(page, "sql")
    ]
    reader.query(found, f"begin; {_CRON} {THERE.get(page.stem, '')}")


# What the text around the examples assumes.
_GIVEN = """
import asyncio, asyncpg, os
from datetime import timedelta

app_dsn = hub_dsn = os.environ["NOTIFYQ_DSN"]
nats_url = os.environ.get("NATS_URL")
connection = await asyncpg.connect(app_dsn)
"""


@pytest.mark.parametrize("page", PYTHON, ids=page_id)
async def test_python_runs(
    page: Path, database: str, connection: Connection, tmp_path: Path
) -> None:
    await connection.fetchval("select messages.create_queue('billing', max_attempts => 5)")
    if page.stem == "relay":
        await connection.execute(
            "select messages.create_queue('incoming'), messages.create_queue('large'), "
            "messages.publish('billing', '{\"test\": false, \"total\": 2000}')"
        )
    reader = Reader(tmp_path, database)
    with ExitStack() as servers:
        if page.stem == "brokers":
            await connection.execute(SUBSCRIBE)
            url = reader.environment["NATS_URL"] = servers.enter_context(nats_server()).url
            async with jetstream(url) as there:
                await there.add_stream(name="orders", subjects=["orders.>"])
        await asyncio.to_thread(reader.session, blocks(page, "python"), _GIVEN)


@pytest.mark.parametrize(
    "text",
    ["1 / 0\n", "await asyncio.sleep(0)\n1 / 0\n", "if await one():\n    a = 1\n\n    b = 2\n"],
    ids=["file", "session", "blank line in a session"],
)
def test_a_wrong_example_is_found(text: str, tmp_path: Path) -> None:
    block = Block(PAGES[0], 1, "python", text)
    with pytest.raises(AssertionError, match=r"(ZeroDivision|Indentation)Error"):
        Reader(tmp_path, "").session([block], "import asyncio")


@pytest.mark.parametrize("page", SHELL, ids=page_id)
def test_commands_can_be_parsed(page: Path) -> None:
    for line, args in commands(page):
        try:
            parse([arg for arg in args if arg not in {"--debug", "--version"}])
        except cli.UsageError as error:
            pytest.fail(f"{page.name}: {line}: {error}")


def parse(args: list[str]) -> None:
    """Have the command line read its arguments, and go no further."""
    command = cli.tree()
    context = command.make_context("notifyq", args or ["--version"], resilient_parsing=not args)
    while rest := [*getattr(context, "_protected_args", ()), *context.args]:
        if not hasattr(command, "resolve_command"):
            break
        called, command, rest = command.resolve_command(context, rest)
        context = command.make_context(called, rest, parent=context)


@pytest.fixture
async def prepared(page: Path, database: str, connection: Connection) -> str:
    """Give a database with messages, of which 3, 4, 17 and 18 are dead."""
    # The page on commands publishes those after 4 itself.
    most = 4 if page.stem == "commands" else 60
    await connection.execute(f"""
      select messages.create_queue('billing', max_attempts => 1);
      select messages.publish_many('billing', array_fill('1'::jsonb, array[{most}]));
      select messages.finish(c.id, c.lock_token, 'failed', 'no')
      from unnest(array[3, 4, 17, 18]) as dead, messages.claim_id(dead) as c
      where dead <= {most};
    """)
    return database


# What a page has before its lines: queues and streams.
_BEFORE = {
    "access": "notifyq queues create payments",
    "alembic": "mkdir migrations",
    "cheat-sheet": "notifyq queues create mail; notifyq stream create orders",
    "inspect": "notifyq queues create slow",
    "limits": "notifyq queues create tenants --key-concurrency 5; notifyq queues create calls",
    "replay": "notifyq stream create orders",
    "retries": "notifyq queues create mail",
}
# Lines that run until a signal, ask for an answer, have a server of their own, or need another
# queue, more packages, a login or files.
_APART = re.compile(
    r"notifyq (-|worker|broker|server|demo|bench|chaos|import|relay|dashboard|mcp|metrics|report|"
    r"spark|dead watch|stream tail|schedules apply|roles create|ping|top(?! --once))|--follow|"
    r"--fingerprint|--subscriber|shop_viewer|\$\(notifyq|^export NOTIFYQ_|"
    r"(cancel|run-now|move|amend) --queue (?!.*--yes)"
)


@pytest.mark.timeout(600)  # not async: the commands are processes
@pytest.mark.parametrize("page", [page for page in SHELL if page not in IN_ORDER], ids=page_id)
def test_lines_of_a_shell_run(page: Path, prepared: str, tmp_path: Path) -> None:
    key = base64.b64encode(bytes(32)).decode()
    reader = Reader(tmp_path, prepared, NOTIFYQ_KEYS=f"k1:{key}")
    (tmp_path / "lines").write_text("1\n2\n")
    lines = [
        line
        for block in blocks(page, "sh")
        for line in block.text.splitlines()
        if re.search(r"\bnotifyq ", line) and not _APART.search(line)
    ]
    reader.shell("\n".join(["exec < lines; set -x", _BEFORE.get(page.stem, ""), *lines]))
