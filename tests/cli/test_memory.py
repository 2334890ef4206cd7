"""`notifyq worker --max-memory`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer

from cli.programs import Notifyq, Running
from notifyq.cli.memory import MemoryLimit
from notifyq.config import CommandSettings
from notifyq.errors import ConfigurationError

APP = """
import notifyq
app = notifyq.App()

@app.handler("q")
async def handle(_: int) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(APP)
    return tmp_path


@pytest.mark.parametrize("is_stopping", [False, True])
async def test_it_sets_the_exit_code_only_of_a_worker_that_it_has_stopped(
    is_stopping: bool,
) -> None:
    memory = MemoryLimit(1)
    called = asyncio.Event()

    def stop() -> bool:
        called.set()
        return not is_stopping

    with memory.watching(stop):
        await called.wait()
    if is_stopping:
        memory.end()
        return
    with pytest.raises(typer.Exit) as ended:
        memory.end()
    assert ended.value.exit_code == 75


async def test_without_a_limit_nothing_stops() -> None:
    memory = MemoryLimit(None)
    with memory.watching(pytest.fail):
        pass
    memory.end()


def test_a_worker_above_its_memory_ends_with_an_exit_code(database: str, folder: Path) -> None:
    env = {"NOTIFYQ_MAX_MEMORY": "1MB"}
    with Running(database, "worker", "own:app", env=env, cwd=folder) as worker:
        worker.logged("more than --max-memory: it stops")
        assert worker.end().code == 75


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("64 kB", 65536), ("1.5GB", 3 << 29), ("2T", 2 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert CommandSettings.load(max_memory=text).max_memory == size


@pytest.mark.parametrize("text", ["12 apples", "-5MB", "0", "0kB", "MB"])
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(ConfigurationError, match="setting max_memory: "):
        CommandSettings.load(max_memory=text)


def test_a_wrong_size_is_one_line(notifyq: Notifyq, folder: Path) -> None:
    line = notifyq.refused("worker", "own:app", "--max-memory", "5 MiB", folder=folder)
    assert "setting max_memory: " in line
    assert "'5 MiB' is not a size like 512MB or 2GB" in line
