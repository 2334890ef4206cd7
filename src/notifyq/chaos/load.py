"""The load during a fault: publishers, and a watcher of dead messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from notifyq.archive.dead_letters import DeadLetters
from notifyq.chaos.history import History, digest
from notifyq.chaos.kinds import payload
from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database
from notifyq.errors import DatabaseUnavailableError, ForeignPositionError, NotifyqError
from notifyq.notify.wake import at_most
from notifyq.queues.publisher import Publisher

FAILURES = (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""Errors that a client gets while its database is harmed."""
_PUBLISHERS = 2
_PAUSE = 0.05
"""Seconds that a publisher waits after an error."""
_SETTINGS = DatabaseSettings(
    pool_size=2,
    connect_timeout=timedelta(seconds=5),
    command_timeout=timedelta(seconds=5),
    retry_for=timedelta(minutes=2),
)


async def send(
    history: History,
    publisher: Publisher,
    kind: str,
    payloads: Sequence[dict[str, Any]],
    **options: Any,
) -> list[int]:
    """Publish messages and record each; raises what the publisher raises."""
    calls = [
        history.invoke("publish", key=it["key"], queue=kind, digest=digest(it)) for it in payloads
    ]
    try:
        if len(payloads) == 1:
            ids = [await publisher.publish(kind, payloads[0], **options)]
        else:
            ids = await publisher.publish_many(kind, payloads, **options)
    except FAILURES as error:
        # The server may have committed before the connection broke.
        for call in calls:
            call.unknown(error=f"{type(error).__name__}: {error}")
        raise
    for call, id_ in zip(calls, ids, strict=True):
        call.ok(id=id_)
    return [*ids]


@dataclass
class Load:
    """Publishers and a watcher; each writes a history of its own in `folder`."""

    dsn: str
    folder: Path
    seed: str
    mix: Mapping[str, int]
    rate: float
    """Messages a second of all publishers together."""
    batches: Sequence[int]
    published: int = 0
    """Messages whose publication was acknowledged."""
    failed: int = 0
    """Messages whose publication was not acknowledged."""
    dead: set[int] = field(default_factory=set)
    """Ids that the watcher has reported."""

    def __post_init__(self) -> None:
        self._stopping = asyncio.Event()
        self._is_watching = asyncio.Event()
        self._publishers: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish and watch until the end of the block."""
        self._watching = asyncio.create_task(self._as("watch", self._watch))
        # The watcher must have a position first: it does not see what failed before.
        begun = asyncio.create_task(self._is_watching.wait())
        await asyncio.wait({begun, self._watching}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        for number in range(1, _PUBLISHERS + 1):
            publishing = self._as(f"publisher-{number}", self._publish)
            self._publishers.append(asyncio.create_task(publishing))
        try:
            yield
        finally:
            tasks = [self._watching, *self._publishers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def has_reported(self, dead: int) -> bool:
        """Whether the watcher has reported so many; raises the error that ended it, if any."""
        if self._watching.done():
            self._watching.result()
        return len(self.dead) >= dead

    async def stop_publishing(self) -> None:
        """Wait for publications in progress and stop; the watcher goes on."""
        self._stopping.set()
        await asyncio.gather(*self._publishers)

    async def _as(
        self,
        name: str,
        work: Callable[[Database, History, random.Random], Coroutine[Any, Any, None]],
    ) -> None:
        """Work with a database, a history and random numbers of its own."""
        chance = random.Random(f"{self.seed}:{name}")  # noqa: S311  a seed repeats it
        async with Database(self.dsn, settings=_SETTINGS, name=f"notifyq chaos {name}") as database:
            with History(self.folder, name) as history:
                await work(database, history, chance)

    async def _publish(self, database: Database, history: History, chance: random.Random) -> None:
        publisher, due = Publisher(database), time.monotonic()
        kinds, weights = list(self.mix), list(self.mix.values())
        while not self._stopping.is_set():
            kind, batch = chance.choices(kinds, weights)[0], chance.choice(self.batches)
            payloads = [payload(chance, kind) for _ in range(batch)]
            is_published = await self._send(history, publisher, kind, payloads)
            # A publisher that is late does not catch up.
            pause = batch * _PUBLISHERS / self.rate if is_published else _PAUSE
            due = max(due + pause, time.monotonic())
            await at_most(due - time.monotonic(), self._stopping.wait())

    async def _send(
        self, history: History, publisher: Publisher, kind: str, payloads: list[dict[str, Any]]
    ) -> bool:
        try:
            await send(history, publisher, kind, payloads)
        except FAILURES:
            self.failed += len(payloads)
            return False
        self.published += len(payloads)
        return True

    async def _watch(self, database: Database, history: History, _chance: random.Random) -> None:
        began = await database.value("select clock_timestamp()")
        history.note("watch")
        since = None
        while True:
            letters = DeadLetters(database, since=since, poll=1, telemetry=lambda _event: None)
            try:
                async for messages, _seen in letters.batches():
                    self._is_watching.set()
                    for message in messages:
                        history.note("dead", id=message.id)
                        self.dead.add(message.id)
            except (ForeignPositionError, DatabaseUnavailableError):
                # After a failover the new server may lack rows behind the position, or it is not
                # up yet.
                since = began
                await asyncio.sleep(_PAUSE)
