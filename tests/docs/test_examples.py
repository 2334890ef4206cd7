"""Every example in README.md and docs works, page by page and in the order of the page."""

from __future__ import annotations

import ast
import asyncio
import base64
import codeop
import inspect
import re
import sys
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import CodeType, ModuleType

import asyncpg
import pytest

from docs.pages import DOCS, PAGES, Block, blocks, commands, page_id
from notifyq import App
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
SQL = [page for page in PAGES if blocks(page, "sql") and page.stem != "tutorial"]


def sessions(page: Path) -> list[Block]:
    """Return the blocks that await something at their top, which only a session can do."""
    return [block for block in blocks(page, "python") if _awaits(block.text)]


def _awaits(text: str) -> bool:
    try:
        compile(text, "", "exec", dont_inherit=True)
    except SyntaxError:
        return True
    return False


SESSIONS = [page for page in PAGES if sessions(page)]

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
    "chancy": "create table chancy_jobs (kwargs json, func text, priority int, "
    "scheduled_at timestamptz, unique_key text, state text, queue text, created_at timestamptz)",
    "river": "create table river_job (id bigint, args jsonb, kind text, priority smallint, "
    "scheduled_at timestamptz, max_attempts int, attempt int, metadata jsonb, state text)",
    "oban": "create table oban_jobs (id bigint, args jsonb, worker text, priority int, "
    "scheduled_at timestamp, max_attempts int, attempt int, queue text, state text)",
    "graphile-worker": "create schema graphile_worker; "
    "create table graphile_worker._private_tasks (id int, identifier text); "
    "create table graphile_worker._private_jobs (id bigint, task_id int, payload json, "
    "priority smallint, run_at timestamptz, key text, max_attempts smallint, attempts smallint, "
    "locked_at timestamptz)",
    "pg-boss": "create schema pgboss; create table pgboss.job (name text, data jsonb, "
    "priority int, start_after timestamptz, singleton_key text, retry_limit int, "
    "retry_count int, state text, created_on timestamptz)",
    "good-job": "create table good_jobs (serialized_params jsonb, job_class text, priority int, "
    "scheduled_at timestamp, created_at timestamp, finished_at timestamp, performed_at timestamp, "
    "queue_name text)",
}


@pytest.mark.parametrize("page", SQL, ids=page_id)
async def test_sql_runs(page: Path, connection: Connection) -> None:
    await connection.fetchval("select messages.create_queue('billing')")
    # Roles belong to the server, not to the database of the test: all of it is rolled back.
    await connection.execute("begin")
    await connection.execute(_CRON + THERE.get(page.stem, ""))
    for block in blocks(page, "sql"):
        text = re.sub(r"^(begin|commit);$", "", block.text, flags=re.MULTILINE)
        try:
            await connection.execute(text)
        except asyncpg.PostgresError as error:
            pytest.fail(f"{page.name}, line {block.line}: {error}")
    await connection.execute("rollback")


@pytest.mark.parametrize("page", PYTHON, ids=page_id)
async def test_python_runs(
    page: Path, database: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    await connection.fetchval("select messages.create_queue('billing', max_attempts => 5)")
    # What the text around the examples assumes.
    module = ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    given = vars(module)
    given.update(connection=connection, timedelta=timedelta, app_dsn=database, hub_dsn=database)
    if page.stem == "relay":
        await connection.execute(
            "select messages.create_queue('incoming'), messages.create_queue('large'), "
            "messages.publish('billing', '{\"test\": false, \"total\": 2000}')"
        )
    servers = ExitStack()
    if page.stem == "brokers":
        await connection.execute(SUBSCRIBE)
        given["nats_url"] = url = servers.enter_context(nats_server()).url
        async with jetstream(url) as there:
            await there.add_stream(name="orders", subjects=["orders.>"])
    try:
        for block in blocks(page, "python"):
            # In a thread where nothing is awaited: calls that block refuse to where a loop runs.
            result = await asyncio.to_thread(eval, compiled(block), given)
            if inspect.isawaitable(result):
                await result
    finally:
        servers.close()
        for app in [value for value in given.values() if isinstance(value, App)]:
            await app.close()


@pytest.mark.parametrize("page", SESSIONS, ids=page_id)
def test_sessions_can_be_pasted(page: Path) -> None:
    """As `python -m asyncio` reads them: line by line, where a blank line ends a statement."""
    for block in sessions(page):
        console = codeop.CommandCompiler()
        console.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        lines: list[str] = []
        for number, line in enumerate([*block.text.splitlines(), ""]):
            lines.append(line)
            try:
                code = console("\n".join(lines), str(page), "single")
            except SyntaxError as error:
                pytest.fail(f"{page.name}, line {block.line + number}: {error}")
            if code is not None:
                lines.clear()
        assert not lines, f"{page.name}, line {block.line}: {lines[0]!r} does not end"


def compiled(block: Block) -> CodeType:
    code: CodeType = compile(
        "\n" * (block.line - 1) + block.text,  # an error names the line of the page
        str(block.page),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )
    return code


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
async def prepared(database: str, connection: Connection) -> str:
    """Give a database where messages 1 and 2 are live, 3 and 4 are dead."""
    await connection.execute("""
      select messages.create_queue('billing', max_attempts => 1);
      select messages.publish_many('billing', array['1', '2', '3', '4']::jsonb[]);
      select messages.finish(c.id, c.lock_token, 'failed', 'no')
      from messages.claim_id(3) as c;
      select messages.finish(c.id, c.lock_token, 'failed', 'no')
      from messages.claim_id(4) as c;
    """)
    return database


# Not async: a command runs an event loop of its own, and some need the main thread.
def test_the_examples_of_commands_work(
    prepared: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", prepared)
    monkeypatch.chdir(tmp_path)  # some write files
    monkeypatch.setenv("NOTIFYQ_KEYS", f"k1:{base64.b64encode(bytes(32)).decode()}")
    page = DOCS / "reference/commands.md"
    lines = tmp_path / "lines"
    lines.write_text("1\n2\n")
    ran = 0
    for line, args in commands(page):
        # These run until they are stopped, have a server of their own, or need another queue or
        # more packages.
        is_long = args[0] in {
            "worker",
            "broker",
            "server",
            "demo",
            "bench",
            "chaos",
            "import",
            "relay",
            "dashboard",
            "mcp",
            "metrics",
            "report",
            "spark",
        }
        # These run until a signal, need the app of the examples, or make a login of the server.
        if is_long or " ".join(args[:2]) in {
            "dead watch", "schedules apply", "stream tail", "roles create",
        }:  # fmt: skip
            continue
        if args[0] == "ping" and "--as" in args:
            continue
        if args[0] == "top" and "--once" not in args:  # there is no terminal
            continue
        with lines.open() as stdin:
            monkeypatch.setattr(sys, "stdin", stdin)
            if "--subscriber" in args:  # the page has dropped that stream
                cli._invoke(["stream", "create", "orders"], debug=False)
                cli._invoke(["stream", "subscribe", "orders", "warehouse"], debug=False)
            code = cli._invoke(args, debug=False)
        output = capfd.readouterr()
        # No dead message of this test has such an error.
        assert code == ("--fingerprint" in args), f"{line}: {output.out}{output.err}"
        ran += 1
    assert ran > 30
