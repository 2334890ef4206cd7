"""What the command line advises about an error: commands and options, where SQL has functions."""

from __future__ import annotations

import difflib
import re
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from notifyq.archive.reader import Archive
from notifyq.errors import (
    DatabaseError,
    LakeNotFoundError,
    LoadNotFoundError,
    MessageLimitError,
    NotifyqError,
    QueueDeniedError,
    QueueFullError,
    QueueNotEmptyError,
    QueueNotFoundError,
    RestoredDatabaseError,
    ScheduleNotFoundError,
    StreamInUseError,
    StreamNotFoundError,
    StreamPausedError,
    SubscriptionNotFoundError,
    reason,
)
from notifyq.queues.admin import Admin
from notifyq.queues.schedules import Schedules
from notifyq.streams.admin import Streams

if TYPE_CHECKING:
    from notifyq.database.pool import Database

HINTS: dict[type[DatabaseError], str] = {
    QueueNotFoundError: "create it with `notifyq queues create {0}`",
    StreamNotFoundError: "create it with `notifyq stream create {0}`",
    SubscriptionNotFoundError: "`notifyq stream subscribe {1} {0}` adds it",
    ScheduleNotFoundError: "`notifyq schedules` lists them",
    QueueDeniedError: "an admin can allow it with `notifyq queues grant`",
    QueueNotEmptyError: "finish or cancel them, or drop it with --force, which deletes them",
    QueueFullError: "publish later, start more workers, or raise the limit with "
    "`notifyq queues alter {0} --capacity N`",
    MessageLimitError: "publish a reference to what is large, and as a string what is deep or "
    "long; --max-bytes of `notifyq queues alter` or `notifyq stream alter` raises the size",
    StreamPausedError: "an admin can allow it again with `notifyq stream resume {0}`",
    StreamInUseError: "remove them with `notifyq stream unsubscribe`, or drop it with --force",
    RestoredDatabaseError: "`notifyq migrate --adopt` takes it over; until then messages are "
    "handled, but positions are refused",
    LakeNotFoundError: "name a lake that `notifyq spark export` has written",
    LoadNotFoundError: "run the command that began it again, with the same name and role",
}
"""In place of the hint of the database; {0} and {1} are the names in the text of the error."""

# What format() makes of %L.
_NAME = re.compile(r"'((?:[^']|'')*)'")


def advised(error: DatabaseError) -> str:
    """What an error says, and what to do about it in the terms of the command line."""
    hint = HINTS.get(type(error))
    said = str(error.args[0]) if error.args else type(error).__name__
    near: list[str] = getattr(error, "near", [])
    meant = f"did you mean {' or '.join(map(repr, near))}?" if near else ""
    if hint is not None:
        try:
            hint = hint.format(*map(shlex.quote, _names(said)))
        except IndexError:  # it names nothing
            hint = None
    if hint is None:
        return ": ".join(filter(None, (reason(error), meant)))
    return f"{said}: {meant} Or {hint}" if meant else f"{said}: {hint}"


def _names(text: str) -> list[str]:
    return [name.replace("''", "'") for name in _NAME.findall(text)]


async def add_near_names(database: Database, error: DatabaseError) -> None:
    """Note names that are like the one that there is not, where this user may see them."""
    # It is only a hint: another error here must not hide the one that is told.
    with suppress(NotifyqError, asyncpg.PostgresError, OSError):
        known = await _known(database, error)
        name = next(iter(_names(str(error.args[0]))), "")
        error.near = difflib.get_close_matches(name, known, n=2)  # type: ignore[attr-defined]


async def _known(database: Database, error: DatabaseError) -> list[str]:
    match error:
        case QueueNotFoundError():
            return [row["queue"] for row in await Admin(database).queue_info()]
        case StreamNotFoundError():
            return [row["stream"] for row in await Streams(database).info()]
        case SubscriptionNotFoundError():
            return sorted({it.subscriber for it in await Streams(database).subscriptions()})
        case ScheduleNotFoundError():
            return [it.name for it in await Schedules(database).list()]
        case _:
            return []


async def require_known(
    database: Database, queue: str | None, subscriber: str | None = None
) -> None:
    """Raise where a queue that nothing was found of does not exist, nor ever had a message.

    Events that died have their stream as queue. A queue that was dropped is known by its archive.
    """
    if queue is not None:
        names = [row["queue"] for row in await Admin(database).queue_info()]
        names += [row["stream"] for row in await Streams(database).info()]
        if queue not in names and not await Archive(database).finished(queue, None, 1):
            raise QueueNotFoundError(f"there is no queue {_quoted(queue)}")
    if subscriber is not None:
        found = await Streams(database).subscriptions()
        if subscriber not in {it.subscriber for it in found}:
            raise SubscriptionNotFoundError(f"no stream has a subscriber {_quoted(subscriber)}")


def _quoted(name: str) -> str:
    escaped = name.replace("'", "''")
    return f"'{escaped}'"
