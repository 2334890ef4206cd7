"""Finishes: how messages ended, written down many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import asyncpg

from notifyq import sql
from notifyq.model import Failed, Rejected, Success, newest
from notifyq.tracebacks import report

if TYPE_CHECKING:
    from notifyq.database import Database

Key = tuple[int, int]
"""Id and lock token of a message."""
Settled = Callable[[bool | BaseException], None]
Retry = Callable[[int, int, Failed], Awaitable[bool]]

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


class Finishes:
    """Finishes of one worker: while one statement is under way the next ones wait, and go together.

    Each keeps its own token, so one that lost its lock does not touch the others. One whose result
    cannot be stored ends by `retry`.
    """

    def __init__(self, database: Database, retry: Retry) -> None:
        self._database = database
        self._retry = retry
        self._pending: list[_Finish] = []
        self._flushing: asyncio.Task[None] | None = None

    async def finish(self, message_id: int, lock_token: int, outcome: Success | Rejected) -> bool:
        """Archive a message with others. False: its lock was lost."""
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

        self.add(message_id, lock_token, outcome, settled)
        return await answered

    def add(
        self, message_id: int, lock_token: int, outcome: Success | Rejected, settled: Settled
    ) -> None:
        """Archive a message with others; `settled` gets what `finish` would return or raise."""
        if isinstance(outcome, Success):
            finish = _Finish(message_id, lock_token, "success", None, outcome.result, settled)
        else:
            finish = _Finish(message_id, lock_token, "rejected", outcome.reason, None, settled)
        self._pending.append(finish)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    async def has_archived(self, key: Key) -> bool:
        """Whether the message was finished under this very lock."""
        rows = await self._database.persist(sql.ARCHIVE_FIND, key[0])
        return any(row["lock_token"] == key[1] for row in rows)

    async def close(self) -> None:
        """Give up the finishes that could not be written down yet."""
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        _tell(self._pending, asyncio.CancelledError())
        self._pending.clear()

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
        repeated = Repeated()
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
            done |= {f.key for f in lost if await self.has_archived(f.key)}
        return done


def _tell(batch: list[_Finish], error: BaseException) -> None:
    for finish in batch:
        finish.tell(error)


class Repeated:
    """Remembers that a call was sent again, so that its first try may have taken effect."""

    happened = False

    def note(self) -> None:
        """It is sent again."""
        self.happened = True
