"""What goes on while a fault happens: publishers that publish, and a watch on dead messages."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.archive.dead_letters import DeadLetters
from notifyq.chaos.history import History, digest
from notifyq.chaos.kinds import payload
from notifyq.config import DatabaseSettings
from notifyq.database.pool import Database
from notifyq.errors import DatabaseUnavailableError, ForeignPositionError, NotifyqError
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from notifyq.telemetry import Event

_PUBLISHERS = 2
_PAUSE = 0.05
"""Seconds that a publisher waits after an error."""
_SETTINGS = DatabaseSettings(
    pool_size=2,
    connect_timeout=timedelta(seconds=5),
    command_timeout=timedelta(seconds=5),
    retry_for=timedelta(minutes=2),
)


class Load:
    """Publishers and a watch; each keeps a history of its own in `folder`."""

    def __init__(
        self,
        dsn: str,
        folder: Path,
        *,
        seed: str,
        mix: Mapping[str, int],
        rate: float,
        batches: Sequence[int],
        is_brief: bool,
    ) -> None:
        self._dsn = dsn
        self._folder = folder
        self._seed = seed
        self._mix = mix
        self._batches = batches
        self._is_brief = is_brief
        self.rate = rate
        """Messages a second of all publishers together."""
        self._stopping = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._publishers: list[asyncio.Task[None]] = []
        self.published = 0
        """Messages whose publication was acknowledged."""
        self.failed = 0
        """Messages whose publication failed, as far as the publisher knows."""
        self.dead: set[int] = set()
        """What the watch has been handed."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish and watch until the end of the block."""
        self._watching = asyncio.create_task(self._watch())
        # What dies before it has its place it is not handed.
        begun = asyncio.create_task(self._has_begun.wait())
        await asyncio.wait({begun, self._watching}, return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        self._publishers = [
            asyncio.create_task(self._publish(number)) for number in range(1, _PUBLISHERS + 1)
        ]
        try:
            yield
        finally:
            tasks = [self._watching, *self._publishers]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def burst(self, kind: str, number: int) -> None:
        """Publish so many at once."""
        chance = random.Random(f"{self._seed}:burst")  # noqa: S311  a seed repeats it
        async with Database(self._dsn, settings=_SETTINGS) as database:
            with History(self._folder, "burst", is_brief=self._is_brief) as history:
                payloads = [payload(chance, kind) for _ in range(number)]
                await self._send(history, Publisher(database), kind, payloads)

    def has_reported(self, dead: int) -> bool:
        """Whether the watch has been handed so many; raises what has ended it, if anything has."""
        if self._watching.done():
            self._watching.result()
        return len(self.dead) >= dead

    async def stop_publishing(self) -> None:
        """Let the publishers end what they are at; the watch goes on."""
        self._stopping.set()
        await asyncio.gather(*self._publishers)

    async def _publish(self, number: int) -> None:
        name = f"publisher-{number}"
        chance = random.Random(f"{self._seed}:{name}")  # noqa: S311  a seed repeats it
        kinds, weights = list(self._mix), list(self._mix.values())
        database = Database(self._dsn, settings=_SETTINGS, name="notifyq chaos publisher")
        with History(self._folder, name, is_brief=self._is_brief) as history:
            try:
                due = time.monotonic()
                while not self._stopping.is_set():
                    kind = chance.choices(kinds, weights)[0]
                    batch = chance.choice(self._batches)
                    payloads = [payload(chance, kind) for _ in range(batch)]
                    is_through = await self._send(history, Publisher(database), kind, payloads)
                    # What could not be published in time is not made up for.
                    pause = batch * _PUBLISHERS / self.rate if is_through else _PAUSE
                    due = max(due + pause, time.monotonic())
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(due - time.monotonic()):
                            await self._stopping.wait()
            finally:
                await database.close()

    async def _send(
        self, history: History, publisher: Publisher, kind: str, payloads: list[dict[str, Any]]
    ) -> bool:
        calls = [
            history.invoke("publish", key=it["key"], queue=kind, digest=digest(it))
            for it in payloads
        ]
        try:
            if len(payloads) == 1:
                ids = [await publisher.publish(kind, payloads[0])]
            else:
                ids = await publisher.publish_many(kind, payloads)
        except (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            # Whether the server has heard it before the connection broke, nobody knows.
            self.failed += len(payloads)
            for call in calls:
                call.unknown(error=f"{type(error).__name__}: {error}")
            return False
        self.published += len(ids)
        for call, number in zip(calls, ids, strict=True):
            call.ok(id=number)
        return True

    async def _watch(self) -> None:
        async with Database(self._dsn, settings=_SETTINGS, name="notifyq chaos watch") as database:
            with History(self._folder, "watch") as history:
                began = await database.value("select clock_timestamp()")
                history.note("watch")
                since = None
                while True:
                    letters = DeadLetters(database, since=since, poll=1, sink=_ignore)
                    try:
                        async for messages, _seen in letters.batches():
                            self._has_begun.set()
                            for message in messages:
                                history.note("dead", id=message.id)
                                self.dead.add(message.id)
                    except (ForeignPositionError, DatabaseUnavailableError):
                        # Another server took over, and says that it may lack what was seen; or it
                        # is not there yet.
                        since = began
                        await asyncio.sleep(_PAUSE)


def _ignore(_event: Event) -> None:
    return
