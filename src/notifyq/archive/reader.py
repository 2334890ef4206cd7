"""Reading and clearing what is live and what is finished; dead messages above all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.archive.export import ExportChoice, ExportedArchive, Format, export_archive
from notifyq.database import sql
from notifyq.models.message import ArchivedMessage, Attempt, Dependency, Message

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import asyncpg

    from notifyq.database.pool import Database


class Archive:
    """Messages by id, by queue and by how they ended."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, message_id: int) -> Message | ArchivedMessage | None:
        """The message with this id, live or finished."""
        # The archive is looked at first and last: a message may move between two looks.
        for statement in (sql.ARCHIVE_FIND, sql.MESSAGE_FIND, sql.ARCHIVE_FIND):
            rows = await self._database.fetch(statement, message_id)
            if rows:
                kind = Message if statement == sql.MESSAGE_FIND else ArchivedMessage
                return kind.from_row(rows[0])
        return None

    async def live(
        self, queue: str | None = None, state: str | None = None, quantity: int = 100
    ) -> list[Message]:
        """Live messages, the oldest first."""
        rows = await self._database.fetch(sql.MESSAGE_LIST, queue, state, quantity)
        return [Message.from_row(row) for row in rows]

    async def finished(
        self,
        queue: str | None = None,
        status: str | None = None,
        quantity: int = 100,
        since: datetime | None = None,
    ) -> list[ArchivedMessage]:
        """Finished messages, the latest first."""
        rows = await self._database.fetch(sql.ARCHIVE_LIST, queue, status, quantity, since)
        return [ArchivedMessage.from_row(row) for row in rows]

    async def attempts(self, message_id: int) -> list[Attempt]:
        """The attempts of a message that did not succeed, the first one first."""
        rows = await self._database.fetch(sql.ATTEMPTS, message_id)
        return [Attempt.from_row(row) for row in rows]

    async def dependencies(self, message_id: int) -> list[Dependency]:
        """What a message waits for, or has waited for, in the order in which it was published.

        A message that has succeeded has none any more.
        """
        rows = await self._database.fetch(sql.DEPENDENCIES, message_id)
        return [Dependency.from_row(row) for row in rows]

    async def unblock(self, message_id: int) -> bool:
        """Make a message due whatever it waits for; false if it waits for nothing."""
        return bool(await self._database.value(sql.UNBLOCK, message_id))

    async def summary(
        self, queue: str | None = None, since: datetime | None = None
    ) -> list[asyncpg.Record]:
        """Counts and percentiles by queue and status; status None is the queue as a whole."""
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
        """Write finished messages into a file, or with `by_day` into a folder, a file for each day.

        The format is `parquet`, `csv` or `jsonl`, else that of the name, as in `messages.csv.gz`.
        All of one snapshot; files have their names when all are complete. Raises
        ConfigurationError where a file is there already, unless `force` is given.
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
    ) -> list[ArchivedMessage]:
        """Dead messages and events that were not retried, the latest first.

        Of one queue or stream, and of one subscriber, where they are given.
        """
        rows = await self._database.fetch(sql.DEAD_LIST, queue, quantity, skip, subscriber)
        return [ArchivedMessage.from_row(row) for row in rows]

    async def dead_count(self, queue: str | None = None, subscriber: str | None = None) -> int:
        """How many dead messages and events were not retried."""
        return int(await self._database.value(sql.DEAD_COUNT, queue, subscriber))

    async def dead_retry(self, ids: Sequence[int]) -> list[int]:
        """Publish dead messages again, each at most once; return the new ids.

        A dead event is delivered again under its own id, to its subscriber alone.
        """
        return [row[0] for row in await self._database.fetch(sql.DEAD_RETRY, ids)]

    async def dead_delete(self, ids: Sequence[int]) -> int:
        """Delete dead messages for good; return how many were."""
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
        """Retry a slice of the dead messages, the oldest first; return how many."""
        return int(
            await self._database.value(
                sql.REDRIVE, queue, status, since, until, quantity, subscriber
            )
        )

    async def position(self) -> str:
        """What is committed now, on this server: the start for `dead_since`.

        Raises RestoredDatabaseError in a database that was restored and not adopted.
        """
        return str(await self._database.value(sql.POSITION))

    async def check_position(self, position: str) -> None:
        """Raise ForeignPositionError if it is of another server, or RestoredDatabaseError."""
        await self._database.value(sql.SNAPSHOT_OF, position)

    async def known_position(self, position: str) -> str:
        """Where to go on from a position: there, or before it, where a standby has taken over.

        That is as far as both servers are the same: what came since then is read again. Raises
        ForeignPositionError if it is of another server, or RestoredDatabaseError.
        """
        [row] = await self._database.persist(sql.KNOWN_POSITION, position)
        return str(row[0])

    async def dead_since(
        self, seen: str, queue: str | None = None
    ) -> tuple[str, list[ArchivedMessage]]:
        """Dead messages whose archiving was not committed at position `seen`, and the next one.

        By id or by time a message that is committed late would be missed; by positions none is.
        Raises ForeignPositionError where the position means nothing: on another server, after a
        restore, or ahead of a standby that took over.
        """
        return _followed(await self._database.persist(sql.DEAD_SINCE, seen, queue))

    async def dead_from(
        self, since: datetime, queue: str | None = None
    ) -> tuple[str, list[ArchivedMessage]]:
        """Dead messages that were archived at `since` or later, and the position after them."""
        return _followed(await self._database.persist(sql.DEAD_FROM, since, queue))

    async def cancel(self, message_id: int) -> bool:
        """Archive a message that nobody handles yet as rejected."""
        return bool(await self._database.value(sql.CANCEL, message_id))


def _followed(rows: list[asyncpg.Record]) -> tuple[str, list[ArchivedMessage]]:
    # Where nothing is dead there is one row, which has the position only.
    dead = [ArchivedMessage.from_row(row) for row in rows if row["id"] is not None]
    return rows[0]["position"], dead
