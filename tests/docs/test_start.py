"""The first page that is read does what it says: its commands and programs, in its order."""

from __future__ import annotations

import ast
import asyncio
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from docs.pages import blocks
from notifyq.cli import main as cli
from support.database import ROOT, session, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = ROOT / "docs/start.md"
# The test brings server and schema of its own.
_ELSEWHERE = ("python3 -m venv", "pip install", "notifyq server", "notifyq init", "export ")
_WORKER = "notifyq worker mail:app"


@pytest.mark.timeout(120)  # not async: each command runs an event loop of its own
def test_a_newcomer_gets_through(
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("NOTIFYQ_DSN", database)
    monkeypatch.syspath_prepend(str(tmp_path))
    handler, *programs = blocks(PAGE, "python")
    assert handler.text.startswith("# mail.py\n")
    (tmp_path / "mail.py").write_text(handler.text, encoding="utf-8")
    lines = [
        line
        for block in blocks(PAGE, "sh")
        for line in block.text.splitlines()
        if not line.startswith(_ELSEWHERE)
    ]
    assert lines.pop(0) == _WORKER
    shown: dict[str, str] = {}
    with working(tmp_path):
        for line in lines:
            assert cli._invoke(shlex.split(line)[1:], debug=False) == 0, line
            shown[line] = capfd.readouterr().out
            if line.startswith("notifyq publish"):
                asyncio.run(states(database, []))
        code = compile(
            "\n".join(block.text for block in programs),
            str(PAGE),
            "exec",
            flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        asyncio.run(awaited(code))
        assert capfd.readouterr().out == "sent to grace@example.org\n"
        asyncio.run(execute(database, [block.text for block in blocks(PAGE, "sql")]))
        asyncio.run(states(database, ["scheduled"]))
    assert "rejected" in shown["notifyq ls --finished"]
    assert "sent to ada@example.org" in shown["notifyq show 1"]
    assert "nobody is no address" in shown["notifyq dead ls"]
    assert asyncio.run(results(database)) == [
        f"sent to {name}@example.org" for name in ("ada", "grace", "alan", "mary")
    ]


async def awaited(code: Any) -> None:
    await eval(code, {})


@contextmanager
def working(folder: Path) -> Iterator[None]:
    """Run the worker of the page, and stop it as Ctrl-C does."""
    args = [sys.executable, "-m", *shlex.split(_WORKER)]
    worker = subprocess.Popen(args, cwd=folder, env=os.environ, stderr=subprocess.PIPE, text=True)
    try:
        assert worker.stderr is not None
        assert "ListenerConnected" in worker.stderr.readline()
        yield
    finally:
        worker.send_signal(signal.SIGINT)
        _, said = worker.communicate(timeout=30)
    assert worker.returncode == 0, said


async def states(database: str, wanted: list[str]) -> None:
    """Wait until what is live is in these states."""
    async with session(database) as connection:

        async def are_so() -> bool:
            rows = await connection.fetch("select state::text from messages.message")
            return [row["state"] for row in rows] == wanted

        await until(are_so, f"live messages are {wanted}")


async def execute(database: str, texts: list[str]) -> None:
    async with session(database) as connection:
        for text in texts:
            await connection.execute(text)


async def results(database: str) -> list[str]:
    async with session(database) as connection:
        rows = await connection.fetch(
            "select result #>> '{}' as said from messages.message_archive order by id"
        )
    return [row["said"] for row in rows]
