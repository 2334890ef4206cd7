"""Worker processes: started, killed, paused, and always cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from notifyq.chaos.history import ChaosError
from notifyq.chaos.kinds import FOLDER, PROCESS
from notifyq.chaos.server import tied, until

_COMMAND = ["-P", "-m", "notifyq", "worker", "notifyq.chaos.work:app", "--log-level", "warning"]


class WorkerProcess:
    """One of the workers of a run: its current process, and after a restart the next one."""

    process: subprocess.Popen[bytes]
    """The current process; after `start`."""

    def __init__(self, number: int, dsn: str, folder: Path, variables: Mapping[str, str]) -> None:
        self._number = number
        self._folder = folder
        self._variables = {**variables, "NOTIFYQ_DSN": dsn, FOLDER: str(folder)}
        self._generation = 0
        self.was_ended = False
        """Whether the rig killed the process or sent it a SIGTERM."""

    @property
    def name(self) -> str:
        """The name of the process in the history, such as worker-2.1."""
        return f"worker-{self._number}.{self._generation}"

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self.process.poll() is None

    def start(self) -> None:
        """Start the next process; `started` waits until it claims."""
        self._generation += 1
        self.was_ended = False
        # Without settings of notifyq: those of the caller must not apply.
        clean = {it: value for it, value in os.environ.items() if not it.startswith("NOTIFYQ_")}
        with (self._folder / f"{self.name}.log").open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  the command is our own
                tied([sys.executable, *_COMMAND]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**clean, **self._variables, PROCESS: self.name},
                start_new_session=True,  # a Ctrl-C in the terminal is for the rig only
            )

    async def started(self) -> None:
        """Wait until the worker claims."""
        file = self._folder / f"{self.name}.jsonl"

        def claims() -> bool:
            if not self.is_alive:
                raise ChaosError(f"{self.name} did not start: {self.last_words()}")
            return file.exists() and b'"op": "started"' in file.read_bytes()

        await until(claims, f"{self.name} claims")

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.was_ended = True
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        """Stop the process by SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process."""
        self.process.send_signal(signal.SIGCONT)

    async def terminate(self) -> float:
        """Send SIGTERM and wait for the end; return how many seconds it took.

        Raises ChaosError if the process had to be killed.
        """
        began = time.monotonic()
        self.was_ended = True
        self.process.terminate()
        try:
            await until(lambda: not self.is_alive, f"{self.name} ended after a SIGTERM", 15)
        except ChaosError:
            self.kill()
            raise
        return time.monotonic() - began

    def restart(self) -> None:
        """Start the next process; kill the current one if it still runs."""
        self.close()
        self.start()

    def close(self) -> None:
        """Kill the process if there is one."""
        if hasattr(self, "process"):
            self.kill()

    def last_words(self) -> str:
        """The last lines of the process's log."""
        text = (self._folder / f"{self.name}.log").read_text(errors="replace")
        return " / ".join(text.splitlines()[-3:]) or "its log is empty"
