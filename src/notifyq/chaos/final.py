"""The final state of the database: every live and every archived message, also kept as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from notifyq.chaos.history import HistoryError, digest
from notifyq.database import statements as sql
from notifyq.models.message import decode

# Read from the tables: a function that hid a row from clients would hide it from the checker too.
_LIVE = """
select id, queue, lock_token, attempts, message, state, parked_at is not null as is_parked
from messages.message
"""
_ARCHIVED = """
select id, queue, lock_token, attempts, message, status, cancelled_by is not null as is_cancelled
from messages.message_archive
"""
_FILE = "final.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A message in one of the two tables."""

    id: int
    queue: str
    lock_token: int
    attempts: int
    key: str | None = None
    """Identifies its publication; None if the payload has no key or cannot be decoded."""
    digest: str | None = None
    """That of the payload; None if it cannot be decoded."""
    status: str | None = None
    """Its status in the archive; None while it is live."""
    state: str | None = None
    """Its state while it is live; None in the archive."""
    is_cancelled: bool = False
    is_parked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """All messages after the fault is healed and the queues are drained."""

    live: Sequence[Row] = ()
    archive: Sequence[Row] = ()
    max_attempts: Mapping[str, int] = field(default_factory=dict)
    """By queue."""

    def write(self, folder: Path) -> None:
        """Write it beside the history in `folder`."""
        (folder / _FILE).write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Final:
        """Read what `write` wrote; raises HistoryError where there is nothing to read."""
        try:
            kept = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            live, archive = ([Row(**row) for row in kept[name]] for name in ("live", "archive"))
            return cls(live=live, archive=archive, max_attempts=kept["max_attempts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HistoryError(f"{folder} has no complete history: {error}") from error


async def read_final(connection: asyncpg.Connection[asyncpg.Record]) -> Final:
    """Read all messages of all queues in one snapshot."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        live = [_row(row) async for row in connection.cursor(_LIVE)]
        archive = [_row(row) async for row in connection.cursor(_ARCHIVED)]
        queues = await connection.fetch(sql.QUEUE_INFO, None)
    most = {row["queue"]: row["max_attempts"] for row in queues}
    return Final(live=live, archive=archive, max_attempts=most)


def _row(row: asyncpg.Record) -> Row:
    fields = dict(row)
    message: Any = fields.pop("message")
    try:
        # The driver returns text unless the connection has a codec for jsonb.
        payload = decode(message) if isinstance(message, str) else message
        key = payload.get("key") if isinstance(payload, dict) else None
        return Row(**fields, key=key, digest=digest(payload))
    except (ValueError, RecursionError):
        return Row(**fields)
