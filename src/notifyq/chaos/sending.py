"""What a fault publishes itself, and how long messages waited: both by way of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.chaos.history import digest
from notifyq.errors import NotifyqError
from notifyq.queues.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.chaos.history import Call, History
    from notifyq.database.pool import Database

FAILURES = (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""What a client of a database that is being harmed has to expect."""


async def send(
    history: History, database: Database, kind: str, payload: dict[str, Any], **options: Any
) -> int:
    """Publish one message and write it down; raises what the publisher raises."""
    call = history.invoke("publish", key=payload["key"], queue=kind, digest=digest(payload))
    try:
        published = await Publisher(database).publish(kind, payload, **options)
    except FAILURES as error:
        call.unknown(error=f"{type(error).__name__}: {error}")
        raise
    call.ok(id=published)
    return published


def waits(history: Iterable[Call], since: float, until: float = float("inf")) -> list[float]:
    """Seconds from the acknowledgement of each message to its first claim.

    Of those that were acknowledged in this time, a retry or a delay of theirs left aside.
    """
    claimed: dict[int, float] = {}
    published: dict[int, float] = {}
    for call in history:
        if call.ended is None or call.outcome != "ok":
            continue
        if call.op == "claim":
            for message in call.fields.get("messages", ()):
                claimed.setdefault(message["id"], call.ended)
        elif call.op == "publish" and since <= call.ended < until:
            published[call.fields["id"]] = call.ended
    return [max(0.0, claimed[it] - published[it]) for it in published.keys() & claimed.keys()]
