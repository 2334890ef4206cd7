"""Locks on files, which fall with their process however it ends, and bounded waiting."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from notifyq.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Longer than the slowest start, whose end others wait for.
_TURN_SECONDS = 120.0


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return True as soon as the condition holds, False when the time is up."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for it if need be."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not wait_until(lambda: takes(handle), _TURN_SECONDS):
            raise ServerError(f"another process keeps {path} locked: try again later")
        yield
    finally:
        os.close(handle)


def takes(handle: int) -> bool:
    """Lock an open file if nobody else has it locked."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
