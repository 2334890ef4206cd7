"""A worker's side of a queue: claim messages and settle them under their lock tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import asyncpg

from notifyq import sql
from notifyq.errors import InvalidArgumentError
from notifyq.model import Committed, Failed, Message, Outcome, Rejected, Released, Success, newest
from notifyq.tracebacks import report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta

    from notifyq.database import Database

    Key = tuple[int, int]
    """Id and lock token of a message."""
    Settled = Callable[[bool | BaseException], None]

log = logging.getLogger("notifyq.inbox")

_BATCH = 500
"""Most finishes in one statement: enough to share a commit, small enough to stay quick."""
_GATHER = 0.002
"""Longest time in seconds that a finish waits for others that follow it turn by turn."""
_UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
"""The values are at fault, and would be the next time: numbers, sizes and depths have limits."""


@dataclass(slots=True)
class _Finish:
    id: int
    lock_token: int
    status: str
    details: str | None
    result: str | None
    settled: Settled

    @property
    def key(self) -> Key:
        return self.id, self.lock_token

    def tell(self, answer: bool | BaseException) -> None:  # noqa: FBT001  it is handed through
        """Call `settled`, once."""
        settled, self.settled = self.settled, _ignore
        settled(answer)


def _ignore(_answer: bool | BaseException) -> None:  # noqa: FBT001
    return


class Inbox:
    """Claims and settlements of one worker.

    Finishes are gathered: while one statement is under way the next ones wait, and go together.
    Each keeps its own token, so one that lost its lock does not touch the others.
    """

    def __init__(self, database: Database, worker: str) -> None:
        self._database = database
        # Beside the pool: a claim is never kept waiting by finishes, and finds what the one before
        # has left in the session.
        self._claims = database.lane()
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
        thorough: bool = False,
        max_attempts: Sequence[int | None] | None = None,
    ) -> list[Message]:
        """Lock up to `quantity` messages as messages.claim() does; fewer are all there are."""
        limits = max_attempts if any(max_attempts or ()) else None
        rows = await self._claims.fetch(
            sql.CLAIM, queues, quantity, lock_timeout, self.worker, filter, thorough, limits
        )
        messages = []
        for row in rows:
            try:
                messages.append(Message.from_row(row))
            except (ValueError, RecursionError) as error:
                # Headers can be as undecodable as payloads, and must no more harm the others.
                log.warning("message %d is rejected: %s", row["id"], error)
                reason = f"the headers cannot be decoded: {error}"
                await self._finish(row["id"], row["lock_token"], Rejected(reason))
        if len(messages) < len(rows):
            # Else fewer than were asked for would look like all there are.
            messages += await self.claim(
                queues,
                len(rows) - len(messages),
                lock_timeout=lock_timeout,
                filter=filter,
                thorough=thorough,
                max_attempts=max_attempts,
            )
        return messages

    def finish(self, message: Message, outcome: Success | Rejected, settled: Settled) -> None:
        """Archive a message with others; `settled` gets what `settle` would return or raise."""
        if self._is_closed:  # a handler that would not end has ended after its worker
            settled(False)  # noqa: FBT003
        else:
            self._add(message.id, message.lock_token, outcome, settled)

    async def settle(self, message: Message, outcome: Outcome) -> bool:
        """Write down how the handling of a message ended. False: its lock was lost."""
        if self._is_closed:
            return False
        key = message.id, message.lock_token
        match outcome:
            case Success() | Rejected():
                return await self._finish(*key, outcome)
            case Failed(details, after):
                try:
                    return await self._retry(*key, outcome)
                except (asyncpg.DataError, InvalidArgumentError) as error:
                    details = (
                        f"{details}\nretried by the queue's backoff, not after {after}: {error}"
                    )
                    return await self._retry(*key, replace(outcome, details=details, after=None))
            case Released():
                return message.id in await self.release([message])
            case Committed(is_held):
                return is_held

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
        _tell(self._pending, asyncio.CancelledError())
        self._pending.clear()
        await self._claims.close()

    async def release_orphans(self, known: Sequence[int]) -> int:
        """Release what this worker locked without learning of it; return how many."""
        rows = await self._database.persist(sql.RELEASE_ORPHANS, self.worker, known)
        return int(rows[0][0])

    async def _retry(self, message_id: int, lock_token: int, failed: Failed) -> bool:
        repeated = _Repeated()
        error = failed.error
        rows = await self._database.persist(
            sql.RETRY,
            message_id,
            lock_token,
            failed.after,
            failed.details,
            failed.status,
            error and error.type,
            error and error.text,
            error and error.traceback,
            failed.gives_up,
            retried=repeated.note,
        )
        # Repeated after a lost answer, "not held" may mean "done by the first try".
        return bool(rows[0][0]) or repeated.happened

    async def _finish(self, message_id: int, lock_token: int, outcome: Success | Rejected) -> bool:
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settled(answer: bool | BaseException) -> None:  # noqa: FBT001
            if answered.done():
                return
            if isinstance(answer, asyncio.CancelledError):
                answered.cancel()
            elif isinstance(answer, BaseException):
                answered.set_exception(answer)
            else:
                answered.set_result(answer)

        self._add(message_id, lock_token, outcome, settled)
        return await answered

    def _add(
        self, message_id: int, lock_token: int, outcome: Success | Rejected, settled: Settled
    ) -> None:
        if isinstance(outcome, Success):
            finish = _Finish(message_id, lock_token, "success", None, outcome.result, settled)
        else:
            finish = _Finish(message_id, lock_token, "rejected", outcome.reason, None, settled)
        self._pending.append(finish)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        batch: list[_Finish] = []
        try:
            while self._pending:
                await self._gather()
                batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
                await self._finish_batch(batch)
        except asyncio.CancelledError as error:
            _tell(batch, error)
            raise
        finally:
            self._flushing = None

    async def _gather(self) -> None:
        """Let finishes that come together go together, while each turn of the loop brings more."""
        give_up = time.monotonic() + _GATHER
        before = 0
        while before < len(self._pending) < _BATCH and time.monotonic() < give_up:
            before = len(self._pending)
            await asyncio.sleep(0)

    async def _finish_batch(self, batch: list[_Finish]) -> None:
        try:
            done = await self._finish_many(batch)
        except _UNSTORABLE as error:
            # A result that PostgreSQL cannot store must fail alone.
            if len(batch) == 1:
                await self._fail(batch[0], error)
            else:
                for finish in batch:
                    await self._finish_batch([finish])
        except Exception as error:  # noqa: BLE001  it belongs to those who wait for it
            _tell(batch, error)
        else:
            for finish in batch:
                finish.tell(finish.key in done)

    async def _fail(self, finish: _Finish, error: Exception) -> None:
        details = f"the result cannot be stored: {error}"
        try:
            held = await self._retry(
                finish.id, finish.lock_token, Failed(details, error=report(error))
            )
        except Exception as again:  # noqa: BLE001  it belongs to those who wait for it
            finish.tell(again)
        else:
            finish.tell(held)

    async def _finish_many(self, batch: list[_Finish]) -> set[Key]:
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
        done = newest([f.key for f in batch], rows)
        if repeated.happened:
            lost = [f for f in batch if f.key not in done]
            done |= {f.key for f in lost if await self._has_archived(f.key)}
        return done

    async def is_archived(self, message: Message) -> bool:
        """Whether the message was finished under this very lock."""
        return await self._has_archived((message.id, message.lock_token))

    async def _has_archived(self, key: Key) -> bool:
        rows = await self._database.persist(sql.ARCHIVE_FIND, key[0])
        return any(row["lock_token"] == key[1] for row in rows)


def _tell(batch: list[_Finish], error: BaseException) -> None:
    for finish in batch:
        finish.tell(error)


class _Repeated:
    """Remembers that a call was sent again, so that its first try may have taken effect."""

    happened = False

    def note(self) -> None:
        self.happened = True
