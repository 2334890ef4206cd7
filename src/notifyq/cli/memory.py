"""The limit of a worker's memory: above it the worker stops, and its supervisor starts another."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from notifyq.errors import ConfigurationError
from notifyq.operations.texts import size

log = logging.getLogger("notifyq.worker")

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: a supervisor that restarts only after errors restarts the worker."""
_EVERY = 1.0
"""Seconds between two readings."""
_STATM = Path("/proc/self/statm")


class MemoryLimit:
    """Stops a worker once its memory exceeds the limit, in bytes; None: there is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._has_stopped = False
        if limit is not None and not _STATM.exists():
            raise ConfigurationError("--max-memory needs Linux: it reads /proc/self/statm")

    @contextmanager
    def watching(self, stop: Callable[[], bool]) -> Iterator[None]:
        """Call `stop` once, when the memory exceeds the limit; false: it is stopping already."""
        if self._limit is None:
            yield
            return
        task = asyncio.get_running_loop().create_task(self._watch(self._limit, stop))
        try:
            yield
        finally:
            task.cancel()

    def end(self) -> None:
        """End the command with its exit code if the limit has stopped the worker."""
        if self._has_stopped:
            raise typer.Exit(EXIT_CODE)

    async def _watch(self, limit: int, stop: Callable[[], bool]) -> None:
        while True:
            now = _resident()
            if now > limit:
                break
            await asyncio.sleep(_EVERY)
        if stop():
            self._has_stopped = True
            log.warning(
                "the worker uses %s, more than --max-memory: it stops, to be started again",
                size(now),
            )


def _resident() -> int:
    """The resident memory of this process, in bytes."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
