"""One run of the demo: publish, work with real worker processes, and check the totals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from notifyq.archive.reader import Archive
from notifyq.database.pool import Database
from notifyq.demo.index import LIBRARY, LIBRARY_QUEUE, MODULES, app, source_files
from notifyq.errors import ConfigurationError, NotifyqError
from notifyq.models.message import ArchivedMessage, Status
from notifyq.queues.publisher import Publisher
from notifyq.server.launch import Tie, launcher

_EVERY = 0.25
"""Seconds between two polls of the progress."""
_MOST = 10_000
"""Live messages of a queue that one poll can list."""

_LOCK = "hashtextextended('notifyq demo', 0)"


class DemoError(NotifyqError):
    """The demo could not be finished."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The messages that a run published, and those it found in the archive."""

    published: list[int]
    archived: list[ArchivedMessage]
    since: datetime
    """Start of publishing, by the clock of the database."""

    @property
    def counts(self) -> Counter[str]:
        """Messages by status."""
        return Counter(message.status for message in self.archived)

    @property
    def dead(self) -> list[ArchivedMessage]:
        """Messages that did not succeed."""
        dead = [message for message in self.archived if message.status != Status.SUCCESS]
        return sorted(dead, key=attrgetter("status", "id"))

    @property
    def agrees(self) -> bool:
        """Whether every published message is archived exactly once."""
        return sorted(message.id for message in self.archived) == sorted(self.published)

    @property
    def difference(self) -> str:
        """The difference between both, in words."""
        missing = sorted(set(self.published) - {message.id for message in self.archived})
        named = ", ".join(map(str, missing[:10])) + (" and more" if missing[10:] else "")
        return (
            f"{len(self.published)} published, {len(self.archived)} archived; "
            f"not in the archive: {named or 'none, but some are there twice'}"
        )

    @property
    def seconds(self) -> float:
        """Seconds until the last message was archived."""
        last = max((message.archived_at for message in self.archived), default=self.since)
        return (last - self.since).total_seconds()

    @property
    def waits(self) -> list[float]:
        """Seconds from publishing to the lock, of each message that was locked."""
        return [(m.locked_at - m.created_at).total_seconds() for m in self.archived if m.locked_at]

    @property
    def runs(self) -> list[float]:
        """Seconds from the lock to the archive, of each message that was locked."""
        return [(m.archived_at - m.locked_at).total_seconds() for m in self.archived if m.locked_at]


class Demo:
    """Indexes the standard library, or one package of it, with worker processes."""

    def __init__(self, database: Database, package: str | None = None) -> None:
        self._database = database
        self._archive = Archive(database)
        folder = f"{package.replace('.', '/')}/" if package else ""
        self._paths = [path for path in source_files() if path.startswith(folder)]
        if not self._paths:
            raise ConfigurationError(f"there is no package {package!r} in {LIBRARY}")

    async def run(self, workers: int, progress: Callable[[int, int], None]) -> Outcome:
        """Publish, and wait for the workers; `progress` gets the number done and the total."""
        async with self._present(), _workers(self._database.dsn, workers) as processes:
            since = await self._database.value("select clock_timestamp()")
            published = await self._publish()
            while left := await self._left(published):
                progress(len(published) - left, len(published))
                if all(process.poll() is not None for process in processes):
                    raise DemoError("all workers of the demo have ended before their work was done")
                await asyncio.sleep(_EVERY)
            progress(len(published), len(published))
            return Outcome(published, await self._archived(published, since), since)

    @contextlib.asynccontextmanager
    async def _present(self) -> AsyncIterator[None]:
        """Keep the queues until the last demo that uses them ends; an advisory lock shows that.

        Queues that a killed demo left are dropped: their messages would be indexed first.
        """
        app.dsn = self._database.dsn
        async with app, self._database.connection() as session:
            is_alone = await session.fetchval(f"select pg_try_advisory_lock({_LOCK})")
            if is_alone:
                await _drop_queues()
            await app.create_queues()
            await session.execute(f"select pg_advisory_lock_shared({_LOCK})")
            if is_alone:
                # After the shared lock is held, so that no other demo drops the queues.
                await session.execute(f"select pg_advisory_unlock({_LOCK})")
            try:
                yield
            finally:
                await session.execute(f"select pg_advisory_unlock_shared({_LOCK})")
                if await session.fetchval(f"select pg_try_advisory_lock({_LOCK})"):
                    await _drop_queues()

    async def _publish(self) -> list[int]:
        """Publish the files, and three messages that do not succeed."""
        publisher = Publisher(self._database)
        payloads = [{"path": path} for path in self._paths]
        ids = await publisher.publish_many(
            MODULES, [*payloads, {"path": "no/such/module.py"}, {"file": "no path in here"}]
        )
        return [*ids, await publisher.publish(LIBRARY_QUEUE, {"path": "."})]

    async def _left(self, published: list[int]) -> int:
        """How many of these are live: another demo may use the same queues."""
        live = [
            message.id
            for queue in (MODULES, LIBRARY_QUEUE)
            for message in await self._archive.live(queue, quantity=_MOST)
        ]
        return len(published) if len(live) >= _MOST else len(set(live) & set(published))

    async def _archived(self, published: list[int], since: datetime) -> list[ArchivedMessage]:
        own = set(published)
        return [
            message
            for queue in (MODULES, LIBRARY_QUEUE)
            for message in await self._archive.finished(queue, quantity=100_000, since=since)
            if message.id in own
        ]


async def _drop_queues() -> None:
    """Drop the queues of the demo; its archived messages stay."""
    for queue in await app.admin.queue_info():
        if queue["queue"] in {MODULES, LIBRARY_QUEUE}:
            await app.admin.drop_queue(queue["queue"], force=True)


@contextlib.asynccontextmanager
async def _workers(dsn: str, number: int) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Run `notifyq worker` processes that end with this one, even if it is killed."""
    command = [sys.executable, "-m", "notifyq", "worker", "notifyq.demo.index:app"]
    # Some handlers fail on purpose: their tracebacks would only alarm, the table shows them.
    options = ["--concurrency", "4", "--grace", "3s", "--log-level", "critical"]
    tie = Tie.thread if sys.platform == "linux" else Tie.pipe
    processes = [
        subprocess.Popen(  # noqa: ASYNC220, S603  quick; the command is fixed
            launcher(tie, None, [*command, *options]),
            stdin=subprocess.PIPE,
            # The DSN is not in the arguments, which every user can read. A killed demo takes its
            # server along: its workers must not wait for that.
            env={**os.environ, "NOTIFYQ_DSN": dsn, "NOTIFYQ_RETRY_FOR": "3s"},
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
