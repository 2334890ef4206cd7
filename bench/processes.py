"""The processes that are measured: workers, whose traces are read, and pgbench, which publishes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from notifyq.errors import NotifyqError
from notifyq.server.launch import Tie, launcher

from . import machine
from .server import pgbench

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

_TIE = Tie.thread if sys.platform == "linux" else Tie.pipe
_LAST_LINES = 5
_FAREWELL = 3.0
"""Seconds that a process has after a signal."""


@dataclass(frozen=True, slots=True)
class Command:
    """A program to start: its arguments, folder, and variables beside those of this process."""

    arguments: Sequence[str]
    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)


class Crew:
    """Worker processes of one system, and what their handlers say.

    A handler says `BENCH pid n time` when it begins a message with the key n.
    """

    def __init__(self) -> None:
        self.begun: dict[int, float] = {}
        """When the handler of message n began, by this machine's clock."""
        self.seen: set[int] = set()
        """The worker processes that have handled such a message."""
        self._heard = asyncio.Condition()
        self._processes: list[asyncio.subprocess.Process] = []
        self._said: deque[str] = deque(maxlen=_LAST_LINES)

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, commands: Sequence[Command]) -> AsyncIterator[Crew]:
        """Start the workers; they end with this block, and with this process however it ends."""
        crew = cls()
        readers: list[asyncio.Task[None]] = []
        try:
            for command in commands:
                process = await _start(command)
                crew._processes.append(process)
                readers.append(asyncio.create_task(crew._read(process)))
            yield crew
        finally:
            await asyncio.gather(*(_end(process) for process in crew._processes))
            await asyncio.gather(*readers, return_exceptions=True)

    def cpu(self) -> float | None:
        """CPU seconds of the workers so far."""
        return machine.cpu_seconds([process.pid for process in self._processes])

    @property
    def said(self) -> str:
        """The last lines of the workers, for an error."""
        return " / ".join(self._said) or "no reason"

    def check(self) -> None:
        """Raise if a worker has ended."""
        for process in self._processes:
            if process.returncode is not None:
                raise NotifyqError(f"a worker has ended: {self.said}")

    async def wait(self, number: int, timeout: float) -> bool:
        """Tell whether the handler of message `number` began within `timeout` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout), self._heard:
                await self._heard.wait_for(lambda: number in self.begun)
        return number in self.begun

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None  # noqa: S101  it was asked for
        async for line in process.stdout:
            words = line.decode(errors="replace").split()
            if words[:1] != ["BENCH"]:
                self._said.append(" ".join(words))
                continue
            async with self._heard:
                self.seen.add(int(words[1]))
                self.begun.setdefault(int(words[2]), float(words[3]))
                self._heard.notify_all()


async def _start(command: Command) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *launcher(_TIE, None, command.arguments),
        cwd=command.folder,
        env={**os.environ, **command.variables},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=2**20,
        start_new_session=True,  # a group of its own, so that _end() ends its children, too
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a process and all that it has started: by SIGTERM, and soon by SIGKILL."""
    for number, patience in ((signal.SIGTERM, _FAREWELL), (signal.SIGKILL, _FAREWELL)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await process.wait()


async def call(command: Command, timeout: float = 60) -> str:
    """Run a program to its end and return its last line of output."""
    process = await _start(command)
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    finally:
        await _end(process)
    lines = output.decode(errors="replace").strip().splitlines()
    if process.returncode:
        said = " / ".join(lines[-_LAST_LINES:]) or "no reason"
        raise NotifyqError(f"{Path(command.arguments[0]).name} has failed: {said}")
    return lines[-1] if lines else ""


@dataclass(frozen=True, slots=True)
class Bench:
    """What pgbench says about its run."""

    transactions: int
    rate: float
    """Transactions a second."""


async def run_pgbench(
    dsn: str,
    script: str,
    *,
    clients: int = 1,
    seconds: float | None = None,
    transactions: int | None = None,
    protocol: str = "prepared",
) -> Bench:
    """Run a script with so many clients for a time, or for a number of transactions in all."""
    parts = urlsplit(dsn)
    length = ["-T", f"{seconds:.0f}"] if seconds else ["-t", str((transactions or 1) // clients)]
    where = ["-h", parts.hostname or "", "-p", str(parts.port or 5432), "-U", parts.username or ""]
    with tempfile.TemporaryDirectory(prefix="notifyq-bench-") as folder:
        path = Path(folder) / "script.sql"
        path.write_text(script + "\n", encoding="utf-8")
        threads = str(min(clients, 2))
        load = ["-n", "-M", protocol, "-c", str(clients), "-j", threads, *length, "-f", str(path)]
        command = Command(
            [pgbench(), *where, *load, unquote(parts.path.lstrip("/"))],
            Path(folder),
            {"PGPASSWORD": unquote(parts.password or ""), "LC_ALL": "C"},
        )
        process = await _start(command)
        try:
            output = (await process.communicate())[0].decode(errors="replace")
        finally:
            await _end(process)
    number = re.search(r"^number of transactions actually processed: (\d+)", output, re.MULTILINE)
    rate = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    if process.returncode or not number:
        said = " / ".join(output.strip().splitlines()[-_LAST_LINES:])
        raise NotifyqError(f"pgbench has failed: {said}")
    # It names no rate where nothing was committed in its time.
    return Bench(int(number[1]), float(rate[1]) if rate else 0.0)
