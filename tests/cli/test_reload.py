"""`notifyq worker --reload`: what was written to a file is what runs next."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from cli.programs import Running
from notifyq import ConfigurationError
from notifyq.cli.processes import run_and_reload
from support.database import Connection, rows, until, value

PROGRAM = """
import notifyq
app = notifyq.App()

@app.handler("q")
def handle(payload: int) -> str:
    return "{answer}"
"""


@contextmanager
def stopped(worker: Running) -> Iterator[None]:
    """Leave no worker behind that would hold the pipes of the output."""
    try:
        yield
    finally:
        if worker.process.poll() is None:
            os.killpg(worker.process.pid, signal.SIGKILL)


async def test_a_worker_starts_again_when_a_file_changes_and_survives_a_broken_one(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    module = tmp_path / "handlers.py"

    async def answer(expected: str) -> None:
        id_ = await value(connection, "publish", queue="q", message=1)

        async def is_answered() -> bool:
            found = await rows(connection, "archive_find", id=id_)
            return bool(found) and found[0]["result"] == expected

        await until(is_answered, f"the handler answers {expected}")

    module.write_text(PROGRAM.format(answer="one"))
    args = ("worker", "handlers:app", "--reload", "--grace", "1s", "--dsn", database)
    with Running(database, *args, cwd=tmp_path, process_group=0) as worker, stopped(worker):
        worker.logged(" has started")
        await answer("one")
        module.write_text(PROGRAM.format(answer="two"))
        assert "handlers.py changed" in worker.logged("changed")
        worker.logged(" has started")
        await answer("two")
        module.write_text("def")
        worker.logged("cannot be imported: SyntaxError")
        module.write_text(PROGRAM.format(answer="three"))
        worker.logged(" has started")
        await answer("three")
        ended = worker.stop(signal.SIGTERM)
    assert ended.code == 0
    assert " has stopped" in ended.err


def test_reload_without_watchfiles_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'notifyq\[reload\]'"):
        run_and_reload(timedelta(seconds=1))
