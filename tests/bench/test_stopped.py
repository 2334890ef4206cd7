"""SIGTERM in the middle of a case: no process, no folder and no database is left."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cli.programs import Running
from support.database import session, until, until_equal


def started_with(folder: Path) -> list[str]:
    """Return the processes whose environment names a folder: those of a run and their children."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(("case", "program"), [("drain", " worker "), ("publish", "pgbench ")])
async def test_a_signal_leaves_nothing(
    case: str, program: str, server: str, tmp_path: Path
) -> None:
    (tmp_path / "tmp").mkdir()
    args = ("bench", "--case", case, "--system", "notifyq", "--dsn", server)
    running = Running(None, *args, env={"TMPDIR": str(tmp_path / "tmp")}, cwd=tmp_path)

    def databases(observer: Any) -> Callable[[], Coroutine[Any, Any, int]]:
        return lambda: observer.fetchval(
            "select count(*) from pg_database where starts_with(datname, $1)",
            f"notifyq_bench_{running.process.pid}",
        )

    with running:
        async with session(server) as observer:
            await until(
                lambda: any(program in it for it in started_with(tmp_path)), "it measures", 60
            )
            assert await databases(observer)() == 1
            assert running.stop(signal.SIGTERM).code == 143
            await until_equal(databases(observer), 0, "no database is left")
    await until(lambda: not started_with(tmp_path), "no process is left")
    assert not list((tmp_path / "tmp").iterdir())
