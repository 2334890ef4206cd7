"""The tutorial works: its files, commands and sessions, in the order of the page."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

import pytest

from docs.pages import DOCS, blocks
from docs.reader import Reader
from support.database import session, until_equal

PAGE = DOCS / "start/tutorial.md"
# The test has its own server and schema.
_SKIPPED = ("python3 -m venv", "pip install", "notifyq server", "notifyq init", "export ")
_WORKER = "notifyq worker shop:app"
_DUE = "select count(*) from messages.message where available_at < now() + interval '20 seconds'"


class Customer(Reader):
    """A reader with one worker, which starts again with each change of its file."""

    def __init__(self, folder: Path, dsn: str, server: str) -> None:
        super().__init__(folder, dsn, NOTIFYQ_TEST_DSN=server)
        self._worker: subprocess.Popen[str] | None = None
        self.output: dict[str, str] = {}

    def write(self, name: str, text: str, mode: str) -> None:
        """Write a file or add to it; the worker starts again with it."""
        with (self.folder / name).open(mode, encoding="utf-8") as file:
            file.write(f"\n\n{text}")
        if self._worker is not None and name == "shop.py":
            self.stop_worker()
            self.start_worker()

    def start_worker(self) -> None:
        """Start the worker, and wait until it is ready."""
        self._worker = subprocess.Popen(
            ["bash", "-c", f"exec {_WORKER}"],
            cwd=self.folder,
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._worker.stderr is not None
        lines = []
        while "listening, in session" not in (line := self._worker.stderr.readline()):
            lines.append(line)
            assert line, "".join(lines)

    def stop_worker(self) -> None:
        """Stop the worker as Ctrl-C does."""
        assert self._worker is not None
        self._worker.send_signal(signal.SIGINT)
        _, errors = self._worker.communicate(timeout=30)
        assert self._worker.returncode == 0, errors
        self._worker = None

    def run(self, line: str) -> None:
        """Run a line in the shell."""
        if line == _WORKER:
            self.start_worker()
        elif not line.startswith(_SKIPPED):
            self.output[line] = self.shell(line)

    def wait(self) -> None:
        """Wait until no message is due."""

        async def wait() -> None:
            async with session(self.dsn) as connection:
                await until_equal(lambda: connection.fetchval(_DUE), 0, "no message is due")

        asyncio.run(wait())


@pytest.mark.timeout(180)  # not async: the commands are processes
def test_the_tutorial_works(database: str, server: str, tmp_path: Path) -> None:
    reader = Customer(tmp_path, database, server)
    try:
        for block in blocks(PAGE, "sh", "python", "sql"):
            first, _, rest = block.text.partition("\n")
            if first.startswith("# add to "):
                reader.write(first.removeprefix("# add to "), rest, "a")
            elif first.startswith("# "):
                reader.write(first.removeprefix("# "), rest, "w")
            elif block.language == "python":
                reader.output[block.text] = reader.session([block])
            elif block.language == "sql":
                reader.query([block])
            else:
                for line in block.text.splitlines():
                    reader.run(line)
                    if line.startswith("notifyq publish"):
                        reader.wait()
        reader.wait()
    finally:
        reader.stop_worker()
    check(reader.output)
    results = asyncio.run(archived(database))
    assert results["sent to joan@example.org"] == "live"
    assert results["sent to mary@example.org"] == "success"
    assert results["report sent"] == "success"
    assert results["receipt 7 for a parcel of 2 kg"] == "success"


def check(output: dict[str, str]) -> None:
    """Check what the page promises of its commands."""
    assert "success" in output["notifyq ls --finished"]
    assert "sent to ada@example.org" in output["notifyq show 1"]
    assert "nobody is not an address" in output["notifyq dead ls"]
    assert "the carrier does not answer" in output["notifyq show 4"]
    assert "order 7 is picked up" in output["notifyq show 4"]
    assert "morning_report" in output["notifyq schedules"]
    assert "warehouse" in output["notifyq stream lag orders"]
    assert "parcel:7" in output["notifyq parked"]
    sessions = "".join(text for code, text in output.items() if code.startswith("import"))
    assert "'sent to alan@example.org'" in sessions
    assert ">>> 1\n" in sessions
    assert "2 passed" in next(text for line, text in output.items() if "pytest" in line)


async def archived(database: str) -> dict[str, str]:
    async with session(database) as connection:
        rows = await connection.fetch(
            "select result #>> '{}' as result, status::text from messages.message_archive "
            "union all select 'sent to ' || (message ->> 'to'), 'live' from messages.message"
        )
    return {row["result"]: row["status"] for row in rows}
