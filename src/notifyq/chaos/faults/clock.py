"""Wrong clocks, of the workers and of the server: libfaketime, set by a file."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.chaos.faults.base import Fault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call
    from notifyq.chaos.rig import Rig

_HOUR = 3600
_BACK = 300
_SETTLES = 1.1
"""Seconds until all processes see a step: they read the file once a second."""
_MEMORY = Path("/dev/shm")  # noqa: S108  POSIX shared memory of Linux


def library() -> Path | None:
    """Return libfaketime for programs with threads, if it is installed."""
    folders = ("lib*/faketime", "lib*/*/faketime", "local/lib/faketime")
    found = (it for at in folders for it in Path("/usr").glob(f"{at}/libfaketimeMT.so.1"))
    return next(found, None) if sys.platform == "linux" else None


class Clock:
    """The clock of all processes started with `environment`; correct until it is stepped.

    Only the wall clock is faked: monotonic time and file times stay correct.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._semaphore = f"{file.name}-semaphore"
        self.environment = {
            "LD_PRELOAD": str(library() or ""),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_CACHE_DURATION": "0",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else the library changes monotonic deadlines, and threads wait too long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
            # Else each process makes its own, which it cannot open after giving up root, and which
            # a kill -9 leaves behind.
            "FAKETIME_SHARED": f"/{self._semaphore} /{file.name}",
        }

    def make(self) -> None:
        """Make the files of a correct clock."""
        self.step(0)
        memory = _MEMORY / self._file.name
        memory.write_bytes(bytes(4096))
        memory.chmod(0o666)
        sem_open = ctypes.CDLL(None).sem_open
        sem_open.restype = ctypes.c_void_p
        if not sem_open(f"/{self._semaphore}".encode(), os.O_CREAT, 0o666, 1):
            raise OSError("sem_open failed: no semaphore for libfaketime")
        (_MEMORY / f"sem.{self._semaphore}").chmod(0o666)

    def step(self, seconds: float) -> None:
        """Set the clock so many seconds after the machine's; negative: behind it."""
        partial = self._file.with_name(f"{self._file.name}.partial")
        partial.write_text(f"{seconds:+.0f}\n")
        partial.chmod(0o644)  # the server runs as another user
        os.replace(partial, self._file)  # noqa: PTH105  atomic: a process may be reading it

    def remove(self) -> None:
        """Delete the files; running processes keep the last step that they saw."""
        for name in (self._file.name, f"sem.{self._semaphore}"):
            (_MEMORY / name).unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)


_CLOCK = Clock(Path(tempfile.gettempdir()) / f"notifyq-chaos-clock-{os.getpid()}")


class _Clocked(Fault):
    """A fault of a clock; it needs a new cluster, because the clock is in its environment."""

    own_server = True

    def lacking(self) -> str | None:
        return None if library() else "needs libfaketime (Debian: apt install faketime)"

    def prepare(self, folder: Path) -> None:
        _CLOCK.make()

    def clean_up(self) -> None:
        _CLOCK.remove()

    async def step(self, rig: Rig, seconds: float) -> None:
        """Step the clock, and wait until all see it."""
        # The checker must know: instants of the database may occur twice.
        call = rig.history.invoke("clock" if self.environment else "worker clock", seconds=seconds)
        _CLOCK.step(seconds)
        await asyncio.sleep(_SETTLES)
        call.ok()


class ClockWorker(_Clocked):
    """The workers' clocks jump by an hour, forward and back."""

    name = "clock-worker"
    worker_settings = _CLOCK.environment
    # Kinds that never outlive their lock and need one attempt only.
    mix = {"quick": 4, "slow": 1, "reject": 1}

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            for _ in rig.rounds():
                await self.step(rig, rig.random.choice((-_HOUR, 0, _HOUR)))
            await self.step(rig, 0)

    async def conclude(self, rig: Rig, history: Sequence[Call]) -> None:
        """Check that each message was executed once: no lock expired early."""
        again = sum(call.op == "execute" and call.fields["attempts"] > 1 for call in history)
        rig.figure("early expiries", again, most=0)


class ClockServer(_Clocked):
    """The server's clock is set back by 5 minutes, and later corrected."""

    name = "clock-server"
    environment = _CLOCK.environment

    async def inject(self, rig: Rig) -> None:
        with rig.injecting(self.name):
            await self.step(rig, -_BACK)
            # Its messages must be claimed again, at the latest after the clock is correct.
            rig.kill_worker()
            await rig.pause(rig.seconds)
            await self.step(rig, 0)
