"""A clock that processes see instead of the machine's: libfaketime, steered by a file."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

_CACHE_SECONDS = 0
"""Whole seconds that must be over, beyond the one that runs, before a process looks again."""
_MEMORY = Path("/dev/shm")  # noqa: S108  where Linux keeps what processes share by name
_MEMORY_BYTES = 4096


def library() -> Path | None:
    """Return libfaketime in its edition for programs with threads, if it is installed."""
    if not sys.platform.startswith("linux"):
        return None
    places = [
        *Path("/usr/lib").glob("*/faketime"),
        Path("/usr/lib/faketime"),
        Path("/usr/lib64/faketime"),
        Path("/usr/local/lib/faketime"),
    ]
    files = [place / "libfaketimeMT.so.1" for place in places]
    return next((file for file in files if file.is_file()), None)


def lacking() -> str | None:
    """Say what keeps this machine from having such clocks."""
    return None if library() else "needs libfaketime (Debian: apt install faketime)"


class Clock:
    """The clock of all processes started with `environment`, right until it is stepped.

    Only the calendar is faked: monotonic time and what files say of theirs stay true.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._semaphore = f"{file.name}-semaphore"

    @property
    def settles(self) -> float:
        """Seconds after which all of them have seen a step."""
        return _CACHE_SECONDS + 1.1

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process sees this clock."""
        return {
            "LD_PRELOAD": str(library() or ""),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(_CACHE_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # The library would turn monotonic deadlines into others, and threads wait for too long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
            # Else each process makes these for itself: not to be opened by the user that it becomes
            # when it gives up root, and left behind by a kill -9.
            "FAKETIME_SHARED": f"/{self._semaphore} /{self._file.name}",
        }

    def make(self) -> None:
        """Make the files of a clock that is right."""
        self.step(0)
        memory = _MEMORY / self._file.name
        memory.write_bytes(bytes(_MEMORY_BYTES))
        memory.chmod(0o666)
        sem_open = ctypes.CDLL(None).sem_open
        sem_open.restype = ctypes.c_void_p
        if not sem_open(f"/{self._semaphore}".encode(), os.O_CREAT, 0o666, 1):
            raise OSError("no semaphore can be made")
        (_MEMORY / f"sem.{self._semaphore}").chmod(0o666)

    def step(self, seconds: float) -> None:
        """Set the clock to so many seconds after the machine's; negative: before it."""
        partial = self._file.with_name(f"{self._file.name}.partial")
        partial.write_text(f"{seconds:+.0f}\n")
        partial.chmod(0o644)  # the server runs as another user
        os.replace(partial, self._file)  # noqa: PTH105  in one step: a process may be reading it

    def remove(self) -> None:
        """Delete the files; what still runs keeps the step that it has seen."""
        for name in (self._file.name, f"sem.{self._semaphore}"):
            (_MEMORY / name).unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)
