"""Presence: a worker says that it is there, for those who look on; nothing else goes by it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol

import asyncpg

from notifyq.database.retry import is_passing
from notifyq.database.sql import FORGET_WORKER, NOTE_WORKER
from notifyq.errors import NotifyqError

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.notify.session import Session

log = logging.getLogger("notifyq.worker")

_EVERY = 10.0
"""Seconds; messages.workers() calls one that has not come for 30 silent or gone."""


class _Worker(Protocol):
    name: str
    queues: tuple[str, ...]
    streams: tuple[str, ...]

    @property
    def slots(self) -> tuple[int, int]: ...


class Presence:
    """Tells the database of a worker, on its listening session; when it leaves, too."""

    def __init__(self, database: Database, worker: _Worker) -> None:
        self._database = database
        self._worker = worker
        self.is_stopping = False

    async def __aenter__(self) -> Presence:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Whoever is not told now sees that it is gone, and forgets it in time.
        with suppress(NotifyqError, asyncpg.PostgresError, TimeoutError):
            async with asyncio.timeout(2):
                await self._database.fetch(FORGET_WORKER, self._worker.name)

    async def serve(self, session: Session) -> None:
        """Say it every ten seconds, for ever; messages do not depend on it."""
        while True:
            worker = self._worker
            running, concurrency = worker.slots
            try:
                await session.fetch(
                    NOTE_WORKER, worker.name, list(worker.queues), list(worker.streams),
                    concurrency, running, self.is_stopping, socket.gethostname(), os.getpid(),
                    _version(),
                )  # fmt: skip
            except asyncpg.PostgresError as error:
                if is_passing(error):
                    raise
                log.warning("this worker is not shown among the others: %s", error)
                return
            await asyncio.sleep(_EVERY * random.uniform(0.8, 1))  # noqa: S311  not all at once


@cache
def _version() -> str | None:
    try:
        return version("notifyq")
    except PackageNotFoundError:
        return None
