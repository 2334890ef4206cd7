"""A worker's side of a queue: claim messages and settle them under their lock tokens."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from notifyq import sql
from notifyq.model import Failed, Message, Outcome, Rejected, Released, Success

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from notifyq.database import Database

log = logging.getLogger("notifyq.inbox")

_BATCH = 500
"""Most finishes in one statement: enough to share a commit, small enough to stay quick."""
_UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
"""The values are at fault, and would be the next time: numbers, sizes and depths have limits."""


@dataclass(slots=True)
class _Finish:
    id: int
    lock_token: int
    status: str
    details: str | None
    result: str | None
    held: asyncio.Future[bool]


class Inbox:
    """Claims and settlements of one worker.

    Finishes are gathered: while one statement is under way the next ones wait, and go together.
    Each keeps its own token, so one that lost its lock does not touch the others.
    """

    def __init__(self, database: Database, worker: str) -> None:
        self._database = database
        self.worker = worker
        self._pending: list[_Finish] = []
        self._flushing: asyncio.Task[None] | None = None
        self._is_closed = False

    async def claim(
        self,
        queues: Sequence[str],
        quantity: int,
        *,
        lock_timeout: timedelta | None = None,
        filter: str | None = None,
    ) -> list[Message]:
        """Lock up to `quantity` messages, the queues in the order given."""
        rows = await self._database.fetch(
            sql.CLAIM, queues, quantity, lock_timeout, self.worker, filter
        )
        messages = []
        for row in rows:
            try:
                messages.append(Message.from_row(row))
            except (ValueError, RecursionError) as error:
                # Headers can be as undecodable as payloads, and must no more harm the others.
                log.warning("message %d is rejected: %s", row["id"], error)
                reason = f"the headers cannot be decoded: {error}"
                await self._finish(row["id"], row["lock_token"], "rejected", reason)
        return messages

    async def settle(self, message: Message, outcome: Outcome) -> bool:
        """Write down how the handling of a message ended. False: its lock was lost."""
        if self._is_closed:  # a handler that would not end has ended after its worker
            return False
        match outcome:
            case Success(result):
                try:
                    return await self._finish(
                        message.id, message.lock_token, "success", result=result
                    )
                except _UNSTORABLE as error:
                    return await self._retry(
                        message, None, f"the result cannot be stored: {error}", "failed"
                    )
            case Rejected(reason):
                return await self._finish(message.id, message.lock_token, "rejected", reason)
            case Failed(details, after, status):
                try:
                    return await self._retry(message, after, details, status)
                except asyncpg.DataError as error:
                    details = (
                        f"{details}\nretried by the queue's backoff, not after {after}: {error}"
                    )
                    return await self._retry(message, None, details, status)
            case Released():
                return message.id in await self.release([message])

    async def release(self, messages: Iterable[Message]) -> set[int]:
        """Give up locks as if they had not been claimed; return the ids that were still held."""
        held = list(messages)
        rows = await self._database.persist(
            sql.RELEASE_MANY, [m.id for m in held], [m.lock_token for m in held]
        )
        return {row[0] for row in rows}

    async def close(self) -> None:
        """Give up the finishes that could not be written down yet, and take no more."""
        self._is_closed = True
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        for finish in self._pending:
            finish.held.cancel()
        self._pending.clear()

    async def release_orphans(self, known: Sequence[int]) -> int:
        """Release what this worker locked without learning of it; return how many."""
        rows = await self._database.persist(sql.RELEASE_ORPHANS, self.worker, known)
        return int(rows[0][0])

    async def _retry(
        self, message: Message, after: timedelta | None, details: str, status: str
    ) -> bool:
        repeated = _Repeated()
        rows = await self._database.persist(
            sql.RETRY,
            message.id,
            message.lock_token,
            after,
            details,
            status,
            retried=repeated.note,
        )
        # Repeated after a lost answer, "not held" may mean "done by the first try".
        return bool(rows[0][0]) or repeated.happened

    async def _finish(
        self,
        message_id: int,
        lock_token: int,
        status: str,
        details: str | None = None,
        result: str | None = None,
    ) -> bool:
        held = asyncio.get_running_loop().create_future()
        self._pending.append(_Finish(message_id, lock_token, status, details, result, held))
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return bool(await held)

    async def _flush(self) -> None:
        batch: list[_Finish] = []
        try:
            while self._pending:
                batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
                await self._finish_batch(batch)
        finally:
            # Only where this was cancelled does anybody wait still.
            for finish in batch:
                finish.held.cancel()
            self._flushing = None

    async def _finish_batch(self, batch: list[_Finish]) -> None:
        try:
            done = await self._finish_many(batch)
        except _UNSTORABLE as error:
            # A result that PostgreSQL cannot store must fail alone.
            for finish in batch if len(batch) > 1 else ():
                await self._finish_batch([finish])
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001  it belongs to those who wait for it
            _fail(batch, error)
        else:
            for finish in batch:
                if not finish.held.done():
                    finish.held.set_result(finish.id in done)

    async def _finish_many(self, batch: list[_Finish]) -> set[int]:
        repeated = _Repeated()
        rows = await self._database.persist(
            sql.FINISH_MANY,
            [f.id for f in batch],
            [f.lock_token for f in batch],
            [f.status for f in batch],
            [f.details for f in batch],
            [f.result for f in batch],
            retried=repeated.note,
        )
        done = {row[0] for row in rows}
        if repeated.happened:
            lost = [f for f in batch if f.id not in done]
            done |= {f.id for f in lost if await self._is_archived(f)}
        return done

    async def _is_archived(self, finish: _Finish) -> bool:
        """Whether the archive has the message under this very token: an earlier try was heard."""
        rows = await self._database.persist(sql.ARCHIVE_FIND, finish.id)
        return any(row["lock_token"] == finish.lock_token for row in rows)


def _fail(batch: list[_Finish], error: Exception) -> None:
    for finish in batch:
        if not finish.held.done():
            finish.held.set_exception(error)


class _Repeated:
    """Remembers that a call was sent again, so that its first try may have taken effect."""

    happened = False

    def note(self) -> None:
        self.happened = True
