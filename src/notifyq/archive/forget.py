"""Forgets messages of a key, or with a payload, in all tables; lists the lakes that have more."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from notifyq.database import statements as sql

if TYPE_CHECKING:
    from datetime import date

    from notifyq.database.pool import Calls

GONE: Final = ("cancelled", "archive", "events")
"""Places of messages and events that are deleted; the others hold what belongs to these."""
STAYING: Final = ("live", "live_events", "schedules", "settings")
"""Places that are counted only."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What messages are to be forgotten."""

    key: str | None
    """Their key or dedup_key."""
    filter: str | None
    """A JSON path that their payloads meet."""
    queue: str | None

    @property
    def digest(self) -> str:
        """What the audit keeps: neither key nor filter can be read from it."""
        given = {"key": self.key, "filter": self.filter}
        return " ".join(
            f"{name} sha256:{hashlib.sha256(text.encode()).hexdigest()}"
            for name, text in given.items()
            if text is not None
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The counts of a step by part, and where the next one continues; None: it was the last."""

    counts: dict[str, int]
    position: Any | None


async def step(
    calls: Calls, wanted: Wanted, position: Any | None, *, live: bool, dry_run: bool
) -> Step:
    """Do one step of messages.forget()."""
    after = None if position is None else json.dumps(position)
    found = await calls.value(
        sql.FORGET, wanted.key, wanted.filter, wanted.queue, after, live, dry_run
    )
    counts, following = json.loads(found)
    return Step(counts, following)


async def lakes(calls: Calls) -> list[tuple[int, str]]:
    """Return number and folder of each lake that has files."""
    return [(it["id"], it["location"]) for it in await calls.fetch(sql.LAKES) if it["files"]]


async def lake_files(
    calls: Calls, lake: int, queue: str | None
) -> tuple[int, date | None, date | None]:
    """Return how many files may have archived messages of the queue; their first and last day."""
    [(files, first, last)] = await calls.fetch(sql.LAKE_FILES, lake, queue)
    return files, first, last
