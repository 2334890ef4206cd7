"""The rows that users see: live and archived messages, and how a handler ended."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from datetime import datetime, timedelta

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
    message: str
    headers: dict[str, Any]
    details: str | None

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> Self:
        """Take the columns that this class knows out of a row; newer ones are ignored."""
        values = {name: row[name] for name in cls.__dataclass_fields__}
        values["headers"] = cls._headers(values["headers"])
        return cls(**values)

    @classmethod
    def _headers(cls, text: str) -> dict[str, Any]:
        headers: dict[str, Any] = json.loads(text)
        return headers

    def payload(self) -> Any:
        """Decode the message.

        Raises ValueError or RecursionError where Python cannot hold what PostgreSQL can, as with
        numbers of more than 4300 digits.
        """
        return json.loads(self.message)


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

    @classmethod
    def _headers(cls, text: str) -> dict[str, Any]:
        try:
            return super(ArchivedMessage, cls)._headers(text)
        except (ValueError, RecursionError):
            # Rejected for them, the message must still be seen: here they are text.
            return {"undecodable": text}


@dataclass(frozen=True, slots=True)
class Success:
    """The handler returned; `result` is what it returned, as JSON text."""

    result: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is not one that can ever be handled."""

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed; the message is retried while attempts are left.

    `after` overrides the backoff of the queue; `status` is how the message is archived when no
    attempt is left.
    """

    details: str
    after: timedelta | None = None
    status: Status = Status.FAILED


@dataclass(frozen=True, slots=True)
class Released:
    """The handler was stopped from outside; the attempt does not count."""


Outcome = Success | Rejected | Failed | Released
