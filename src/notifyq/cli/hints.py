"""The text of an error that ends a command.

Its hint names commands and options where that of the database names functions.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import asyncpg

from notifyq.archive.reader import Archive
from notifyq.errors import (
    DatabaseError,
    LakeNotFoundError,
    LoadNotFoundError,
    NotifyqError,
    QueueDeniedError,
    QueueFullError,
    QueueNotEmptyError,
    QueueNotFoundError,
    RestoredDatabaseError,
    ScheduleNotFoundError,
    ServerError,
    StreamInUseError,
    StreamNotFoundError,
    StreamPausedError,
    SubscriptionNotFoundError,
    reason,
)
from notifyq.printable import printable
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
    QueueDeniedError: "an admin can allow it with `notifyq queues grant`, to read with --read",
    QueueNotEmptyError: "finish or cancel them, or add --force, which deletes them",
    QueueFullError: "publish later, start more workers, or raise the limit with "
    "`notifyq queues alter {0} --capacity N`",
    StreamPausedError: "an admin can allow it again with `notifyq stream resume {0}`",
    StreamInUseError: "remove them with `notifyq stream unsubscribe`, or add --force",
    RestoredDatabaseError: "`notifyq migrate --adopt` makes it one of this server; until then "
    "messages are handled, but positions are refused",
    LakeNotFoundError: "name a lake that `notifyq spark export` has written",
    LoadNotFoundError: "run the command that began the load again, with the same name and role",
}
"""They replace the hints of the database; {0} and {1} are the names in the text of the error."""

# A name as format('%L') quotes it.
_NAME = re.compile(r"'((?:[^']|'')*)'")


def text_of(error: Exception) -> str:
    """The text of an error: one line, except for a server that could not start."""
    match error:
        case ServerError():
            # The log of the server follows on more lines.
            return str(error)
        case DatabaseError():
            return _one_line(advised(error))
        case asyncpg.PostgresError(detail=str(detail)):
            return _one_line(f"the server reports: {error.args[0]}: {detail}")
        case asyncpg.PostgresError():
            return _one_line(f"the server reports: {error.args[0]}")
        case OSError(strerror=str(why)):
            return _one_line(": ".join(map(str, filter(None, (error.filename, why)))))
        case NotifyqError() | OSError() | asyncpg.DataError():
            return _one_line(str(error))
        case _:
            return _one_line(
                f"{type(error).__name__}: {error} (this is a bug in notifyq: --debug shows where)"
            )


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def advised(error: DatabaseError) -> str:
    """The text of an error, and what to do about it with commands."""
    hint = HINTS.get(type(error))
    text = str(error.args[0]) if error.args else type(error).__name__
    near: list[str] = getattr(error, "near", [])
    meant = did_you_mean(near)
    if hint is not None:
        try:
            hint = hint.format(*map(shlex.quote, _names(text)))
        except IndexError:  # the text has fewer names
            hint = None
    if hint is None:
        return ": ".join(filter(None, (reason(error), meant)))
    return f"{text}: {meant} Or {hint}" if meant else f"{text}: {hint}"


def did_you_mean(near: Sequence[str]) -> str:
    """A question that names what a user may have meant; empty: there is nothing near."""
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""


def _names(text: str) -> list[str]:
    return [name.replace("''", "'") for name in _NAME.findall(text)]


async def add_near_names(database: Database, error: DatabaseError) -> None:
    """Add similar names to an error about an unknown one, where this user may see them."""
    # It is only a hint: an error here must not hide the first one.
    with suppress(NotifyqError, asyncpg.PostgresError, OSError):
        known = await _known(database, error)
        name = next(iter(_names(str(error.args[0]))), "")
        # A subscriber of this very name may have another stream.
        others = [it for it in known if it != name]
        error.near = difflib.get_close_matches(name, others, n=2)  # type: ignore[attr-defined]


async def _known(database: Database, error: DatabaseError) -> list[str]:
    match error:
        case QueueNotFoundError() | StreamNotFoundError():
            return await _queues_and_streams(database)
        case SubscriptionNotFoundError():
            return sorted({it.subscriber for it in await Streams(database).subscriptions()})
        case ScheduleNotFoundError():
            return [it.name for it in await Schedules(database).list()]
        case _:
            return []


async def _queues_and_streams(database: Database) -> list[str]:
    queues = [row["queue"] for row in await Admin(database).queue_info()]
    return queues + [row["stream"] for row in await Streams(database).info()]


async def require_known(
    database: Database, queue: str | None, subscriber: str | None = None
) -> None:
    """Raise for a queue that does not exist and has no archived messages, or such a subscriber.

    Dead events have their stream as queue. A dropped queue is known by its archive.
    """
    if queue is not None:
        names = await _queues_and_streams(database)
        if queue not in names and not await Archive(database).finished(queue, None, 1):
            raise QueueNotFoundError(f"there is no queue {quoted(queue)}")
    if subscriber is not None:
        found = await Streams(database).subscriptions()
        if subscriber not in {it.subscriber for it in found}:
            raise SubscriptionNotFoundError(f"no stream has a subscriber {quoted(subscriber)}")


async def empty_list(database: Database, queue: str | None) -> str:
    """What `ls` prints for no messages; raises as require_known() does."""
    await require_known(database, queue)
    if queue in [row["stream"] for row in await Streams(database).info()]:
        return (
            f"no messages: {queue} is a stream, whose events `notifyq stream tail` prints, and "
            "dead ones `notifyq dead ls`"
        )
    return "no messages"


def quoted(name: str) -> str:
    """A name as the errors of the database quote it."""
    escaped = name.replace("'", "''")
    return f"'{escaped}'"
