"""Waiting for messages without handlers: `await inbox.wait(["high", "low"], timeout=10)`."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections import defaultdict
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from notifyq.database import sql
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.models.outcome import Failed, Rejected, Released, Success
from notifyq.models.payload import encode
from notifyq.notify.shared import SharedListener
from notifyq.notify.wake import due_in
from notifyq.queues.claim_client import ClaimClient
from notifyq.telemetry import log_sink
from notifyq.telemetry.tracebacks import clean

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from notifyq.database.pool import Database
    from notifyq.models.message import Message
    from notifyq.models.outcome import Outcome
    from notifyq.telemetry import Sink

_POLL = 1.0
"""Seconds between two looks in spite of the bell: publishers are silent while a worker attends."""
_PAUSE = 0.01
"""Seconds after a look that found nothing: bells may ring for messages that no filter matches."""


class QueueBells:
    """Wakes who waits for queues, all of them on one listening session."""

    def __init__(self, database: Database, *, sink: Sink = log_sink) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._bell = SharedListener(
            database,
            [sql.NEW_MESSAGE],
            self._hear,
            name="notifyq inbox",
            sink=sink,
        )

    async def listen(self) -> None:
        """Open the session if it is not; what is published after that rings."""
        if self._bell.is_closed:
            raise DatabaseUnavailableError("the App was closed while messages were waited for")
        await self._bell.listen()

    async def close(self) -> None:
        """End the session; whoever still waits gets an error."""
        await self._bell.close()

    @contextmanager
    def waking(self, queues: Sequence[str]) -> Iterator[asyncio.Event]:
        """Give an event that each bell of these queues sets."""
        wake = asyncio.Event()
        for queue in queues:
            self._waiting[queue].add(wake)
        try:
            yield wake
        finally:
            for queue in set(queues):
                self._waiting[queue].discard(wake)
                if not self._waiting[queue]:
                    del self._waiting[queue]

    def _hear(self, payload: str | None) -> None:
        if payload is None:  # bells may have been missed
            wakes = set().union(*self._waiting.values())
        else:
            wakes = self._waiting.get(payload.rpartition(":")[0], set())
        for wake in wakes:
            wake.set()


class MessageInbox:
    """Messages one by one, for who has a loop of its own in place of handlers.

    What it hands out is locked for the time that its queue says. It is not extended by itself, and
    is given back by `close()`.
    """

    def __init__(self, database: Database, bells: QueueBells, worker: str | None = None) -> None:
        self._database = database
        self._bells = bells
        # What is locked in its name and unknown to it is given back: the name is its alone.
        place = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self.worker = f"{worker}:{place}" if worker else place
        self._inbox = ClaimClient(database, self.worker)
        self._held: dict[int, Message] = {}
        self._in_doubt = False
        """Whether a claim without an answer may have locked a message that nobody knows of."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def wait(
        self,
        queues: Sequence[str],
        timeout: timedelta | float | None = None,
        *,
        filters: Sequence[str | None] | None = None,
        lock_timeout: timedelta | None = None,
    ) -> Message | None:
        """Wait for a message of the first of the queues that has one; None after `timeout`.

        `filters` has a JSON path predicate for each of the queues, None for any message; a queue
        may be listed more than once. The message is locked until it is finished, rejected, retried
        or released here, or its lock ends. Cancelling the wait loses no message.
        """
        names = _names(queues, filters)
        end = _end(timeout)
        if message := await self._look(names, filters, lock_timeout, end):
            return message
        with self._bells.waking(names) as wake:
            while True:
                # Listening comes before the look: what is published after it rings.
                await self._bells.listen()
                wake.clear()
                began = time.monotonic()
                if message := await self._look(names, filters, lock_timeout, end):
                    return message
                looked = time.monotonic()
                if looked >= end:
                    return None
                with suppress(TimeoutError):
                    async with asyncio.timeout(
                        min(end - looked, await self._until_due(names, began))
                    ):
                        await wake.wait()
                await asyncio.sleep(max(0.0, looked + _PAUSE - time.monotonic()))

    async def finish(self, message: Message, result: Any = None) -> bool:
        """Archive a message as success. False: its lock was lost."""
        return await self._settle(message, Success(None if result is None else encode(result)))

    async def reject(self, message: Message, reason: str) -> bool:
        """Archive a message that can never be handled. False: its lock was lost."""
        return await self._settle(message, Rejected(clean(reason)))

    async def retry(
        self, message: Message, reason: str, after: timedelta | float | None = None
    ) -> bool:
        """End an attempt that failed, as messages.retry() does. False: its lock was lost."""
        delay = timedelta(seconds=after) if isinstance(after, int | float) else after
        return await self._settle(message, Failed(clean(reason), delay))

    async def release(self, message: Message) -> bool:
        """Put a message back in its old place, uncounted. False: its lock was lost."""
        return await self._settle(message, Released())

    async def extend(self, message: Message, lock_timeout: timedelta | None = None) -> bool:
        """Hold a message for `lock_timeout` from now on, else as its queue says. False: lost."""
        held = await self._database.persist(
            sql.EXTEND_MANY, [message.id], [message.lock_token], lock_timeout
        )
        return bool(held)

    async def close(self) -> None:
        """Give back what was not ended, and close the connection."""
        held = list(self._held.values())
        self._held.clear()
        if held:
            await self._inbox.release(held)
        await self._inbox.close()

    async def _settle(self, message: Message, outcome: Outcome) -> bool:
        answer = await self._inbox.settle(message, outcome)
        self._held.pop(message.id, None)
        return bool(answer)

    async def _until_due(self, queues: Sequence[str], looked_at: float) -> float:
        try:
            seconds = await due_in(looked_at, partial(self._database.value, sql.NEXT_DUE, queues))
        except DatabaseUnavailableError:
            return _POLL
        return _POLL if seconds is None else min(_POLL, max(seconds, _PAUSE))

    async def _look(
        self,
        queues: list[str],
        filters: Sequence[str | None] | None,
        lock_timeout: timedelta | None,
        end: float,
    ) -> Message | None:
        if self._in_doubt and not await self._release_orphans(end):
            return None
        claim = asyncio.create_task(
            self._inbox.claim(
                queues, 1, lock_timeout=lock_timeout, filters=filters or [None] * len(queues)
            )
        )
        try:
            claimed = await asyncio.shield(claim)
        except DatabaseUnavailableError:
            self._in_doubt = True
            await self._release_orphans(end)
            return None
        except asyncio.CancelledError:
            # Nobody is there to take it.
            with suppress(Exception):
                await self._inbox.release(await claim)
            raise
        for message in claimed:
            self._held[message.id] = message
        return claimed[0] if claimed else None

    async def _release_orphans(self, end: float) -> bool:
        """Have no message locked that nobody knows of; false where that takes beyond the end."""
        # The call is tried again for minutes; who waits for less is not kept waiting.
        seconds = None if end == float("inf") else max(0.0, end - time.monotonic())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._inbox.release_orphans(list(self._held))
                self._in_doubt = False
        return not self._in_doubt


def _names(queues: Sequence[str], filters: Sequence[str | None] | None) -> list[str]:
    if isinstance(queues, str) or not queues:
        raise ConfigurationError(f"queues must be a list of names, not {queues!r}")
    if filters is not None and (isinstance(filters, str) or len(filters) != len(queues)):
        raise ConfigurationError(
            f"filters must be a list with one for each of the {len(queues)} queues, None for none"
        )
    return list(queues)


def _end(timeout: timedelta | float | None) -> float:
    if timeout is None:
        return float("inf")
    seconds = timeout if isinstance(timeout, int | float) else timeout.total_seconds()
    return time.monotonic() + seconds
