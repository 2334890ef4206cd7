"""What a command made is gone when a signal ends it: folders, servers, processes, queues.

To a command each signal is an interrupt, see notifyq.signals: one command gets them all, which has
made a file only, and those that start servers and workers get one each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.programs import NOTIFYQ, Running, environment
from support.database import session, until, until_equal

CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Give a folder for all that a command makes, which a server of another user can enter."""
    with tempfile.TemporaryDirectory(prefix="notifyq-test-") as folder:
        Path(folder).chmod(0o711)
        (Path(folder) / "tmp").mkdir(mode=0o711)
        yield Path(folder)


def processes(folder: Path) -> list[str]:
    """Return the processes that have a folder in their arguments or work in it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            cwd = os.readlink(entry / "cwd")  # noqa: PTH115  not resolved any further
        except OSError:
            continue
        if str(folder) in arguments or cwd.startswith(str(folder)):
            found.append(f"{entry.name}: {arguments}")
    return found


async def is_clean(folder: Path) -> None:
    await until(lambda: not processes(folder), "no process is left")
    assert not list((folder / "tmp").iterdir())


def running(folder: Path, *args: str, dsn: str | None = None) -> Running:
    return Running(dsn, *args, env={"TMPDIR": str(folder / "tmp")}, cwd=folder)


async def test_bench(temporary: Path) -> None:
    with running(temporary, "bench", "--quick", "--case", "drain", "--system", "notifyq") as bench:
        bench.logged("round 1")
        assert any((temporary / "tmp").iterdir())
        assert bench.stop(signal.SIGTERM).code == CODES[signal.SIGTERM]
    await is_clean(temporary)


async def test_chaos(temporary: Path) -> None:
    args = ("chaos", "--faults", "worker-kill", "--minutes", "5")
    with running(temporary, *args) as chaos:
        await until(
            lambda: any("notifyq worker" in it or " worker " in it for it in processes(temporary)),
            "the workers are there",
            40,
        )
        assert chaos.stop(signal.SIGHUP).code == CODES[signal.SIGHUP]
    await is_clean(temporary)


async def test_demo(temporary: Path, database: str) -> None:
    with running(temporary, "demo", "--workers", "1", dsn=database) as demo:
        async with session(database) as connection:

            async def is_at_work() -> bool:
                if await connection.fetchval("select to_regclass('messages.message')") is None:
                    return False
                return bool(
                    await connection.fetchval(
                        "select exists (select from messages.message_archive "
                        "where queue = 'demo.modules')"
                    )
                )

            await until(is_at_work, "the demo is at work", 40)
            assert demo.stop(signal.SIGINT).code == CODES[signal.SIGINT]
            await until_equal(
                lambda: connection.fetchval(
                    "select count(*) from pg_stat_activity where pid <> pg_backend_pid() "
                    "and datname = current_database() and application_name like 'notifyq%'"
                ),
                0,
                "no session of the demo is left",
            )
            rows = await connection.fetch("select name from messages.queue")
            assert [row["name"] for row in rows if row["name"].startswith("demo")] == []
    await is_clean(temporary)


async def test_private_server_of_tests(temporary: Path) -> None:
    (temporary / "test_some.py").write_text(
        "import sys, threading\n"
        "def test_some(notifyq_dsn):\n"
        "    print('there', file=sys.__stderr__, flush=True)\n"
        "    threading.Event().wait(60)\n"
    )
    env = environment(TMPDIR=str(temporary / "tmp"))
    args = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    args += ["-p", "notifyq.testing.plugin", "test_some.py"]
    tests = subprocess.Popen(  # noqa: ASYNC220  nothing else runs meanwhile
        args, cwd=temporary, env=env, stderr=subprocess.PIPE, text=True
    )
    assert tests.stderr is not None
    for line in tests.stderr:
        if "there" in line:
            break
    assert any((temporary / "tmp").iterdir())
    tests.send_signal(signal.SIGTERM)
    tests.communicate(timeout=40)
    await is_clean(temporary)


@pytest.mark.parametrize(
    ("args", "end"),
    [
        *((("archive", "export", "out.csv"), end) for end in CODES),
        (("report", "-o", "out.html"), signal.SIGTERM),
    ],
)
async def test_file_that_is_not_complete(
    temporary: Path, database: str, args: tuple[str, ...], end: signal.Signals
) -> None:
    async with session(database) as connection, connection.transaction():
        await connection.execute("lock table messages.message_archive in access exclusive mode")
        with running(temporary, *args, dsn=database) as command:
            await until(
                lambda: connection.fetchval(
                    "select exists (select from pg_locks where not granted and database = "
                    "(select oid from pg_database where datname = current_database()))"
                ),
                "the command waits for the lock",
            )
            assert command.stop(end).code == CODES[end]
    assert [it.name for it in temporary.iterdir()] == ["tmp"]
    await is_clean(temporary)


def test_ignored_hangup_stays_ignored(temporary: Path, database: str) -> None:
    """As `nohup` wants it."""
    done = subprocess.run(
        ["bash", "-c", f"trap '' HUP; {' '.join(NOTIFYQ)} ping; kill -HUP $$; echo still"],
        env=environment(NOTIFYQ_DSN=database),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "ok\nstill\n"
