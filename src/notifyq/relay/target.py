"""The database that messages go to: each is received once, however often it is sent."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import sql
from notifyq.errors import (
    DatabaseUnavailableError,
    InvalidArgumentError,
    MessageLimitError,
    QueueBusyError,
    QueueFullError,
    StreamPausedError,
)
from notifyq.relay.message import columns
from notifyq.telemetry.tracebacks import clean, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.relay.message import Item

_LARGEST = 8_000_000
"""Characters in one call, but for the last of its messages."""
_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two tries at a target that is full or down: the first, and the longest."""

PASSING = (DatabaseUnavailableError, QueueFullError, QueueBusyError, StreamPausedError)
"""The target cannot take messages now."""
_REFUSED = (
    MessageLimitError,
    InvalidArgumentError,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)
"""The message is at fault: the others go on without it."""


@dataclass(slots=True)
class Sent:
    """What became of messages that were sent, by their places."""

    ids: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    known: int = 0
    merged: int = 0
    error: Exception | None = None
    """Why the rest was not received."""


class Target:
    """Sends batches under the name of their source; see notifyq.receive_many()."""

    def __init__(self, database: Database, source: str, remember: timedelta) -> None:
        self._database = database
        self._source = source
        self._remember = remember
        self._last: str | None = None

    async def check(self, places: Iterable[str] = ()) -> None:
        """Raise unless the target is there, and has the receipts of these places.

        LostReceiptsError: it was restored to a state before.
        """
        after = [*places, *([self._last] if self._last is not None else [])]
        await self._database.fetch(
            sql.RECEIVE_MANY, self._source, *columns([]), after, self._remember
        )

    async def send(self, items: list[Item], hold: float) -> Sent:
        """Have messages received, all that can be; wait so many seconds where none can be now."""
        sent = Sent()
        deadline = time.monotonic() + hold
        try:
            for part in _parts(items):
                await self._receive(part, sent, deadline)
        except Exception as error:  # noqa: BLE001  the caller decides, knowing what was received
            sent.error = error
        return sent

    async def _receive(self, items: list[Item], sent: Sent, deadline: float) -> None:
        pause = _PAUSE
        while True:
            try:
                await self._receive_once(items, sent)
            except _REFUSED as error:
                if len(items) == 1:
                    sent.refused[items[0][0]] = reason_of(error)
                    return
                await self._halve(items, sent, deadline)
            except PASSING as error:
                if not isinstance(error, QueueFullError) or len(items) == 1:
                    pause = await _wait(pause, deadline, error)
                    continue
                await self._halve(items, sent, deadline)
            return

    async def _halve(self, items: list[Item], sent: Sent, deadline: float) -> None:
        half = len(items) // 2
        await self._receive(items[:half], sent, deadline)
        await self._receive(items[half:], sent, deadline)

    async def _receive_once(self, items: list[Item], sent: Sent) -> None:
        after = [self._last] if self._last is not None else []
        # Not persist(): the pauses are ours.
        [row] = await self._database.fetch(
            sql.RECEIVE_MANY, self._source, *columns(items), after, self._remember
        )
        sent.ids.update(zip((item[0] for item in items), row["ids"], strict=True))
        sent.known += row["known"]
        sent.merged += row["merged"]
        self._last = items[-1][0]


async def _wait(pause: float, deadline: float, error: Exception) -> float:
    """Wait a little and return the next pause; raise the error where it is too late."""
    now = time.monotonic()
    if now >= deadline:
        raise error
    await asyncio.sleep(min(pause, deadline - now) * random.uniform(0.5, 1))  # noqa: S311
    return min(2 * pause, _LONGEST_PAUSE)


def _parts(items: list[Item]) -> list[list[Item]]:
    """Cut where one call would become too large."""
    parts: list[list[Item]] = [[]]
    size = 0
    for item in items:
        if size >= _LARGEST:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += len(item[2]) + len(item[5] or "")
    return parts if items else []


def reason_of(error: BaseException) -> str:
    """What an error says, in one line and without the hint."""
    text = error.args[0] if isinstance(error, asyncpg.PostgresError) else text_of(error)
    return " ".join(clean(str(text), 1000).split())
