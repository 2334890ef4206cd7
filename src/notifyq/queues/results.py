"""Results: waiting for the end of a message, on one listening session for a whole App."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Generic, TypeVar

import asyncpg
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from notifyq.arguments import wait_limit
from notifyq.database import statements as sql
from notifyq.database.encoding import storing
from notifyq.database.encryption.envelopes import Keys, decrypted_row, opened, shown
from notifyq.database.external import adapt
from notifyq.database.per_loop import PerLoop
from notifyq.database.pool import Database
from notifyq.errors import (
    DatabaseUnavailableError,
    DeadMessageError,
    InvalidResultError,
    LockExpiredError,
    MessageFailedError,
    MessageRejectedError,
    ResultTimeoutError,
)
from notifyq.models.message import Progress, Status
from notifyq.models.payload import encode
from notifyq.notify.listener import Listener
from notifyq.notify.wake import Waiters, at_most
from notifyq.queues.published import Published
from notifyq.telemetry import log_events

R = TypeVar("R")

_POLL = 5.0
"""Seconds between two polls although notifications arrive: the server drops some if it must."""
_POLL_ONLY = 1.0
"""Seconds between two polls where notifications do not arrive."""
_PAUSE = 0.02
"""Seconds after an empty poll: any session may send notifications, all the time."""
_LAST_POLL = 1.0
"""Seconds that a poll may take after the timeout, to report why there is no result."""
_DEAD: dict[str, type[DeadMessageError]] = {
    Status.REJECTED: MessageRejectedError,
    Status.FAILED: MessageFailedError,
    Status.LOCK_EXPIRED: LockExpiredError,
}


class Handle(Published, Generic[R]):
    """The id of a published message; `result()` waits for its result.

    `is_duplicate`: no new message was published, an existing one has the `dedup_key`.
    """

    _results: Results
    kind: TypeAdapter[Any] | None
    """Validates the result; None: it is the decoded JSON."""

    def __new__(
        cls, message_id: int, results: Results, kind: TypeAdapter[Any] | None = None
    ) -> Handle[R]:
        """Make one; `kind` validates the result, None returns the decoded JSON."""
        is_duplicate = isinstance(message_id, Published) and message_id.is_duplicate
        self = super().__new__(cls, message_id, is_duplicate=is_duplicate)
        self._results = results
        self.kind = kind
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle the id alone: connections cannot be pickled."""
        return int, (int(self),)

    def typed(self, kind: TypeAdapter[Any] | None) -> Handle[Any]:
        """The same message with another type of result."""
        return Handle(self, self._results, kind)

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the end of the message and return what its handler returned.

        Raises ResultTimeoutError after `timeout` (None: no timeout), MessageRejectedError,
        MessageFailedError or LockExpiredError for a dead message, MessageNotFoundError for one
        whose transaction was not committed, or that the archive has dropped.
        """
        result: R = await self._results.wait(self, self.kind, timeout)
        return result

    async def signal(self, name: str, payload: Any = None, *, connection: Any = None) -> int:
        """Send a signal to this message alone, for one wait of its handler.

        Return 1 if that wakes it, else 0. Such signals queue up. Raises MessageNotFoundError for a
        finished message, MessageLimitError for a payload that is too large for its queue.
        """
        return await self._results.signal(name, payload, int(self), connection=connection)

    async def output(self, after: int = 0) -> AsyncIterator[Chunk]:
        """Yield what the handler emits, behind chunk number `after`, until the message has ended.

        Every chunk comes once, and those of failed attempts too. Raises MessageNotFoundError for an
        unknown message.
        """
        async for chunk in self._results.output(self, after):
            yield chunk

    async def progress(self) -> Progress | None:
        """How far the handler was when it last reported; None: it has not, or the message ended.

        Raises MessageNotFoundError for an unknown message.
        """
        return await self._results.progress(self)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of the output of a handler."""

    number: int
    """Rises from 1 on, over all attempts."""
    attempt: int
    created_at: datetime
    value: Any


class _Listening:
    """A session that listens for ends and output, and the calls that wait for them."""

    def __init__(self, database: Database) -> None:
        waiters: Waiters[int] = Waiters()
        self.waiting = waiters.waiting
        """Give an event that each notification about some messages sets."""
        self.listener = Listener(
            database,
            [sql.FINISHED_MESSAGE, sql.MESSAGE_OUTPUT],
            partial(_wake, waiters),
            name="notifyq results",
            telemetry=log_events,
        )

    async def close(self) -> None:
        await self.listener.close()


