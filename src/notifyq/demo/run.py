"""One run of the demo: publish, work with real worker processes, and check the sums."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from notifyq.admin import Admin
from notifyq.archive import Archive
from notifyq.demo.index import LIBRARY_QUEUE, MODULES, app, source_files
from notifyq.embedded.launch import Tie, launcher
from notifyq.errors import NotifyqError
from notifyq.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from datetime import datetime

    from notifyq.database import Database
    from notifyq.model import ArchivedMessage

_LOOK = 0.2
"""Seconds between two looks at how far the workers are."""


class DemoError(NotifyqError):
    """The demo could not be run to its end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run published and found in the archive."""

    published: list[int]
    archived: list[ArchivedMessage]
    seconds: float

    @property
    def counts(self) -> Counter[str]:
        """Messages by status."""
        return Counter(message.status for message in self.archived)

    @property
    def agrees(self) -> bool:
        """Whether every published message is archived, and once."""
        return sorted(message.id for message in self.archived) == sorted(self.published)

    @property
    def waits(self) -> list[float]:
        """Seconds from publishing to the lock, of each message that was locked."""
        return [(m.locked_at - m.created_at).total_seconds() for m in self.archived if m.locked_at]

    @property
    def runs(self) -> list[float]:
        """Seconds from the lock to the archive, of each message that was locked."""
        return [(m.archived_at - m.locked_at).total_seconds() for m in self.archived if m.locked_at]


async def run(database: Database, workers: int, progress: Callable[[int, int], None]) -> Outcome:
    """Index the standard library; `progress` is called with messages done and messages in all."""
    app.dsn = database.dsn
    async with app:
        await app.create_queues()
    began = time.monotonic()
    since = await _now(database)
    published = await _publish(Publisher(database))
    async with _workers(database.dsn, workers) as processes:
        while left := await _left(database):
            progress(max(0, len(published) - left), len(published))
            if all(process.poll() is not None for process in processes):
                raise DemoError("all workers of the demo have ended before their work was done")
            await asyncio.sleep(_LOOK)
    seconds = time.monotonic() - began
    progress(len(published), len(published))
    mine = set(published)
    archive = Archive(database)
    archived = [
        message
        for queue in (MODULES, LIBRARY_QUEUE)
        for message in await archive.finished(queue, quantity=100_000, since=since)
        if message.id in mine
    ]
    return Outcome(published, archived, seconds)


async def _publish(publisher: Publisher) -> list[int]:
    paths = [*source_files(), "no/such/module.py"]
    ids = await publisher.publish_many(MODULES, [{"path": path} for path in paths])
    return [*ids, await publisher.publish(LIBRARY_QUEUE, {"path": "."})]


async def _now(database: Database) -> datetime:
    moment: datetime = await database.value("select clock_timestamp()")
    return moment


async def _left(database: Database) -> int:
    admin = Admin(database)
    rows = [row for queue in (MODULES, LIBRARY_QUEUE) for row in await admin.queue_info(queue)]
    return sum(row["waiting"] + row["scheduled"] + row["locked"] for row in rows)


@contextlib.asynccontextmanager
async def _workers(dsn: str, number: int) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Run `notifyq worker` processes that end with this one, however it ends."""
    command = [sys.executable, "-m", "notifyq", "worker", "notifyq.demo.index:app"]
    options = ["--concurrency", "4", "--grace", "5s", "--log-level", "error"]
    tie = Tie.thread if sys.platform == "linux" else Tie.pipe
    processes = [
        subprocess.Popen(  # noqa: ASYNC220, S603  starting a process is quick; the command is ours
            launcher(tie, None, [*command, *options]),
            stdin=subprocess.PIPE,
            # In the environment: a DSN in the arguments is there for everybody to read.
            env={**os.environ, "NOTIFYQ_DSN": dsn},
        )
        for _ in range(number)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
