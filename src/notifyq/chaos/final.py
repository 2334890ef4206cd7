"""What the database holds at the end of a run: every live message, and every archived one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from notifyq import sql
from notifyq.chaos.history import HistoryError, digest
from notifyq.model import Status, decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

_MOST_LIVE, _MOST_ARCHIVED = 10_000, 100_000
"""What one call of the listing functions gives at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message as it was found."""

    id: int
    queue: str
    lock_token: int
    attempts: int
    key: str | None = None
    """What ties it to its publication; None if the payload has none or cannot be decoded."""
    digest: str | None = None
    """That of the payload; None if it cannot be decoded."""
    dedup_key: str | None = None
    status: str | None = None
    """How it ended; None while it is live."""
    state: str | None = None
    """Where it stands; None if it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """The database at the end, after healing and a full drain."""

    live: Sequence[Row] = ()
    archive: Sequence[Row] = ()
    max_attempts: Mapping[str, int] = field(default_factory=dict)
    """By queue."""


async def read_final(connection: asyncpg.Connection[asyncpg.Record]) -> Final:
    """Read all messages of all queues.

    Raises HistoryError where there are more than can be read: a part would look like a loss.
    """
    live = await connection.fetch(sql.MESSAGE_LIST, None, None, _MOST_LIVE)
    if len(live) == _MOST_LIVE:
        raise HistoryError(f"{_MOST_LIVE} messages or more are live: the drain is not finished")
    archive: list[asyncpg.Record] = []
    for status in Status:
        found = await connection.fetch(sql.ARCHIVE_LIST, None, status, _MOST_ARCHIVED, None)
        if len(found) == _MOST_ARCHIVED:
            raise HistoryError(f"{_MOST_ARCHIVED} messages or more are archived as {status}")
        archive += found
    queues = await connection.fetch(sql.QUEUE_INFO, None)
    return Final(
        live=[_row(row, state=row["state"]) for row in live],
        archive=[_row(row, status=row["status"]) for row in archive],
        max_attempts={row["queue"]: row["max_attempts"] for row in queues},
    )


def _row(row: asyncpg.Record, *, status: str | None = None, state: str | None = None) -> Row:
    key, fingerprint = _identify(row["message"])
    return Row(
        id=row["id"],
        queue=row["queue"],
        lock_token=row["lock_token"],
        attempts=row["attempts"],
        key=key,
        digest=fingerprint,
        dedup_key=row["dedup_key"],
        status=status,
        state=state,
    )


def _identify(message: Any) -> tuple[str | None, str | None]:
    try:
        # The driver gives text, unless somebody has set a codec for the connection.
        payload = decode(message) if isinstance(message, str) else message
        key = payload.get("key") if isinstance(payload, dict) else None
        return key, digest(payload)
    except (ValueError, RecursionError):
        return None, None
