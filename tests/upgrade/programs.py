"""The command line of one package or another, with its output in a file."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.programs import environment
from support.database import until

APP = """
import notifyq

app = notifyq.App()


@app.handler("rolling")
async def handle(number: int) -> int:
    return number
"""


class Program:
    """A command that was started from the sources of a package."""

    def __init__(self, folder: Path, source: Path, dsn: str, *args: str) -> None:
        self._log = folder / f"log-{source.parent.name}-{args[0]}"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "notifyq", *args],
                cwd=folder,
                env=environment(NOTIFYQ_DSN=dsn, PYTHONPATH=str(source)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    async def expect(self, text: str) -> None:
        async def is_printed() -> bool:
            assert self.process.poll() in {None, 0}, self.output
            return text in self.output

        await until(is_printed, f"{text!r} in {self.output!r}")

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, 20)


@contextmanager
def running(folder: Path, source: Path, dsn: str, *args: str) -> Iterator[Program]:
    program = Program(folder, source, dsn, *args)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.wait()
