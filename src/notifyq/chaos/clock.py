"""A clock for processes in place of the machine's: libfaketime, set by a file."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_CACHE_SECONDS = 0
"""Full seconds, besides the current one, before a process reads the file again."""
_MEMORY = Path("/dev/shm")  # noqa: S108  POSIX shared memory of Linux
_MEMORY_BYTES = 4096


def library() -> Path | None:
    """Return libfaketime for programs with threads, if it is installed."""
    if not sys.platform.startswith("linux"):
        return None
    folders = [*Path("/usr/lib").glob("*/faketime")]
    folders += [Path(it) / "faketime" for it in ("/usr/lib", "/usr/lib64", "/usr/local/lib")]
    files = [folder / "libfaketimeMT.so.1" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def lacking() -> str | None:
    """Return why this machine cannot have such clocks; None if it can."""
    return None if library() else "needs libfaketime (Debian: apt install faketime)"


class Clock:
    """The clock of all processes started with `environment`; correct until it is stepped.

    Only the wall clock is faked: monotonic time and file times stay correct.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._semaphore = f"{file.name}-semaphore"

    @property
    def settles(self) -> float:
        """Seconds until all processes see a step."""
        return _CACHE_SECONDS + 1.1

    @property
    def environment(self) -> dict[str, str]:
        """Variables that give a process this clock."""
        return {
            "LD_PRELOAD": str(library() or ""),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(_CACHE_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else the library changes monotonic deadlines, and threads wait too long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
            # Else each process makes its own, which it cannot open after giving up root, and which
            # a kill -9 leaves behind.
            "FAKETIME_SHARED": f"/{self._semaphore} /{self._file.name}",
        }

    def make(self) -> None:
        """Make the files of a correct clock."""
        self.step(0)
        memory = _MEMORY / self._file.name
        memory.write_bytes(bytes(_MEMORY_BYTES))
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