class Results:
    """Waits for the ends of messages.

    The first wait opens one listening session, which `close()` ends; all waits of an event loop
    share it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._listening = PerLoop(partial(_Listening, database))

    async def wait(
        self,
        message_id: int,
        kind: TypeAdapter[Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> Any:
        """Wait for the end of a message; see `Handle.result`."""
        seconds = wait_limit("timeout", timeout)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                report = await self._poll(sql.RESULT, message_id)
                if not _is_over(report):
                    report = await self._until_over(message_id)
        except TimeoutError:
            if not limit.expired():
                raise
            report = await self._last_poll(message_id, seconds)
        return outcome_of(report, kind, self._database.keys)

    async def signal(
        self, name: str, payload: Any, message_id: int | None = None, *, connection: Any = None
    ) -> int:
        """Send a signal; see `App.signal` and `Handle.signal`."""
        calls = self._database if connection is None else adapt(connection, self._database.schema)
        text = encode(payload)
        if message_id is not None:
            text = await self._database.encrypted_for(int(message_id), "signal", text)
        # Not repeated after a lost answer: a message receives each signal of its own.
        with storing("the signal"):
            [[woken]] = await calls.fetch(sql.SIGNAL, name, text, message_id)
        return int(woken)

    async def progress(self, message_id: int) -> Progress | None:
        """Read the last report of a handler; see `Handle.progress`."""
        rows = await self._database.persist(sql.PROGRESS, int(message_id))
        if not rows:
            return None
        return decrypted_row(self._database.keys, Progress.from_row(rows[0]))

    async def output(self, message_id: int, after: int) -> AsyncIterator[Chunk]:
        """Yield the chunks of a message; see `Handle.output`."""
        listening = self._listening.get()
        with listening.waiting([message_id]) as wake:
            is_over = False
            while not is_over:
                await listening.listener.open()
                wake.clear()
                # In this order: what is emitted before the end is read after it.
                report = await self._poll(sql.AWAIT_RESULT, message_id)
                is_over = _is_over(report)
                while rows := await self._database.persist(sql.OUTPUT, int(message_id), after):
                    for row in rows:
                        after = row["number"]
                        chunk = opened(self._database.keys, report["queue"], "chunk", row["chunk"])
                        yield Chunk(after, row["attempt"], row["created_at"], from_json(chunk))
                if not is_over:
                    await _wait(listening.listener, wake, message_id)

    async def close(self) -> None:
        """End the listening session of this loop; a call that still waits gets an error."""
        if listening := self._listening.pop():
            await listening.close()

    async def _until_over(self, message_id: int) -> asyncpg.Record:
        listening = self._listening.get()
        with listening.waiting([message_id]) as wake:
            while True:
                # Listen before the poll: what ends after the poll sends a notification.
                await listening.listener.open()
                wake.clear()
                report = await self._poll(sql.AWAIT_RESULT, message_id)
                if _is_over(report):
                    return report
                await _wait(listening.listener, wake, message_id)
                await asyncio.sleep(_PAUSE)

    async def _poll(self, statement: str, message_id: int) -> asyncpg.Record:
        [report] = await self._database.persist(statement, int(message_id))
        return report

    async def _last_poll(self, message_id: int, seconds: float | None) -> asyncpg.Record:
        state = "the database does not answer"
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_POLL):
                report = await self._poll(sql.RESULT, message_id)
                if _is_over(report):
                    return report
                state = f"it is {report['state']} in queue {report['queue']!r}" + (
                    f", {report['attempts']} attempts were begun" if report["attempts"] else ""
                )
        raise ResultTimeoutError(f"message {message_id} is not finished after {seconds} s: {state}")


async def _wait(listener: Listener, wake: asyncio.Event, message_id: int) -> None:
    """Wait for a notification, or until it is time to poll."""
    await at_most(_POLL if listener.delivers else _POLL_ONLY, wake.wait())
    if listener.is_closed:
        raise DatabaseUnavailableError(
            f"the App was closed during the wait for message {message_id}"
        )


def _wake(waiters: Waiters[int], channel: str, payload: str) -> None:
    _queue, separator, text = payload.rpartition(":")
    spans = _spans(text) if separator or channel == sql.MESSAGE_OUTPUT else None
    if spans is None:  # notifications may have been missed
        waiters.wake()
    else:
        waiters.wake(lambda id: any(first <= id <= last for first, last in spans))


def _is_over(report: asyncpg.Record) -> bool:
    return report["archived_at"] is not None


def _spans(text: str) -> list[tuple[int, int]] | None:
    """The ids of a notification; None if it has none, as any session may send notifications."""
    try:
        spans = [span.partition("-") for span in text.split(",")]
        return [(int(first), int(last or first)) for first, _, last in spans]
    except ValueError:
        return None


def outcome_of(
    report: Mapping[str, Any] | asyncpg.Record, kind: TypeAdapter[Any] | None, keys: Keys | None
) -> Any:
    """The result of a finished message, validated by `kind`; raises for a dead message."""
    status, queue = report["state"], report["queue"]
    if error := _DEAD.get(status):
        raise error(
            message_id=report["id"],
            queue=queue,
            attempts=report["attempts"],
            details=shown(keys, queue, "details", report["details"]),
        )
    text = opened(keys, queue, "result", report["result"] or "null")
    try:
        return (kind or _ANYTHING).validate_json(text)
    except ValidationError as invalid:
        raise InvalidResultError(
            f"the result of message {report['id']} of queue {queue!r} has another type "
            f"than expected: {invalid}"
        ) from invalid


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class Group:
    """What `App.publish_group` has published: the messages and their callback."""

    messages: list[Handle[Any]]
    """In the order of the payloads."""
    callback: Handle[Any]
    """The message that runs when all of them have ended."""
