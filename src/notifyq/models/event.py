"""The rows of streams that users see: events, and where streams and subscriptions stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from notifyq.models.message import decode, decode_headers

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    import asyncpg


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event as one subscriber gets it; it never changes.

    `message` is the JSON text as PostgreSQL gives it: decoding is left to `payload()`, since a
    payload that the decoder cannot take must fail alone, not the batch that it came with.
    """

    id: int
    stream: str
    """Where it was published."""
    created_at: datetime
    type: str | None
    key: str | None
    message: str
    headers: dict[str, Any]
    retries: int | None
    """How often it was put back for this subscriber; None: this is the first time."""
    reason: str | None
    """Why it was put back the last time."""

    @classmethod
    def from_row(cls, row: asyncpg.Record, stream: str) -> Self:
        """Take an event out of a row of a batch."""
        return cls(
            id=row["id"],
            stream=stream,
            created_at=row["created_at"],
            type=row["type"],
            key=row["key"],
            message=row["message"],
            headers=_headers(row["headers"]),
            retries=row["retries"],
            reason=row["reason"],
        )

    @property
    def attempts(self) -> int:
        """How often it was delivered to this subscriber, this time included."""
        return (self.retries or 0) + 1

    @property
    def queue(self) -> str:
        """The stream, for what takes messages as well."""
        return self.stream

    def payload(self) -> Any:
        """Decode the message; raises what `notifyq.Message.payload` does."""
        return decode(self.message)


def _headers(text: str | None) -> dict[str, Any]:
    if text is None or text == "{}":
        return {}
    # The event must fail alone, if it fails at all.
    return decode_headers(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """Where a subscription stands."""

    stream: str
    """What it reads."""
    subscriber: str
    """Its name."""
    lag: timedelta | None
    """How old the oldest event is that it has not finished."""
    pending: int
    """Events that it has not finished, at most."""
    last_seen_at: datetime | None
    """When it was last handed a batch."""
    last_tick: int | None
    """The newest tick then."""
    current_batch: int | None
    """The oldest batch that it has open."""
    next_tick: int | None
    """The tick behind `last_tick`."""
    retries: int
    """Events that wait to be delivered again."""
    dead: int
    """Events of it that are dead and still need attention."""
    members: int
    """How many have a batch open."""

    @classmethod
    def from_row(cls, row: asyncpg.Record) -> Self:
        """Take the columns that this class knows out of a row; newer ones are ignored."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})
