"""Results: waiting for what comes of a message, on one listening session for a whole App."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from notifyq.database import sql
from notifyq.errors import (
    DatabaseUnavailableError,
    DeadMessageError,
    InvalidResultError,
    LockExpiredError,
    MessageFailedError,
    MessageRejectedError,
    ResultTimeoutError,
)
from notifyq.models.message import Status
from notifyq.notify.shared import SharedListener
from notifyq.telemetry import log_sink

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    import asyncpg

    from notifyq.database.pool import Database
    from notifyq.telemetry import Sink

R = TypeVar("R")

_POLL = 5.0
"""Seconds between two looks in spite of a bell that would ring: a full queue of them drops some."""
_DEAF_POLL = 1.0
"""The same where no bell is heard."""
_PAUSE = 0.02
"""Seconds after a look that found nothing: anybody may ring, all the time."""
_LAST_LOOK = 1.0
"""Seconds that a look may take after the timeout, to tell why there is no result."""
_DEAD: dict[str, type[DeadMessageError]] = {
    Status.REJECTED: MessageRejectedError,
    Status.FAILED: MessageFailedError,
    Status.LOCK_EXPIRED: LockExpiredError,
}


class Handle(int, Generic[R]):
    """The id of a published message, and the way to its result."""

    _results: Results
    _kind: TypeAdapter[Any] | None

    def __new__(
        cls, message_id: int, results: Results, kind: TypeAdapter[Any] | None = None
    ) -> Handle[R]:
        """Make one; `kind` is what the result is validated as, None hands on the decoded JSON."""
        self = super().__new__(cls, message_id)
        self._results = results
        self._kind = kind
        return self

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickle the id alone: connections cannot be sent anywhere."""
        return int, (int(self),)

    def typed(self, kind: TypeAdapter[Any] | None) -> Handle[Any]:
        """The same message, whose result is validated as something else."""
        return Handle(self, self._results, kind)

    async def result(self, timeout: timedelta | float | None = None) -> R:
        """Wait for the message's end and return what its handler returned.

        Raises ResultTimeoutError after `timeout` (None: wait for ever), MessageRejectedError,
        MessageFailedError or LockExpiredError for a message that died, MessageNotFoundError for one
        whose transaction was not committed, or that the archive has dropped.
        """
        result: R = await self._results.wait(self, self._kind, timeout)
        return result


class Results:
    """Waits for the ends of messages.

    The first wait opens one listening session, which `close()` ends; all waits share it.
    """

    def __init__(self, database: Database, *, sink: Sink = log_sink) -> None:
        self._database = database
        self._waiting: defaultdict[int, set[asyncio.Event]] = defaultdict(set)
        self._bell = SharedListener(
            database,
            [sql.FINISHED_MESSAGE],
            self._hear,
            name="notifyq results",
            sink=sink,
        )

    async def wait(
        self,
        message_id: int,
        kind: TypeAdapter[Any] | None = None,
        timeout: timedelta | float | None = None,
    ) -> Any:
        """Wait for the end of a message; see `Handle.result`."""
        seconds = (
            timeout
            if timeout is None or isinstance(timeout, int | float)
            else (timeout.total_seconds())
        )
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                report = await self._look(sql.RESULT, message_id)
                if not _is_over(report):
                    report = await self._until_over(message_id)
        except TimeoutError:
            if not limit.expired():
                raise
            report = await self._last_look(message_id, seconds)
        return _outcome(report, kind)

    async def close(self) -> None:
        """End the listening session; whoever still waits gets an error."""
        await self._bell.close()

    async def _until_over(self, message_id: int) -> asyncpg.Record:
        with self._registered(message_id) as wake:
            while True:
                # Listening comes before the look: what ends after it rings.
                await self._bell.listen()
                wake.clear()
                report = await self._look(sql.AWAIT_RESULT, message_id)
                if _is_over(report):
                    return report
                with suppress(TimeoutError):
                    async with asyncio.timeout(_POLL if self._bell.hears else _DEAF_POLL):
                        await wake.wait()
                if self._bell.is_closed:
                    raise DatabaseUnavailableError(
                        f"the App was closed while message {message_id} was waited for"
                    )
                await asyncio.sleep(_PAUSE)

    @contextmanager
    def _registered(self, message_id: int) -> Iterator[asyncio.Event]:
        wake = asyncio.Event()
        self._waiting[message_id].add(wake)
        try:
            yield wake
        finally:
            self._waiting[message_id].discard(wake)
            if not self._waiting[message_id]:
                del self._waiting[message_id]

    async def _look(self, statement: str, message_id: int) -> asyncpg.Record:
        [report] = await self._database.persist(statement, int(message_id))
        return report

    async def _last_look(self, message_id: int, seconds: float | None) -> asyncpg.Record:
        stands = "and the database does not answer"
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LOOK):
                report = await self._look(sql.RESULT, message_id)
                if _is_over(report):
                    return report
                stands = f"it is {report['state']} in queue {report['queue']!r}" + (
                    f", {report['attempts']} attempts were begun" if report["attempts"] else ""
                )
        raise ResultTimeoutError(
            f"message {message_id} is not finished after {seconds} s: {stands}"
        )

    def _hear(self, payload: str | None) -> None:
        _queue, separator, spans = (payload or "").rpartition(":")
        named = _spans(spans) if separator else None
        if named is None:  # the session is a new one: bells may have been missed
            for wakes in self._waiting.values():
                for wake in wakes:
                    wake.set()
            return
        for message_id, wakes in self._waiting.items():
            if any(first <= message_id <= last for first, last in named):
                for wake in wakes:
                    wake.set()


def _is_over(report: asyncpg.Record) -> bool:
    return report["archived_at"] is not None


def _spans(text: str) -> list[tuple[int, int]] | None:
    """The ids of a bell; None where they cannot be read, as anybody may ring."""
    try:
        spans = [span.partition("-") for span in text.split(",")]
        return [(int(first), int(last or first)) for first, _, last in spans]
    except ValueError:
        return None


def _outcome(report: asyncpg.Record, kind: TypeAdapter[Any] | None) -> Any:
    status, text = report["state"], report["result"]
    if error := _DEAD.get(status):
        raise error(
            message_id=report["id"],
            queue=report["queue"],
            attempts=report["attempts"],
            details=report["details"],
        )
    try:
        return (kind or _ANYTHING).validate_json("null" if text is None else text)
    except ValidationError as invalid:
        raise InvalidResultError(
            f"the result of message {report['id']} of queue {report['queue']!r} is not what was "
            f"expected: {invalid}"
        ) from invalid


_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


@dataclass(frozen=True, slots=True)
class Group:
    """What `App.publish_group` has published: the messages, in order, and their callback."""

    messages: list[Handle[Any]]
    """In the order of the payloads."""
    callback: Handle[Any]
    """What runs when all of them have ended."""
