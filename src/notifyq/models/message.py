"""The rows that users see: live and archived messages, and how a handler ended."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    import asyncpg


class Status(enum.StrEnum):
    """How a message ended; everything but success is dead."""

    SUCCESS = "success"
    REJECTED = "rejected"
    FAILED = "failed"
    LOCK_EXPIRED = "lock_expired"


class State(enum.StrEnum):
    """Where a live message stands."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    LOCKED = "locked"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What live and archived messages have in common.

    `message` is the JSON text as PostgreSQL gives it: decoding is left to `payload()`, since a
    payload that the decoder cannot take must fail alone, not the batch that it came with.
    """

    id: int
    queue: str
    created_at: datetime
    available_at: datetime
    locked_at: datetime | None
    lock_token: int
    priority: int
    attempts: int
    type: str | None
    dedup_key: str | None
    key: str | None
    max_attempts: int | None
    message: str
    headers: dict[str, Any]
    details: str | None

    @classmethod
    def from_row(cls, row: asyncpg.Record, *, strict: bool = False) -> Self:
        """Take the columns that this class knows out of a row; newer ones are ignored.

        Headers that Python cannot hold are text under `undecodable`, as the message must still be
        seen; if strict, ValueError or RecursionError.
        """
        self = cls.__new__(cls)
        values, setters = _columns(cls)  # type: ignore[arg-type]  # a class can be hashed
        for put, value in zip(setters, values(row), strict=True):
            put(self, value)
        read = decode if strict else decode_headers
        headers = {} if row["headers"] == "{}" else read(row["headers"])
        object.__setattr__(self, "headers", headers)
        for name in _ENDLESS:
            if (value := getattr(self, name, None)) is not None and value.tzinfo is None:
                object.__setattr__(self, name, aware(value))
        return self

    def payload(self) -> Any:
        """Decode the message; raises what `decode` does."""
        return decode(self.message)


_ENDLESS = ("available_at", "lock_expires_at")
"""Fields that may be infinity."""

_Setter = Callable[[object, Any], None]


@cache
def _columns(kind: type[_Row]) -> tuple[itemgetter[Any], list[_Setter]]:
    """How to read the columns of a row, and how to write them past the guard of a frozen class.

    That takes a third of the time of its `__init__`, which counts in thousands of rows a second.
    """
    names = tuple(kind.__dataclass_fields__)
    return itemgetter(*names), [getattr(kind, name).__set__ for name in names]


def aware(value: Any) -> Any:
    """Infinity, which the driver gives as the last instant without a time zone, with one.

    Else it could not be compared with any other instant.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def columns(row: asyncpg.Record) -> dict[str, Any]:
    """A row by the names of its columns, with instants that can be compared."""
    return {name: aware(value) for name, value in row.items()}


def decode(text: str) -> Any:
    """Decode JSON that PostgreSQL has taken.

    Raises ValueError or RecursionError where Python cannot hold what PostgreSQL can, as with
    numbers of more than 4300 digits.
    """
    try:
        return from_json(text)
    except ValueError:
        # The quick decoder stops at a depth of 200, this one where Python does.
        return json.loads(text)


def decode_headers(text: str) -> dict[str, Any]:
    """Headers to be shown: those that cannot be decoded are text under `undecodable`."""
    try:
        headers: dict[str, Any] = decode(text)
    except (ValueError, RecursionError):
        return {"undecodable": text}
    return headers


def readable(text: str | None) -> Any:
    """Decode JSON to be shown: what cannot be decoded stays text."""
    try:
        return None if text is None else decode(text)
    except (ValueError, RecursionError):
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(_Row):
    """A live message: waiting, scheduled, or locked under `lock_token` until `lock_expires_at`."""

    state: str
    locked_by: str | None
    lock_expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedMessage(_Row):
    """A finished message; it never changes."""

    archived_at: datetime
    status: str
    handled_by: str | None
    result: str | None
    subscriber: str | None
    """The subscriber that could not handle the event; None: it was a message of a queue."""
    event_id: int | None
    """The event of the stream `queue` that this is about, for a subscriber."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that did not succeed."""

    message_id: int
    number: int
    """Which attempt of the message it was, from 1 on."""
    queue: str
    status: str
    """How it ended; that of the last attempt is final."""
    locked_at: datetime
    ended_at: datetime
    retry_at: datetime | None
    """When the next one was due; None: this was the last."""
    lock_token: int
    handled_by: str | None
    """The worker."""
    error_type: str | None
    details: str | None
    """The text of the error, or what else went wrong."""
    traceback: str | None

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> Self:
        """Take the columns that this class knows out of a row; newer ones are ignored."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A message that another one waits for."""

    id: int
    """That message."""
    queue: str | None
    """None where the archive does not keep it any more."""
    state: str
    """Where it stands, or how it ended."""
    details: str | None
    """Why it did not succeed."""
    result: str | None
    """What its handler returned, as JSON text."""

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> Dependency:
        """Take the columns of a report."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})

    def value(self) -> Any:
        """Decode the result; None where there is none."""
        return None if self.result is None else decode(self.result)


@dataclass(frozen=True, slots=True)
class Retried:
    """What followed a failed attempt: true, as the lock was held."""

    max_attempts: int
    delay: timedelta | None
    """After what time the next attempt comes; None: the message is archived."""


def newest(keys: Iterable[tuple[int, int]], rows: Iterable[asyncpg.Record]) -> set[tuple[int, int]]:
    """Which of these locks an answer is about that names ids only.

    A worker may still settle a lock that it lost when it has the message again: of two tokens only
    the larger one can have been held.
    """
    tokens = dict(sorted(keys))
    return {(row[0], tokens[row[0]]) for row in rows}
