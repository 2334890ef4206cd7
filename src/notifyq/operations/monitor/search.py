"""Look for messages by what a person knows of them, and act on all dead ones that are found."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from notifyq.models.message import columns
from notifyq.operations.monitor import statements

if TYPE_CHECKING:
    from notifyq.operations.monitor.reading import Source

_LIVE = frozenset({"live", "waiting", "scheduled", "blocked", "locked"})
_SHORTLY = timedelta(milliseconds=500)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What to look for; None is no condition."""

    state: str | None = None
    """waiting, scheduled, blocked, locked, or live for any of them; success, rejected, failed,
    lock_expired, dead (of the last three what was not retried), or finished. None: any."""
    queue: str | None = None
    subscriber: str | None = None
    type: str | None = None
    key: str | None = None
    dedup_key: str | None = None
    worker: str | None = None
    """How its name begins."""
    error: str | None = None
    """A part of the details, whatever its case."""
    fingerprint: str | None = None
    """What the error has in common with others, as `notifyq.error_fingerprint` tells."""
    payload: str | None = None
    """A JSON path that is true or false, like `$.amount > 100`."""
    since: datetime | None = None
    """Published, or finished, at that instant or later."""
    until: datetime | None = None
    """Before that instant."""

    @property
    def is_live(self) -> bool:
        """Whether only live messages are meant."""
        return self.state in _LIVE

    @property
    def is_finished(self) -> bool:
        """Whether only finished messages are meant; what died has a subscriber, too."""
        return self.subscriber is not None or (self.state is not None and not self.is_live)

    def values(self) -> dict[str, str]:
        """All that is said, as texts."""
        said = {it.name: getattr(self, it.name) for it in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in said.items()
            if value is not None
        }

    def as_json(self) -> str:
        """The argument of the SQL functions."""
        return json.dumps(
            {
                name: value
                for name, value in self.values().items()
                if (name, value) not in {("state", "live"), ("state", "finished")}
            }
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A message, live or finished, as a list shows it."""

    id: int
    queue: str
    state: str
    """waiting, scheduled, blocked, locked, or how it ended."""
    created_at: datetime
    available_at: datetime
    locked_at: datetime | None
    lock_expires_at: datetime | None
    archived_at: datetime | None
    priority: int
    attempts: int
    type: str | None
    key: str | None
    dedup_key: str | None
    worker: str | None
    subscriber: str | None
    event_id: int | None
    retried_as: int | None
    """The message as which a dead one was published again."""
    details: str | None
    message: str | None
    """The payload as JSON text; None where it is long."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a search stopped, which goes on behind it; `at` is None among live messages."""

    at: datetime | None
    id: int

    def __str__(self) -> str:
        return f"{'' if self.at is None else self.at.isoformat()}~{self.id}"

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read what `str` gave; ValueError for anything else."""
        at, _, number = text.partition("~")
        if not -(2**63) <= (place := int(number)) < 2**63:
            raise ValueError(text)
        return cls(datetime.fromisoformat(at) if at else None, place)


@dataclass(frozen=True, slots=True)
class Page:
    """Some of what is found, and where to go on; `place` is None where that is all."""

    messages: tuple[Found, ...]
    place: Place | None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead messages whose errors have the same fingerprint."""

    fingerprint: str
    dead: int
    first_at: datetime
    last_at: datetime
    last_id: int | None
    queues: tuple[str, ...]
    statuses: tuple[str, ...]
    sample: str | None
    """The details of the last one."""


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """The largest groups of the dead messages that were looked at."""

    groups: tuple[DeadGroup, ...]
    looked_at: int
    """How many dead messages were looked at."""
    place: Place | None
    """Where to go on; None: all were looked at."""


class Act(Enum):
    """What is done to all dead messages that match."""

    COUNT = statements.DEAD_MATCHING
    RETRY = statements.DEAD_RETRY_MATCHING
    DELETE = statements.DEAD_DELETE_MATCHING


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, and where the next one goes on."""

    found: int
    done: int
    place: Place | None
    """None: it was the last one."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A message that has to do with another one."""

    kind: str
    """after, before, retried_as, or retry_of."""
    id: int
    queue: str | None
    state: str | None
    happened_at: datetime | None


async def search(
    source: Source,
    conditions: Conditions,
    *,
    quantity: int = 50,
    place: Place | None = None,
    budget: timedelta = _SHORTLY,
) -> Page:
    """Find messages: live ones, the newest first, then finished ones, the latest first."""
    found: list[Found] = []
    if not conditions.is_finished and (place is None or place.at is None):
        page = await _search_live(source, conditions, quantity, place, budget)
        if page.place is not None or conditions.is_live:
            return page
        found += page.messages
        quantity, place = quantity - len(found), None
    page = await _search_archive(source, conditions, quantity, place, budget)
    return Page((*found, *page.messages), page.place)


async def _search_live(
    source: Source, conditions: Conditions, quantity: int, place: Place | None, budget: timedelta
) -> Page:
    rows = await source.fetch(
        statements.SEARCH_LIVE, conditions.as_json(), quantity, place and place.id, budget
    )
    return _page(rows)


async def _search_archive(
    source: Source, conditions: Conditions, quantity: int, place: Place | None, budget: timedelta
) -> Page:
    rows = await source.fetch(
        statements.SEARCH_ARCHIVE, conditions.as_json(), quantity, *_at(place), budget
    )
    return _page(rows)


def _page(rows: list[Any]) -> Page:
    place = None
    if rows and rows[-1]["state"] == "more":
        last = rows.pop()
        place = Place(last["archived_at"], last["id"])
    return Page(tuple(Found(**columns(row)) for row in rows), place)


async def dead_groups(
    source: Source,
    conditions: Conditions,
    *,
    quantity: int = 50,
    place: Place | None = None,
    budget: timedelta = timedelta(seconds=1),
) -> DeadGroups:
    """Group dead messages by what their errors have in common, the largest groups first."""
    *rows, last = await source.fetch(
        statements.DEAD_GROUPS, conditions.as_json(), quantity, *_at(place), budget
    )
    groups = tuple(
        DeadGroup(
            row["fingerprint"],
            row["dead"],
            row["first_at"],
            row["last_at"],
            row["last_id"],
            tuple(row["queues"]),
            tuple(row["endings"]),
            row["sample"],
        )
        for row in rows
    )
    rest = None if last["last_id"] is None else Place(last["first_at"], last["last_id"])
    return DeadGroups(groups, last["dead"], rest)


async def step(
    source: Source,
    act: Act,
    conditions: Conditions,
    *,
    quantity: int = 1000,
    place: Place | None = None,
    budget: timedelta = timedelta(seconds=1),
) -> Step:
    """Do one step of an action on all dead messages that match; `until` must be among them."""
    (row,) = await source.fetch(
        act.value, conditions.as_json(), quantity, *_at(place), budget
    )  # fmt: skip
    rest = None if row["is_over"] else Place(row["place_at"], row["place_id"])
    return Step(row["found"], row["done"], rest)


def _at(place: Place | None) -> tuple[datetime | None, int | None]:
    return (None, None) if place is None else (place.at, place.id)


async def clock(source: Source) -> datetime:
    """What time it is for the database: `until`, for who begins with the first step."""
    ((now,),) = await source.fetch(statements.CLOCK)
    found: datetime = now
    return found


async def relatives(source: Source, message_id: int) -> list[Relative]:
    """The messages that one waits for, that wait for it, and that are repetitions."""
    return [
        Relative(**columns(row)) for row in await source.fetch(statements.RELATIVES, message_id)
    ]
