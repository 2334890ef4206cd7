"""Presence: a worker reports that it runs, for operators; nothing else depends on it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
from contextlib import suppress
from datetime import timedelta
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Protocol, Self

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.retry import is_passing
from notifyq.errors import NotifyqError
from notifyq.notify.wake import at_most

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.notify.session import Session

log = logging.getLogger("notifyq.worker")

_EVERY = 10.0
"""Seconds; messages.workers() reports a worker that has not come for 30 as missing."""


class _Worker(Protocol):
    name: str
    queues: tuple[str, ...]
    streams: tuple[str, ...]

    @property
    def slots(self) -> tuple[int, int]: ...

    @property
    def blocked_for(self) -> float | None: ...


class Presence:
    """Reports a worker on its listening session, and its departure."""

    def __init__(self, database: Database, worker: _Worker) -> None:
        self._database = database
        self._worker = worker
        self.is_stopping = False
        self._hurry = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # Where this fails, the database removes the worker after a while.
        with suppress(NotifyqError, asyncpg.PostgresError, TimeoutError):
            async with asyncio.timeout(2):
                await self._database.fetch(sql.REMOVE_WORKER, self._worker.name)

    def hurry(self) -> None:
        """Report the worker at once; called on the listener's loop."""
        self._hurry.set()

    async def serve(self, session: Session) -> None:
        """Report the worker every ten seconds."""
        while True:
            self._hurry.clear()
            worker = self._worker
            running, concurrency = worker.slots
            blocked = worker.blocked_for
            try:
                await session.fetch(
                    sql.WORKER_HEARTBEAT, worker.name, list(worker.queues), list(worker.streams),
                    concurrency, running, self.is_stopping, socket.gethostname(), os.getpid(),
                    _version(), None if blocked is None else timedelta(seconds=blocked),
                )  # fmt: skip
            except asyncpg.PostgresError as error:
                if is_passing(error):
                    raise
                log.warning("this worker is not shown to operators: %s", error)
                return
            await at_most(_EVERY * random.uniform(0.8, 1), self._hurry.wait())  # noqa: S311  not all at once


@cache
def _version() -> str | None:
    try:
        return version("notifyq")
    except PackageNotFoundError:
        return None
