"""Waiting for messages without handlers: `await inbox.wait(["high", "low"], timeout=10)`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Self

from notifyq.arguments import duration, wait_limit
from notifyq.database import statements as sql
from notifyq.database.encryption.sealing import open_message, until_key
from notifyq.database.per_loop import PerLoop
from notifyq.database.pool import Database
from notifyq.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DecryptionError,
    MissingKeyError,
)
from notifyq.models.message import Message
from notifyq.models.outcome import Failed, Outcome, Rejected, Released, Success
from notifyq.models.payload import encode, is_sealed
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Waiters, at_most, due_in
from notifyq.telemetry import log_events
from notifyq.telemetry.tracebacks import clean
from notifyq.worker.fetch import Claims, process_name

_POLL = 1.0
"""Seconds between two polls although notifications arrive: workers may suppress them."""
_PAUSE = 0.01
"""Seconds after an empty poll: notifications may be for messages that no filter matches."""


class QueueNotifications:
    """Wakes callers that wait for queues, all of them on one listening session."""

    def __init__(self, database: Database) -> None:
        self._waiters: Waiters[str] = Waiters()
        self.waiting = self._waiters.waiting
        """Give an event that each notification of some queues sets."""
        self._listener = Listener(
            database, [sql.NEW_MESSAGE], self._receive, name="notifyq inbox", telemetry=log_events
        )

    async def listen(self) -> None:
        """Listen, unless it does: what is published after that sends a notification."""
        if self._listener.is_closed:
            raise DatabaseUnavailableError("the App was closed during the wait for messages")
        await self._listener.open()

    async def close(self) -> None:
        """End the session; a call that still waits gets an error."""
        await self._listener.close()

    def _receive(self, channel: str, payload: str) -> None:
        notified = payload.rpartition(":")[0]
        self._waiters.wake(lambda queue: not channel or queue == notified)


class MessageInbox:
    """Gives messages one by one to a loop of your own, instead of handlers.

    A message is locked for the `lock_duration` of its queue. Its lock is not extended
    automatically, and `close()` releases it.
    """

    def __init__(
        self,
        database: Database,
        notifications: PerLoop[QueueNotifications],
        worker: str | None = None,
    ) -> None:
        self._database = database
        self._notifications = notifications
        process = process_name()
        self.worker = f"{worker}:{process}" if worker else process
        self._claims = Claims(database, self.worker)
        self._held: dict[int, Message] = {}
        self._in_doubt = False
        """Whether a claim without an answer may have locked a message."""
        self._polling = asyncio.Lock()
        """One wait polls at a time: it may release what another one has just claimed."""

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
        lock_duration: timedelta | None = None,
    ) -> Message | None:
        """Wait for a message of the first queue that has one; None after `timeout`.

        `filters` has a JSON path predicate for each queue, None for any message; a queue may be
        listed more than once. The message is locked until it is finished, rejected, retried or
        released here, or its lock expires. Cancelling the wait loses no message.
        """
        names = _names(queues, filters)
        end = _end(timeout)
        if message := await self._poll(names, filters, lock_duration, end):
            return message
        notifications = self._notifications.get()
        with notifications.waiting(names) as wake:
            while True:
                # Listen before the poll: what is published after the poll sends a notification.
                await notifications.listen()
                wake.clear()
                began = time.monotonic()
                if message := await self._poll(names, filters, lock_duration, end):
                    return message
                ended = time.monotonic()
                if ended >= end:
                    return None
                longest = min(end - ended, await self._until_due(names, began))
                await at_most(longest, wake.wait())
                await asyncio.sleep(max(0.0, ended + _PAUSE - time.monotonic()))

    async def finish(self, message: Message, result: Any = None) -> bool:
        """Archive a message as success. False: its lock was lost."""
        return await self._settle(message, Success(None if result is None else encode(result)))

    async def reject(self, message: Message, reason: str) -> bool:
        """Archive a message that can never be handled. False: its lock was lost."""
        return await self._settle(message, Rejected(clean(reason)))

    async def retry(
        self, message: Message, reason: str, after: timedelta | float | None = None
    ) -> bool:
        """End a failed attempt as messages.retry() does. False: its lock was lost."""
        return await self._settle(message, Failed(clean(reason), duration("after", after)))

    async def release(self, message: Message) -> bool:
        """Put a message back without counting the attempt. False: its lock was lost."""
        return await self._settle(message, Released())

    async def extend(self, message: Message, lock_duration: timedelta | None = None) -> bool:
        """Extend a lock, by default by the `lock_duration` of its queue. False: it was lost."""
        held = await self._database.persist(
            sql.EXTEND_MANY, [message.id], [message.lock_token], lock_duration
        )
        return bool(held)

    async def close(self) -> None:
        """Release the messages that were not settled, and close the connection."""
        held = list(self._held.values())
        self._held.clear()
        try:
            await self._release(held)
        finally:
            await self._claims.close()

    async def _settle(self, message: Message, outcome: Outcome) -> bool:
        answer = await self._claims.settler.add(message, outcome)
        self._held.pop(message.id, None)
        return bool(answer)

    async def _release(self, messages: list[Message]) -> None:
        await asyncio.gather(*(self._claims.settler.add(it, Released()) for it in messages))

    async def _until_due(self, queues: Sequence[str], polled_at: float) -> float:
        try:
            due = await due_in(polled_at, partial(self._database.value, sql.NEXT_DUE, queues))
        except DatabaseUnavailableError:
            return _POLL
        return _POLL if due is None else min(_POLL, max(due, _PAUSE))

    async def _poll(
        self,
        queues: list[str],
        filters: Sequence[str | None] | None,
        lock_duration: timedelta | None,
        end: float,
    ) -> Message | None:
        left = _left(end)
        try:
            async with asyncio.timeout(None if left is None else max(left, _POLL)):
                await self._polling.acquire()
        except TimeoutError:
            return None
        try:
            return await self._claim(queues, filters, lock_duration, end)
        finally:
            self._polling.release()

    async def _claim(
        self,
        queues: list[str],
        filters: Sequence[str | None] | None,
        lock_duration: timedelta | None,
        end: float,
    ) -> Message | None:
        if self._in_doubt and not await self._release_orphans(end):
            return None
        claim = asyncio.create_task(
            self._claims.claim(
                queues, 1, lock_duration=lock_duration, filters=filters or [None] * len(queues)
            )
        )
        try:
            claimed = await asyncio.shield(claim)
        except DatabaseUnavailableError:
            self._in_doubt = True
            await self._release_orphans(end)
            return None
        except asyncio.CancelledError:
            # The caller no longer waits for it.
            self._in_doubt = True
            with suppress(Exception):
                await self._release(await claim)
                self._in_doubt = False
            raise
        for message in claimed:
            self._held[message.id] = message
        return await self._opened(claimed[0]) if claimed else None

    async def _opened(self, message: Message) -> Message:
        """The message, decrypted; raises MissingKeyError, and puts it back."""
        if not is_sealed(message.message):
            return message
        try:
            return open_message(message, self._database.keys)
        except MissingKeyError as error:
            await self._settle(message, until_key(message, error))
            raise
        except DecryptionError:
            return message.opened(message.message)  # its payload() raises

    async def _release_orphans(self, end: float) -> bool:
        """Release messages of claims without an answer; false where that takes too long."""
        # The call is retried for minutes: a shorter wait of the caller must end in time.
        with suppress(TimeoutError):
            async with asyncio.timeout(_left(end)):
                await self._claims.release_orphans(list(self._held))
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
    left = wait_limit("timeout", timeout)
    return float("inf") if left is None else time.monotonic() + left


def _left(end: float) -> float | None:
    return None if end == float("inf") else max(0.0, end - time.monotonic())
