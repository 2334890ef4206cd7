"""The rows of queues that users see: live and archived messages, attempts, dependencies."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from pydantic_core import from_json

from notifyq.errors import DecryptionError
from notifyq.models.payload import is_sealed

if TYPE_CHECKING:
    import asyncpg


R = TypeVar("R")


class Status(enum.StrEnum):
    """How a message ended: success, or dead for one of three reasons."""

    SUCCESS = "success"
    REJECTED = "rejected"
    FAILED = "failed"
    LOCK_EXPIRED = "lock_expired"


class State(enum.StrEnum):
    """The state of a live message."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    LOCKED = "locked"


class Cancellation(enum.StrEnum):
    """The answer of `cancel`; false unless the message was cancelled."""

    CANCELLED = "cancelled"
    LOCKED = "locked"
    """A worker has it, or is about to claim it."""
    FINISHED = "finished"
    UNKNOWN = "unknown"
    """There is no message with this id, or it is no longer kept."""

    def __bool__(self) -> bool:
        return self is Cancellation.CANCELLED


@dataclass(frozen=True, slots=True)
class Changes:
    """What a change of all messages that match has done."""

    found: int
    done: int
    """How many were changed; others were claimed or changed meanwhile, or refused."""
    refusals: tuple[str, ...]
    """Why some were not moved."""


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The columns that live and archived messages share.

    `message` is JSON text, decoded by `payload()`: one that cannot be decoded fails alone, not
    with its batch.
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
        """Take the columns that this class has from a row.

        Headers that Python cannot decode become text under `undecodable`, to show the message
        anyway; if strict, they raise ValueError or RecursionError.
        """
        self = cls.__new__(cls)
        # A frozen class sets its fields one by one, in three times the time.
        fields = self.__dict__
        names, values = _columns(cls)  # type: ignore[arg-type]  # a class can be hashed
        fields.update(zip(names, values(row), strict=True))
        headers = fields["headers"]
        read = decode if strict else decode_headers
        fields["headers"] = {} if headers == "{}" else read(headers)
        for name in _MAY_BE_INFINITE:
            if (value := fields.get(name)) is not None and value.tzinfo is None:
                fields[name] = aware(value)
        return self

    is_encrypted = False  # without an annotation: no field
    """Whether its queue is encrypted; `message` is decrypted."""

    def payload(self) -> Any:
        """Decode the message; raises what `decode` does, and DecryptionError for an envelope."""
        return decode(unsealed(self.message))


_MAY_BE_INFINITE = ("available_at", "lock_expires_at")


@cache
def _columns(kind: type[_Row]) -> tuple[tuple[str, ...], itemgetter[Any]]:
    """The columns of a row that are fields of this class, and what reads them."""
    names = tuple(kind.__dataclass_fields__)
    return names, itemgetter(*names)


def aware(value: Any) -> Any:
    """Add a time zone to infinity, which the driver returns as the last datetime without one.

    Otherwise it could not be compared with other instants.
    """
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def columns(row: asyncpg.Record) -> dict[str, Any]:
    """The values of a row by column, with instants that can be compared."""
    return {name: aware(value) for name, value in row.items()}


def unsealed(text: str) -> str:
    """The text; raises for an envelope, which nobody has decrypted."""
    if is_sealed(text):
        raise DecryptionError(
            "it is encrypted, and was read without its key: set NOTIFYQ_KEYS or App(encryption=…)"
        )
    return text


def decode(text: str) -> Any:
    """Decode JSON of PostgreSQL.

    Raises ValueError or RecursionError for what Python cannot hold, such as numbers of more than
    4300 digits.
    """
    try:
        return from_json(text)
    except ValueError:
        # The fast decoder stops at a depth of 200, this one at the limit of Python.
        return json.loads(text)


def decode_headers(text: str) -> dict[str, Any]:
    """Decode headers to be shown; what cannot be decoded is text under `undecodable`."""
    try:
        headers: dict[str, Any] = decode(text)
    except (ValueError, RecursionError):
        return {"undecodable": text}
    return headers


def readable(text: str | None) -> Any:
    """Decode JSON to be shown; what cannot be decoded stays text."""
    try:
        return None if text is None else decode(text)
    except (ValueError, RecursionError):
        return text


