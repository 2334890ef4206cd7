"""The rows of streams that users see: events, and the state of subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from notifyq.models.message import Columns, copied, decode, decode_headers, unsealed

if TYPE_CHECKING:
    import asyncpg


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event as one subscriber gets it; it never changes.

    `message` is JSON text, decoded by `payload()`: one that cannot be decoded fails alone, not
    with its batch.
    """

    id: int
    stream: str
    """The stream that it was published into."""
    created_at: datetime
    type: str | None
    key: str | None
    message: str
    headers: dict[str, Any]
    retries: int | None
    """How often it was retried for this subscriber; None: this is the first attempt."""
    reason: str | None
    """Why the last attempt failed."""

    @classmethod
    def from_row(cls, row: asyncpg.Record, stream: str) -> Self:
        """Take an event from a row of a batch."""
        headers = row["headers"]
        return cls(
            id=row["id"],
            stream=stream,
            created_at=row["created_at"],
            type=row["type"],
            key=row["key"],
            message=row["message"],
            headers={} if headers in {None, "{}"} else decode_headers(headers),
            retries=row["retries"],
            reason=row["reason"],
        )

    @property
    def attempts(self) -> int:
        """How often it was delivered to this subscriber, including this time."""
        return (self.retries or 0) + 1

    @property
    def queue(self) -> str:
        """The stream, for code that takes messages too."""
        return self.stream

    is_encrypted = False  # without an annotation: no field
    """Whether its stream is encrypted; `message` is decrypted."""

    def payload(self) -> Any:
        """Decode the message; raises what `notifyq.Message.payload` does."""
        return decode(unsealed(self.message))

    def opened(self, text: str, reason: str | None = None) -> DecryptedEvent:
        """The same event with its decrypted payload, and reason if there is one."""
        return copied(self, DecryptedEvent, message=text, reason=reason or self.reason)


class DecryptedEvent(Event):
    """An event of an encrypted stream, with its decrypted payload."""

    __slots__ = ()
    is_encrypted = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo(Columns):
    """The state of a subscription."""

    stream: str
    """The stream that it reads."""
    subscriber: str
    """Its name."""
    lag: timedelta | None
    """The age of its oldest unfinished event."""
    pending: int
    """Its unfinished events, at most."""
    last_seen_at: datetime | None
    """When it last got a batch."""
    last_tick: int | None
    """The newest tick at that time."""
    current_batch: int | None
    """Its oldest open batch."""
    next_tick: int | None
    """The tick after `last_tick`."""
    retries: int
    """Events that wait for a retry."""
    dead: int
    """Its dead events that were not retried or deleted."""
    members: int
    """How many of its members have a batch open."""
