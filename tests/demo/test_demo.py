"""`notifyq demo` as a newcomer runs it, on a small part of the library to be quick."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from cli.programs import NOTIFYQ, Result, Running, Terminal, environment
from notifyq.demo.index import index, source_files
from support.database import session

SMALL = ["demo", "--package", "json"]
ALONE = [*SMALL, "--workers", "1"]
FILES = [path for path in source_files() if path.startswith("json/")]


def facts(result: Result) -> dict[str, Any]:
    assert result.code == 0, result
    (found,) = result.data
    assert isinstance(found, dict)
    return found


def check(found: dict[str, Any]) -> None:
    """Check the sums of a run on the small package."""
    assert found["agrees"] is True
    assert found["published"] == found["archived"] == len(FILES) + 3
    assert found["statuses"] == {
        "success": len(FILES),
        "rejected": 1,
        "failed": 1,
        "lock_expired": 1,
    }
    assert {dead["status"] for dead in found["dead"]} == {"rejected", "failed", "lock_expired"}
    expected = sorted((index(path) for path in FILES), key=attrgetter("lines"), reverse=True)
    assert found["largest"] == [module.model_dump() for module in expected[:5]]
    assert 0 < found["wait_seconds"]["p50"] <= found["wait_seconds"]["p99"] <= found["seconds"]
    assert 0 < found["run_seconds"]["p50"] <= found["run_seconds"]["p99"] <= found["seconds"]


def test_two_demos_at_once_have_separate_totals(empty_database: str) -> None:
    with Running(empty_database, *ALONE, "--json") as first:
        # The second one after the schema is there: two installations at once is another test.
        first.logged("indexing")
        with Running(empty_database, *ALONE, "--json") as second:
            for running in (first, second):
                result = running.end()
                check(facts(result))
                assert "Traceback" not in result.err


async def test_a_lost_message_is_detected(database: str) -> None:
    async with session(database) as connection:
        await connection.execute("""
            create function lose() returns trigger language plpgsql as 'begin return null; end';
            create trigger lose before insert on messages.message_archive for each row
              when (new.message->>'path' = 'json/tool.py') execute function lose();
        """)
    with Running(database, *ALONE) as running:
        result = running.end()
    assert result.code == 1
    assert (
        f"{len(FILES) + 3} published, {len(FILES) + 2} archived, which do not agree" in result.out
    )
    last = result.err.splitlines()[-1]
    assert re.fullmatch(r"notifyq: the totals disagree: .*; not in the archive: \d+", last)


def test_an_unknown_package_is_refused(database: str) -> None:
    with Running(database, "demo", "--package", "../json") as running:
        result = running.end()
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("notifyq: there is no package '../json' in /")


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


def pasted(text: str) -> list[str]:
    """Take the commands to see more out of what the demo printed."""
    lines = text[text.index("to see more") :].splitlines()[1:]
    commands = [line for line in lines if line.startswith("  ")]
    program = " ".join(NOTIFYQ)
    assert all(program in line or " export NOTIFYQ_DSN=" in line for line in commands)
    return commands


def paste(commands: list[str], env: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-e", "-c", "\n".join(commands)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    return done.stdout


def test_terminal_shows_a_bar_tables_and_commands_that_work(database: str) -> None:
    password = database.split(":")[2].split("@")[0]
    with Terminal("", *ALONE, "--dsn", database) as terminal:
        assert terminal.end() == 0
    assert "\x1b[?25l" in terminal.shown  # the cursor is hidden while the bar moves
    assert "━" in terminal.shown
    text = plain(terminal.shown)
    assert password not in text
    for header in (
        r"^status +messages$",
        r"^time +p50 +p95 +p99",
        r"^largest modules +lines +tokens +functions +classes +imports$",
        r"^ *dead +status +reason",
    ):
        assert re.search(header, text, re.MULTILINE), header
    largest = index("json/encoder.py").model_dump().values()
    assert re.search(r"^" + " +".join(map(str, largest)) + "$", text, re.MULTILINE)
    tables = text[text.index("status ") : text.index("to see more")]
    assert max(map(len, tables.splitlines())) <= 80
    commands = pasted(text)
    env = environment(PGPASSWORD=password)
    del env["NOTIFYQ_HOME"]
    shown = paste(commands, env)
    assert "demo.library" in shown
    assert "lock_expired" in shown


@pytest.fixture
def home() -> Iterator[dict[str, str]]:
    """Give an environment for a private server; it is stopped after the test."""
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        Path(folder).chmod(0o711)
        env = {"NOTIFYQ_HOME": f"{folder}/home"}
        yield env
        subprocess.run([*NOTIFYQ, "server", "stop"], env=environment(**env), check=True)


@pytest.mark.timeout(180)
def test_private_server_is_started_and_killed_with_its_demo(home: dict[str, str]) -> None:
    with Running(None, "demo", "--json", env=home) as running:
        running.logged("starting a private PostgreSQL in")
        running.logged("indexing: ")  # workers are at work
        family = descendants(running.process.pid)
        assert len(family) > 3
        watched = [os.pidfd_open(pid) for pid in family]
        running.process.send_signal(signal.SIGKILL)
        for handle in watched:
            with closing(os.fdopen(handle)) as process:
                assert select.select([process], [], [], 30)[0], "a process is left"
    with Running(None, *SMALL, env=home) as running:
        result = running.end()
    assert result.code == 0, result
    assert f"{len(FILES) + 3} published, {len(FILES) + 3} archived, each once" in result.out
    shown = paste(pasted(result.out), environment(**home))
    assert "PostgreSQL is running" in shown
    assert "FileNotFoundError" in shown


def descendants(pid: int) -> list[int]:
    """Return all processes that this one started, and those that they did."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *descendants(child)]
    return found
