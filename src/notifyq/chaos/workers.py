"""Real worker processes: started, killed, paused, and always cleaned up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from notifyq.chaos.errors import ChaosError
from notifyq.chaos.kinds import FOLDER, PROCESS
from notifyq.chaos.tied import tied

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_COMMAND = ["-P", "-m", "notifyq", "worker", "notifyq.chaos.work:app", "--log-level", "warning"]
_START_SECONDS = 30.0
_LOOK = 0.01
"""Seconds between two looks at a process."""


class WorkerProcess:
    """A place for a worker: the process that runs there, and after its end the next one."""

    def __init__(self, place: int, dsn: str, folder: Path, variables: Mapping[str, str]) -> None:
        self._place = place
        self._folder = folder
        self._variables = {**variables, "NOTIFYQ_DSN": dsn, FOLDER: str(folder)}
        self._process: subprocess.Popen[bytes] | None = None
        self._generation = 0
        self.is_paused = False
        self.was_ended = False
        """Whether we have killed the process, or asked it to stop."""

    @property
    def name(self) -> str:
        """What the process is called in the history, such as worker-2.1."""
        return f"worker-{self._place}.{self._generation}"

    @property
    def pid(self) -> int:
        """The process id of the one that was started last."""
        return self._running().pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the process ended; None while it runs."""
        return self._running().poll()

    def start(self) -> None:
        """Start a process here; it needs some time until it claims."""
        self._generation += 1
        self.is_paused = self.was_ended = False
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  the command is our own
                tied([sys.executable, *_COMMAND]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**_environment(), **self._variables, PROCESS: self.name},
                start_new_session=True,  # a Ctrl-C in the terminal is ours
            )

    async def started(self) -> None:
        """Wait until the worker claims."""
        file = self._folder / f"{self.name}.jsonl"
        give_up = time.monotonic() + _START_SECONDS
        while not (file.exists() and b'"op": "started"' in file.read_bytes()):
            if not self.is_alive or time.monotonic() > give_up:
                raise ChaosError(f"{self.name} did not start: {self.last_words()}")
            await asyncio.sleep(_LOOK)

    def kill(self) -> None:
        """End the process at once; return when it has gone."""
        process = self._running()
        self.was_ended = True
        process.kill()
        process.wait()
        self.is_paused = False

    def pause(self) -> None:
        """Stop the process where it is."""
        self._running().send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Let a paused process go on, none the wiser."""
        self._running().send_signal(signal.SIGCONT)
        self.is_paused = False

    async def terminate(self, seconds: float = 15) -> float:
        """Ask the worker to stop and wait for it; return how many seconds it took.

        Raises ChaosError where it had to be killed.
        """
        began = time.monotonic()
        self.was_ended = True
        self._running().terminate()
        while self.is_alive:
            if time.monotonic() - began > seconds:
                self.kill()
                raise ChaosError(f"{self.name} did not stop within {seconds:.0f} s of a SIGTERM")
            await asyncio.sleep(_LOOK)
        return time.monotonic() - began

    def restart(self) -> None:
        """Start the next process here; one that still runs is killed."""
        if self.is_alive:
            self.kill()
        self.start()

    def close(self) -> None:
        """Leave no process behind."""
        if self._process is not None:
            self.kill()

    def last_words(self) -> str:
        """The end of what the process has logged."""
        text = (self._folder / f"{self.name}.log").read_text(errors="replace")
        return " / ".join(text.splitlines()[-3:]) or "it has logged nothing"

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChaosError(f"there is no worker at place {self._place} yet")
        return self._process


def _environment() -> dict[str, str]:
    """The environment without settings of notifyq that are somebody else's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("NOTIFYQ_")}
