"""The three clients keep every rule, and the command line reports it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from conformance.rules import RULES, judge
from notifyq.server import debian_binaries, wheel_binaries
from support.database import ROOT, Connection, until, value

CLIENTS = ROOT / "clients"
BASH = str(CLIENTS / "bash/conformance.sh")

every_rule = pytest.mark.parametrize("rule", RULES)


@pytest.fixture
def psql(monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the path of psql, and have the client find it."""
    folders = [os.environ["PATH"], *map(str, filter(None, (debian_binaries(), wheel_binaries())))]
    found = shutil.which("psql", path=os.pathsep.join(folders))
    if found is None:
        pytest.skip("there is no psql")
    monkeypatch.setenv("PATH", os.pathsep.join(folders))
    return found


@pytest.fixture(scope="session")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the client in JavaScript with what it needs."""
    if missing := [name for name in ("node", "npm") if shutil.which(name) is None]:
        reason = f"there is no {' and no '.join(missing)}"
        if os.environ.get("NOTIFYQ_REQUIRE_NODE"):
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("javascript") / "client"
    shutil.copytree(CLIENTS / "javascript", folder, ignore=shutil.ignore_patterns("node_modules"))
    install = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"npm ci failed: {done.stderr}")
    return folder


@every_rule
async def test_python(rule: str, database: str) -> None:
    command = [sys.executable, str(CLIENTS / "python/conformance.py")]
    await judge(rule, database, command, patience=30)


@every_rule
async def test_bash(rule: str, database: str, psql: str) -> None:
    assert psql
    await judge(rule, database, [BASH], patience=30)


@every_rule
async def test_javascript(rule: str, database: str, javascript: Path) -> None:
    await judge(rule, database, ["node", str(javascript / "conformance.js")], patience=30)


def test_the_types_of_javascript(javascript: Path) -> None:
    tsc = ["node_modules/.bin/tsc", "--noEmit", "--strict", "--module", "nodenext", "example.ts"]
    done = subprocess.run(tsc, cwd=javascript, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", ["javascript/worker.js", "bash/worker.sh"])
def test_a_worker_is_short(name: str) -> None:
    assert (CLIENTS / name).read_text(encoding="utf-8").count("\n") < 150


# It keeps the arguments of each psql, and the handler those of all processes.
SPY = r"""#!/bin/sh
tr '\0' ' ' <"/proc/$$/cmdline" >>"$SEEN"
echo >>"$SEEN"
exec "$REAL_PSQL" "$@"
"""
HANDLER = r"""cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' >>"$SEEN"
cat; printf 'the reason: it%ss \\n\n& more' "'" >&2; exit 65"""


async def test_arguments_of_psql_have_neither_password_nor_values(
    database: str, psql: str, tmp_path: Path, connection: Connection
) -> None:
    role, password = "notifyq_bash_worker", "p%Se:cr'et\\ ?&@/x"
    seen, spy = tmp_path / "seen", tmp_path / "psql"
    spy.write_text(SPY, encoding="utf-8")
    spy.chmod(0o755)
    literal = await connection.fetchval("select quote_literal($1)", password)
    await connection.execute(f"create role {role} login password {literal} in role notifyq_worker")
    await value(connection, "publish", queue="default", message="hidden")
    parts = database.partition("@")
    dsn = f"postgresql://{role}:{quote(password, safe='')}@{parts[2]}"
    path = f"{tmp_path}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "SEEN": str(seen), "REAL_PSQL": psql, "NOTIFYQ_DSN": dsn}
    worker = [str(CLIENTS / "bash/worker.sh"), "--queue", "default", "--", "sh", "-c", HANDLER]
    try:
        with subprocess.Popen(worker, env=env) as process:  # noqa: ASYNC220  quick
            try:
                details = "select details from messages.message_archive"
                await until(lambda: connection.fetchval(details), "the message is rejected", 30)
            finally:
                process.terminate()
        text = seen.read_text(encoding="utf-8", errors="replace")
        assert await connection.fetchval(details) == "the reason: it's \\n\n& more"
    finally:
        await connection.execute(f"drop owned by {role}; drop role {role}")
    assert text.count(f"{role}@") >= 3
    assert not [it for it in ("Se:cr", "Se%3Acr", "hidden", "the reason: it's") if it in text]


@pytest.mark.parametrize("dsn", ["password=secret host=h", "postgresql://h/d?password=secret"])
def test_a_password_that_would_be_an_argument_is_refused(dsn: str) -> None:
    worker = [str(CLIENTS / "bash/worker.sh"), "--queue", "default", "--", "true"]
    env = {**os.environ, "NOTIFYQ_DSN": dsn}
    done = subprocess.run(worker, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "PGPASSWORD" in done.stderr
    assert "secret" not in done.stderr


# An id that only one of the two commands can hold.
FORGED = "s/messages.finish(:id, :token/messages.finish(:id, :token + 1/"


@pytest.mark.parametrize(
    ("mutant", "code", "line"),
    [("", 0, "1 of 1 rules are kept"), (FORGED, 1, "0 of 1 rules are kept")],
    ids=["kept", "broken"],
)
async def test_the_command_line(
    mutant: str, code: int, line: str, database: str, psql: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(__file__).parent}/mutant:{os.environ['PATH']}")
    monkeypatch.setenv("REAL_PSQL", psql)
    monkeypatch.setenv("MUTANT", mutant)
    monkeypatch.chdir(ROOT)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.conformance", "--dsn", database, "--patience", "5",
         "--only", "claim", "--", BASH],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    first, *_, last = done.stdout.splitlines()
    assert (done.returncode, last) == (code, line), done.stderr
    assert first.startswith("BROKEN  claim" if code else "ok      claim")