@dataclass(frozen=True, kw_only=True)
class Message(_Row):
    """A live message: waiting, scheduled, or locked under `lock_token` until `lock_expires_at`."""

    state: str
    locked_by: str | None
    lock_expires_at: datetime | None
    root_id: int | None = None
    """The message whose recorded steps it continues, or itself; None: nothing was recorded."""

    def opened(self, text: str) -> DecryptedMessage:
        """The same message with its decrypted payload."""
        return copied(self, DecryptedMessage, message=text)


class DecryptedMessage(Message):
    """A message of an encrypted queue, with its decrypted payload."""

    is_encrypted = True


@dataclass(frozen=True, kw_only=True)
class ArchivedMessage(_Row):
    """A finished message; it never changes."""

    archived_at: datetime
    status: str
    handled_by: str | None
    result: str | None
    subscriber: str | None
    """The subscriber that failed to handle the event; None for a message of a queue."""
    event_id: int | None
    """The event of the stream `queue`; None for a message of a queue."""
    cancelled_by: str | None = None
    """Who cancelled it; None: nobody. A cancelled message is rejected, and not dead."""


def copied(row: Any, kind: type[R], /, **changed: Any) -> R:
    """The fields of a row as another class, some of them changed."""
    copy = kind.__new__(kind)
    for name in row.__dataclass_fields__:
        object.__setattr__(copy, name, changed.get(name, getattr(row, name)))
    return copy


class Columns:
    """A row whose columns have the names of the fields."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> Self:
        """Take the columns that this class has from a row."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt(Columns):
    """An attempt that did not succeed."""

    message_id: int
    number: int
    """The number of the attempt, from 1."""
    queue: str
    status: str
    """How it ended; the status of the last attempt is final."""
    locked_at: datetime
    ended_at: datetime
    retry_at: datetime | None
    """When the next attempt was due; None: this was the last."""
    lock_token: int
    handled_by: str | None
    """The worker."""
    error_type: str | None
    details: str | None
    """The text of the error, or another reason."""
    traceback: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency(Columns):
    """A message that another message waits for."""

    id: int
    """Its id."""
    queue: str | None
    """None where the archive has dropped it."""
    state: str
    """Its state, or how it ended."""
    details: str | None
    """Why it did not succeed."""
    result: str | None
    """What its handler returned, as JSON text."""

    def value(self) -> Any:
        """The decoded result, or None."""
        return None if self.result is None else decode(self.result)


@dataclass(frozen=True, slots=True)
class RecordedStep(Columns):
    """A recorded step of a message; see `notifyq.Steps`."""

    name: str
    kind: str
    """step, sleep, signal or end."""
    state: str
    """done, failed, received or timed_out."""
    attempt: int
    """The attempt that recorded it."""
    created_at: datetime
    value: str | None
    """What it returned or received, as JSON text."""


@dataclass(frozen=True, slots=True)
class LogRecord(Columns):
    """What a handler has logged; see `capture_logs` of the `App`."""

    attempt: int
    level: str
    logger: str
    text: str
    """The message of the record, with its traceback."""
    created_at: datetime
    """By the clock of the worker."""
    lock_token: int
    """The lock of its call: a parked message is called again in the same attempt."""


@dataclass(frozen=True, slots=True)
class ParkedMessage(Columns):
    """A message that waits without a worker."""

    id: int
    queue: str
    name: str
    """The step that waits."""
    kind: str
    """sleep, signal or end."""
    waits_for: str | None
    """The signals, or the ids of the messages."""
    since: datetime
    until: datetime | None
    """When it goes on at the latest; None: it has no deadline."""


@dataclass(frozen=True, slots=True)
class Progress(Columns):
    """How far a handler was when it last reported; see `notifyq.progress`."""

    fraction: float
    """From 0 to 1."""
    note: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Retried:
    """What follows a failed attempt whose lock was held."""

    max_attempts: int
    delay: timedelta | None
    """How long until the next attempt; None: the message is archived."""


def newest(keys: Iterable[tuple[int, int]], rows: Iterable[asyncpg.Record]) -> set[tuple[int, int]]:
    """The locks that an answer with ids only is about.

    A worker may settle a lock that it lost after it has claimed the message again: of two tokens
    only the larger one can have been held.
    """
    tokens = dict(sorted(keys))
    return {(row[0], tokens[row[0]]) for row in rows}
