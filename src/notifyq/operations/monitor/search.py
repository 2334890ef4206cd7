"""Searches messages, and acts on all messages that a search finds."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from notifyq.database import statements as sql
from notifyq.models.message import columns
from notifyq.operations.monitor import statements

if TYPE_CHECKING:
    from notifyq.operations.monitor.reading import Source

_LIVE = frozenset({"live", "waiting", "scheduled", "blocked", "locked"})
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a search; None is no condition."""

    state: str | None = None
    """waiting, scheduled, blocked, locked, or live for any of them; success, rejected, failed,
    lock_expired, dead (the last three unless retried), or finished. None: any."""
    queue: str | None = None
    subscriber: str | None = None
    type: str | None = None
    key: str | None = None
    dedup_key: str | None = None
    worker: str | None = None
    """The beginning of its name."""
    error: str | None = None
    """A part of the details, in any case."""
    fingerprint: str | None = None
    """The error without its variable parts, from `notifyq.error_fingerprint`."""
    payload: str | None = None
    """A JSON path that is true or false, like `$.amount > 100`."""
    since: datetime | None = None
    """Published, or finished, at that instant or later."""
    until: datetime | None = None
    """Before that instant."""

    @property
    def is_live(self) -> bool:
        """Whether only live messages can match."""
        return self.state in _LIVE

    @property
    def is_finished(self) -> bool:
        """Whether only finished messages can match; only dead events have a subscriber."""
        return self.subscriber is not None or (self.state is not None and not self.is_live)

    def values(self) -> dict[str, str]:
        """All conditions that are given, as texts."""
        given = {it.name: getattr(self, it.name) for it in fields(self)}
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in given.items()
            if value is not None
        }

    def as_json(self) -> str:
        """The argument of the SQL functions."""
        given = self.values()
        if given.get("state") in {"live", "finished"}:
            del given["state"]
        return json.dumps(given)


@dataclass(frozen=True, slots=True)
class Found:
    """A message, live or finished, as one row of a list."""

    id: int
    queue: str
    state: str
    """waiting, scheduled, blocked, locked, or its final status."""
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
    """The message that was published as the retry of this dead one."""
    details: str | None
    message: str | None
    """The payload as JSON text; None where it is long."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a search continues; `at` is None among live messages."""

    at: datetime | None
    id: int

    def __str__(self) -> str:
        return f"{'' if self.at is None else self.at.isoformat()}~{self.id}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text of a position; ValueError for anything else."""
        at, _, number = text.partition("~")
        if not -(2**63) <= (position := int(number)) < 2**63:
            raise ValueError(text)
        return cls(datetime.fromisoformat(at) if at else None, position)


@dataclass(frozen=True, slots=True)
class Page:
    """Messages that were found, and where to continue; `position` None: there are no more."""

    messages: tuple[Found, ...]
    position: Position | None


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead messages whose errors have the same fingerprint."""

    fingerprint: str
    dead: int
    first_at: datetime
    last_at: datetime
    last_id: int
    queues: tuple[str, ...]
    statuses: tuple[str, ...]
    sample: str | None
    """The details of the last one."""


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """The largest groups among the dead messages that were scanned."""

    groups: tuple[DeadGroup, ...]
    scanned: int
    """How many dead messages were scanned."""
    position: Position | None
    """Where to continue; None: all were scanned."""


FREE = ("waiting", "scheduled", "blocked")
"""The states of live messages that no worker has locked."""


class Act(Enum):
    """An action on all dead, or all live, messages that match."""

    COUNT = statements.DEAD_MATCHING
    RETRY = statements.DEAD_RETRY_MATCHING
    DELETE = statements.DEAD_DELETE_MATCHING
    COUNT_LIVE = statements.LIVE_MATCHING
    CANCEL = sql.CANCEL_MATCHING
    RUN_NOW = sql.RUN_NOW_MATCHING
    MOVE = sql.MOVE_MATCHING
    AMEND = sql.AMEND_MATCHING

    @property
    def is_live(self) -> bool:
        """Whether it is about live messages."""
        return self not in {Act.COUNT, Act.RETRY, Act.DELETE}


@dataclass(frozen=True, slots=True)
class Step:
    """The result of one step of an action, and where the next one continues."""

    found: int
    done: int
    position: Position | None
    """None: it was the last step."""
    ids: tuple[int, ...] = ()
    """Of the messages that were published."""
    refusals: tuple[str, ...] = ()
    """Why some messages were not moved."""


@dataclass(frozen=True, slots=True)
class Relative:
    """A message that is related to another one."""

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
    position: Position | None = None,
    budget: timedelta = _SECOND / 2,
) -> Page:
    """Find messages: live ones, the newest first, then finished ones, the latest first."""
    found: list[Found] = []
    argument = conditions.as_json()
    if not conditions.is_finished and (position is None or position.at is None):
        before = position and position.id
        page = _page(await source.fetch(statements.SEARCH_LIVE, argument, quantity, before, budget))
        if page.position is not None or conditions.is_live:
            return page
        found += page.messages
        quantity, position = quantity - len(found), None
    page = _page(
        await source.fetch(statements.SEARCH_ARCHIVE, argument, quantity, *_at(position), budget)
    )
    return Page((*found, *page.messages), page.position)


def _page(rows: list[Any]) -> Page:
    position = None
    if rows and rows[-1]["state"] == "more":
        last = rows.pop()
        position = Position(last["archived_at"], last["id"])
    return Page(tuple(Found(**columns(row)) for row in rows), position)


async def dead_groups(
    source: Source,
    conditions: Conditions,
    *,
    quantity: int = 50,
    position: Position | None = None,
    budget: timedelta = _SECOND,
) -> DeadGroups:
    """Group dead messages by the fingerprint of their error, the largest groups first."""
    *rows, last = await source.fetch(
        statements.DEAD_GROUPS, conditions.as_json(), quantity, *_at(position), budget
    )
    groups = tuple(
        DeadGroup(**{**row, "queues": tuple(row["queues"]), "statuses": tuple(row["statuses"])})
        for row in rows
    )
    rest = None if last["last_id"] is None else Position(last["first_at"], last["last_id"])
    return DeadGroups(groups, last["dead"], rest)


async def step(
    source: Source,
    act: Act,
    conditions: Conditions,
    *args: Any,
    quantity: int = 1000,
    position: Position | None = None,
) -> Step:
    """Do one step of an action on all messages that match; needs the condition `until`.

    `args` are those of the action: the states to count; whether to cancel running ones and
    children, why, and who does; the queue to move to; the priority.
    """
    after = _at(position)[1:] if act.is_live else _at(position)
    [row] = await source.fetch(act.value, conditions.as_json(), quantity, *after, _SECOND, *args)
    rest = None if row["is_over"] else Position(row["position_at"], row["position_id"])
    return Step(row["found"], row["done"], rest, tuple(row["ids"]), tuple(row["refusals"]))


def _at(position: Position | None) -> tuple[datetime | None, int | None]:
    return (None, None) if position is None else (position.at, position.id)


async def clock(source: Source) -> datetime:
    """The time of the database: `until` of the first step."""
    [[now]] = await source.fetch(sql.CLOCK)
    found: datetime = now
    return found


async def relatives(source: Source, message_id: int) -> list[Relative]:
    """The messages that a message runs after, that run after it, its retries and originals."""
    rows = await source.fetch(statements.RELATIVES, message_id)
    return [Relative(**columns(row)) for row in rows]
