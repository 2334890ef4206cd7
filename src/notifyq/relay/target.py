"""The target database of a relay: it receives each message once, also when it is sent again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import is_limited
from notifyq.errors import (
    REFUSED,
    DatabaseUnavailableError,
    QueueBusyError,
    QueueFullError,
    StreamPausedError,
)
from notifyq.telemetry.tracebacks import clean, text_of

if TYPE_CHECKING:
    from notifyq.relay.message import Item

_LARGEST = 8_000_000
"""Characters of one call after which the next message goes into another call."""
_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
"""Seconds between two calls while the target is down: the first pause, and the longest."""

WAITS = (QueueFullError, QueueBusyError, StreamPausedError)
"""A queue of the target cannot receive messages now; a relay waits for it, also with `once`."""


@dataclass(slots=True)
class Sent:
    """The results of sending messages, by their positions."""

    ids: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, Exception] = field(default_factory=dict)
    """Queues of the target for which it refuses calls, and why: the rest of them is not sent."""
    known: int = 0
    merged: int = 0
    error: Exception | None = None
    """Why the rest was not received."""


class Target:
    """Sends messages in the name of their source; see notifyq.receive_many()."""

    def __init__(self, database: Database, source: str, remember: timedelta) -> None:
        self._database = database
        self._source = source
        self._remember = remember
        self._last: str | None = None

    async def check(self, positions: Iterable[str] = ()) -> None:
        """Raise unless the target answers and has the receipts of these positions.

        LostReceiptsError: the target was restored to an earlier state.
        """
        await self._receive_many([], list(positions))

    async def send(self, items: list[Item], hold: float) -> Sent:
        """Send all that the target can receive; wait up to `hold` seconds while it is down."""
        sent = Sent()
        deadline = time.monotonic() + hold
        try:
            for part in _parts(items):
                await self._receive_limited(part, sent, deadline)
        except Exception as error:  # noqa: BLE001  the caller handles it, with what was received
            sent.error = error
        return sent

    async def _receive_limited(self, items: list[Item], sent: Sent, deadline: float) -> None:
        """Receive items; if the target refuses them, those of each queue: one stops no other."""
        done = sent.ids.keys() | sent.refused.keys()
        items = [it for it in items if it[0] not in done and it[1] not in sent.stopped]
        if not items:
            return
        try:
            await self._receive(items, sent, deadline)
        except Exception as error:
            if not is_limited(error):
                raise
            queues = list(dict.fromkeys(item[1] for item in items))
            if len(queues) == 1:
                sent.stopped[queues[0]] = error
                return
            for queue in queues:
                await self._receive_limited([it for it in items if it[1] == queue], sent, deadline)

    async def _receive(self, items: list[Item], sent: Sent, deadline: float) -> None:
        try:
            row = await self._receive_when_up(items, deadline)
        except REFUSED as error:
            if len(items) == 1:
                sent.refused[items[0][0]] = reason_of(error)
                return
        except QueueFullError:
            # There may be room for some.
            if len(items) == 1 or len({item[1] for item in items}) > 1:
                raise
        else:
            sent.ids.update(zip((item[0] for item in items), row["ids"], strict=True))
            sent.known += row["known"]
            sent.merged += row["merged"]
            self._last = items[-1][0]
            return
        half = len(items) // 2
        await self._receive(items[:half], sent, deadline)
        await self._receive(items[half:], sent, deadline)

    async def _receive_when_up(self, items: list[Item], deadline: float) -> asyncpg.Record:
        pause = _PAUSE
        while True:
            try:
                return await self._receive_many(items, [])
            except DatabaseUnavailableError:
                if (now := time.monotonic()) >= deadline:
                    raise
                await asyncio.sleep(min(pause, deadline - now) * random.uniform(0.5, 1))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _receive_many(self, items: list[Item], after: list[str]) -> asyncpg.Record:
        if self._last is not None:
            after.append(self._last)
        columns = [list(column) for column in zip(*items, strict=True)] or [[] for _ in range(10)]
        # Not persist(): the relay waits for a target by itself.
        [row] = await self._database.fetch(
            sql.RECEIVE_MANY, self._source, *columns, after, self._remember
        )
        return row


def _parts(items: list[Item]) -> list[list[Item]]:
    """Split items into calls of limited size."""
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
    """The text of an error in one line, without the hint."""
    text = error.args[0] if isinstance(error, asyncpg.PostgresError) else text_of(error)
    return " ".join(clean(str(text), 1000).split())
