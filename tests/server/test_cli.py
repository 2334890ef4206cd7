"""The commands of `notifyq server`."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.programs import Terminal
from notifyq.cli.server import server as commands
from notifyq.operations.doctor import Finding, Level, examine
from notifyq.server import Server


@pytest.fixture
def run(spot: Path, binaries: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("NOTIFYQ_PG_BIN", str(binaries))
    return lambda *arguments, **more: CliRunner().invoke(commands, arguments, **more)


async def public_of(dsn: str) -> list[Finding]:
    return [it async for _, it in examine(dsn, only=["public"])]


def test_server_is_started_described_and_stopped(run: Callable[..., Result], spot: Path) -> None:
    started = run("start")
    assert started.exit_code == 0, started.output
    assert str(spot / "home") in started.stdout
    assert "export NOTIFYQ_DSN=" in started.stdout
    url = run("url").stdout.strip()
    assert url.startswith("postgresql://postgres:")
    [public] = asyncio.run(public_of(url))
    assert (public.level, public.found) == (Level.OK, "the private server has one user only")
    facts = json.loads(run("status", "--json").stdout)
    assert facts["status"] == "running"
    assert f":{facts['port']}/" in url
    assert facts["bytes"] > 1_000_000
    assert f"pid        {facts['pid']}\n" in run("status").stdout
    assert run("start").exit_code == 0
    assert run("url").stdout.strip() == url
    assert run("stop").exit_code == 0
    assert run("stop").exit_code == 0
    stopped = run("status", "--json")
    assert stopped.exit_code == 3
    assert json.loads(stopped.stdout)["pid"] is None


def test_stopped_server_has_no_url(run: Callable[..., Result]) -> None:
    result = run("url")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "notifyq server start" in result.stderr


def test_delete_needs_a_confirmation(
    run: Callable[..., Result], spot: Path, server: Server
) -> None:
    shutil.move(server.directory, spot / "home")
    assert run("start").exit_code == 0
    refused = run("stop", "--delete")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--yes" in refused.stderr
    with Terminal("", "server", "stop", "--delete", NOTIFYQ_HOME=str(spot / "home")) as terminal:
        terminal.show("Remove all data")
        terminal.type("n\n")
        assert terminal.end() != 0
    assert (spot / "home/data").exists()
    assert run("stop", "--delete", "--yes").exit_code == 0
    assert not (spot / "home/data").exists()
