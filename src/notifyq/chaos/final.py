"""What the database holds at the end of a run: every live message, and every archived one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from notifyq.chaos.history import digest
from notifyq.database import sql
from notifyq.models.message import decode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import asyncpg

# Read from the tables: a function that hid a row would hide it from its judge as well.
_LIVE = """
select id, queue, state, lock_token, attempts, dedup_key, message from messages.message
"""
_ARCHIVED = """
select id, queue, status, lock_token, attempts, dedup_key, message from messages.message_archive
"""


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
    """Read all messages of all queues, in one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        live = [_row(row, state=row["state"]) async for row in connection.cursor(_LIVE)]
        archive = [_row(row, status=row["status"]) async for row in connection.cursor(_ARCHIVED)]
        queues = await connection.fetch(sql.QUEUE_INFO, None)
    return Final(
        live=live,
        archive=archive,
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
