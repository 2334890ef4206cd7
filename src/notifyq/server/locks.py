"""File locks, which end with their process, and waiting with a timeout."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from notifyq.errors import ServerError

_TURN_SECONDS = 120.0
"""Longer than the slowest start."""


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return True as soon as the condition holds, False after the timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file; wait for it if another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not wait_until(lambda: takes(handle), _TURN_SECONDS):
            raise ServerError(f"another process keeps {path} locked: try again later")
        yield
    finally:
        os.close(handle)


def takes(handle: int) -> bool:
    """Try to lock an open file."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
