"""Read live and finished messages; retry and delete dead ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import asyncpg

from notifyq.archive.export import ExportChoice, ExportedArchive, Format, export_archive
from notifyq.arguments import instant, integer, of_type, zoned
from notifyq.database import statements as sql
from notifyq.database.encryption.envelopes import decrypted_logs, decrypted_row
from notifyq.models.message import (
    ArchivedMessage,
    Attempt,
    Cancellation,
    Changes,
    Dependency,
    LogRecord,
    Message,
    ParkedMessage,
    Progress,
    RecordedStep,
)
from notifyq.models.payload import encode

if TYPE_CHECKING:
    from notifyq.database.pool import Database

R = TypeVar("R", bound=Any)

_STEP, _BUDGET = 1000, timedelta(seconds=1)
"""How many messages one step changes, and how long it searches."""

_SAME: Final = object()
"""A payload that stays as it is."""


class CancelOptions(TypedDict, total=False):
    """Options of `Archive.cancel`."""

    running: bool
    children: bool
    reason: str | None
    cancelled_by: str | None


def obstacle(message_id: int, found: Message | ArchivedMessage | None) -> str:
    """Return why a message cannot be changed, if its state shows it."""
    if found is None:
        return f"there is no message {message_id}, neither live nor archived"
    if isinstance(found, ArchivedMessage):
        return f"{message_id} is finished: {found.status}"
    if found.state == "locked":
        return f"{message_id} is being handled by {found.locked_by or 'a worker'}"
    return ""


def _text(value: object) -> str:
    return str(zoned(value) if isinstance(value, datetime) else value)


class Archive:
    """Live and finished messages, by id, queue and status."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _read(self, kind: type[R], row: asyncpg.Record) -> R:
        """A row as an object, decrypted where the keys are known."""
        found: R = decrypted_row(self._database.keys, kind.from_row(row))
        return found

    async def find(self, message_id: int) -> Message | ArchivedMessage | None:
        """The message with this id, live or finished."""
        # The archive first and last: a message may move there between two statements.
        for statement in (sql.ARCHIVE_FIND, sql.MESSAGE_FIND, sql.ARCHIVE_FIND):
            rows = await self._database.fetch(statement, message_id)
            if rows:
                if statement == sql.MESSAGE_FIND:
                    return self._read(Message, rows[0])
                return self._read(ArchivedMessage, rows[0])
        return None

    async def live(
        self, queue: str | None = None, state: str | None = None, quantity: int = 100
    ) -> list[Message]:
        """Live messages, the oldest first."""
        rows = await self._database.fetch(sql.MESSAGE_LIST, queue, state, quantity)
        return [self._read(Message, row) for row in rows]

    async def finished(
        self,
        queue: str | None = None,
        status: str | None = None,
        quantity: int = 100,
        since: datetime | None = None,
    ) -> list[ArchivedMessage]:
        """Finished messages, the latest first."""
        rows = await self._database.fetch(sql.ARCHIVE_LIST, queue, status, quantity, since)
        return [self._read(ArchivedMessage, row) for row in rows]

    async def attempts(self, message_id: int) -> list[Attempt]:
        """The failed attempts of a message, the first one first."""
        rows = await self._database.fetch(sql.ATTEMPTS, message_id)
        return [self._read(Attempt, row) for row in rows]

    async def steps(self, message_id: int) -> list[RecordedStep]:
        """The recorded steps of a live or finished message, in their order."""
        rows = await self._database.fetch(sql.STEPS, message_id)
        return [self._read(RecordedStep, row) for row in rows]

    async def logs(self, message_id: int) -> list[LogRecord]:
        """What the handler of a message has logged, where its App has `capture_logs`."""
        rows = await self._database.fetch(sql.LOGS, message_id)
        return list(decrypted_logs(self._database.keys, map(LogRecord.from_row, rows)))

    async def progress(self, message_id: int) -> Progress | None:
        """How far the handler of a message was when it last reported.

        None: it has not reported, or the message ended. Raises MessageNotFoundError for an unknown
        message.
        """
        rows = await self._database.fetch(sql.PROGRESS, message_id)
        return self._read(Progress, rows[0]) if rows else None

    async def parked(
        self, queue: str | None = None, quantity: int = 100, *, message_id: int | None = None
    ) -> list[ParkedMessage]:
        """Messages that wait for a sleep, a signal or other messages, the longest first.

        All, those of one queue, or only this message.
        """
        rows = await self._database.fetch(sql.PARKED, queue, quantity, message_id)
        return [ParkedMessage.from_row(row) for row in rows]

    async def dependencies(self, message_id: int) -> list[Dependency]:
        """The messages that a message waits or waited for, in publishing order.

        A message that succeeded has none.
        """
        rows = await self._database.fetch(sql.DEPENDENCIES, message_id)
        return [self._read(Dependency, row) for row in rows]

    async def unblock(self, message_id: int) -> bool:
        """Drop the dependencies of a message, so that it is due. False: it waits for nothing."""
        return bool(await self._database.value(sql.UNBLOCK, message_id))

    async def summary(
        self, queue: str | None = None, since: datetime | None = None
    ) -> list[asyncpg.Record]:
        """Counts and percentiles by queue and status; status None is the whole queue."""
        return await self._database.fetch(sql.ARCHIVE_SUMMARY, queue, since)

    async def export(
        self,
        path: str | Path,
        *,
        format: str | None = None,
        by_day: bool = False,
        queue: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        force: bool = False,
    ) -> ExportedArchive:
        """Write finished messages into a file, or with `by_day` into a folder of daily files.

        The format is `parquet`, `csv` or `jsonl`; by default that of the name, as in
        `messages.csv.gz`. One snapshot is written, and files get their names when all are complete.
        Raises ConfigurationError for an existing file, unless `force` is given.
        """
        choice = ExportChoice(
            path=Path(path),
            format=None if format is None else Format(format),
            by_day=by_day,
            queue=queue,
            status=status,
            since=since,
            until=until,
            force=force,
        )
        return await export_archive(self._database, choice)

    async def dead(
        self,
        queue: str | None = None,
        quantity: int = 100,
        skip: int = 0,
        subscriber: str | None = None,
        *,
        cancelled: bool = False,
    ) -> list[ArchivedMessage]:
        """Dead messages and events that were not retried, the latest first.

        All, or those of one queue or stream, and of one subscriber. `cancelled`: the messages that
        were cancelled, instead.
        """
        statement = sql.CANCELLED_LIST if cancelled else sql.DEAD_LIST
        rows = await self._database.fetch(statement, queue, quantity, skip, subscriber)
        return [self._read(ArchivedMessage, row) for row in rows]

    async def dead_count(
        self,
        queue: str | None = None,
        subscriber: str | None = None,
        *,
        cancelled: bool = False,
    ) -> int:
        """Count what `dead` would list."""
        statement = sql.CANCELLED_COUNT if cancelled else sql.DEAD_COUNT
        return int(await self._database.value(statement, queue, subscriber))

    async def dead_retry(self, ids: Sequence[int]) -> list[int]:
        """Publish dead or cancelled messages again, each at most once; return the new ids.

        A dead event keeps its id and is delivered again to its subscriber only.
        """
        return [row[0] for row in await self._database.fetch(sql.DEAD_RETRY, ids)]

    async def dead_retry_from(self, message_id: int, step: str | None = None) -> int | None:
        """As `dead_retry` for one message, without this step and what was recorded after it.

        None as step: without any. Return the new id; None: it was published again before, or is not
        dead. Raises InvalidArgumentError for a step that it has not recorded.
        """
        again = await self._database.value(sql.DEAD_RETRY_FROM, message_id, step)
        return None if again is None else int(again)

    async def dead_delete(self, ids: Sequence[int]) -> int:
        """Delete dead messages; return how many were deleted."""
        return int(await self._database.value(sql.DEAD_DELETE, ids))

    async def redrive(
        self,
        queue: str | None = None,
        status: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        quantity: int = 1000,
        subscriber: str | None = None,
    ) -> int:
        """Retry some of the dead messages, the oldest first; return how many."""
        return int(
            await self._database.value(
                sql.REDRIVE, queue, status, since, until, quantity, subscriber
            )
        )

    async def position(self) -> str:
        """The current position of this server, a start for `dead_since`.

        Raises RestoredDatabaseError in a database that was restored and not adopted.
        """
        return str(await self._database.value(sql.POSITION))

    async def known_position(self, position: str) -> str:
        """The position to continue at: this one, or after a failover the last one in common.

        What was committed after that one is read again. Raises ForeignPositionError if the position
        is of another server, or RestoredDatabaseError.
        """
        [row] = await self._database.persist(sql.KNOWN_POSITION, position)
        return str(row[0])

    async def dead_since(
        self, seen: str, queue: str | None = None
    ) -> tuple[str, list[ArchivedMessage]]:
        """Dead messages that were archived after position `seen`, and the next position.

        Ids or times would miss a message that is committed late; positions do not. Raises
        ForeignPositionError for a position of another server, from before a restore, or newer than
        a promoted standby.
        """
        return self._with_position(await self._database.persist(sql.DEAD_SINCE, seen, queue))

    async def dead_from(
        self, since: datetime, queue: str | None = None
    ) -> tuple[str, list[ArchivedMessage]]:
        """Dead messages that were archived at `since` or later, and the position after them."""
        return self._with_position(await self._database.persist(sql.DEAD_FROM, since, queue))

    async def cancel(
        self,
        message_id: int,
        *,
        running: bool = False,
        children: bool = False,
        reason: str | None = None,
        cancelled_by: str | None = None,
    ) -> Cancellation:
        """Archive a live message as rejected, unless a worker has locked it.

        `running`: also then; its handler is cancelled, and what it does with its lock is refused.
        `children`: also what it has published by steps, all the way down. The archive keeps the
        reason, and who cancelled it, by default the user of the session. It is not dead. The answer
        is false for a locked, a finished and an unknown message, and shows which of them it is.
        """
        args = (message_id, running, children, reason, cancelled_by)
        if await self._database.value(sql.CANCEL_ALSO, *args):
            return Cancellation.CANCELLED
        found = await self.find(message_id)
        if found is None:
            return Cancellation.UNKNOWN
        is_finished = isinstance(found, ArchivedMessage)
        return Cancellation.FINISHED if is_finished else Cancellation.LOCKED

    async def cancel_matching(
        self,
        conditions: Mapping[str, Any],
        *,
        running: bool = False,
        children: bool = False,
        reason: str | None = None,
        cancelled_by: str | None = None,
    ) -> Changes:
        """Cancel all live messages that match, in steps, each a transaction of its own.

        `conditions` are state, queue, type, key, dedup_key, worker (a prefix of its name), error (a
        part of details), fingerprint, payload (a JSON path predicate), since and until (of
        `created_at`; by default now). Raises InvalidArgumentError for others.
        """
        args = (running, children, reason, cancelled_by)
        return await self._change_matching(sql.CANCEL_MATCHING, conditions, *args)

    async def run_now_matching(self, conditions: Mapping[str, Any]) -> Changes:
        """Make all scheduled messages due that match; see `cancel_matching`."""
        return await self._change_matching(sql.RUN_NOW_MATCHING, conditions)

    async def move_matching(self, conditions: Mapping[str, Any], queue: str) -> Changes:
        """Move all live messages that match to another queue; see `cancel_matching`.

        The condition queue is required. Messages stay that the other queue would not accept.
        """
        return await self._change_matching(sql.MOVE_MATCHING, conditions, queue)

    async def amend_matching(self, conditions: Mapping[str, Any], priority: int) -> Changes:
        """Set the priority of all live messages that match; see `cancel_matching`."""
        args = (integer("priority", priority),)
        return await self._change_matching(sql.AMEND_MATCHING, conditions, *args)

    async def _change_matching(
        self, statement: str, conditions: Mapping[str, Any], *args: Any
    ) -> Changes:
        of_type("conditions", conditions, Mapping, "a mapping")
        given = {"until": await self._database.value(sql.CLOCK), **conditions}
        argument = json.dumps(given, default=_text)
        total, position = Changes(0, 0, ()), None
        while True:
            [step] = await self._database.fetch(
                statement, argument, _STEP, position, _BUDGET, *args
            )
            total = Changes(
                total.found + step["found"],
                total.done + step["done"],
                (*total.refusals, *step["refusals"]),
            )
            if step["is_over"]:
                return total
            position = step["position_id"]

    async def amend(
        self,
        message_id: int,
        *,
        payload: Any = _SAME,
        priority: int | None = None,
        available_at: datetime | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> bool:
        """Change what is given of a message that no worker has locked. False: one has.

        Raises InvalidArgumentError for more than the priority of a message with recorded steps.
        """
        text = None
        if payload is not _SAME:
            text = await self._database.encrypted_for(message_id, "payload", encode(payload))
        return bool(
            await self._database.value(
                sql.AMEND,
                message_id,
                text,
                None if priority is None else integer("priority", priority),
                instant("available_at", available_at),
                None
                if headers is None
                else encode(of_type("headers", headers, Mapping, "a mapping")),
            )
        )

    def _with_position(self, rows: list[asyncpg.Record]) -> tuple[str, list[ArchivedMessage]]:
        # Without dead messages there is one row, which has only the position.
        dead = [self._read(ArchivedMessage, row) for row in rows if row["id"] is not None]
        return rows[0]["position"], dead
