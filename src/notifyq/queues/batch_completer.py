"""Settlements: how messages ended, written down many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import asyncpg

from notifyq.database import sql
from notifyq.errors import InvalidArgumentError
from notifyq.models.message import Retried, newest
from notifyq.models.outcome import Failed, Rejected, Released, Success
from notifyq.telemetry.tracebacks import clean, report

if TYPE_CHECKING:
    from notifyq.database.pool import Database

Key = tuple[int, int]
"""Id and lock token of a message."""
Answer = bool | Retried
"""Whether the lock was held, and where an attempt failed what followed."""
Settled = Callable[[Answer | BaseException], None]

E = TypeVar("E", bound=Success | Rejected | Failed | Released)

_BATCH = 500
"""Most settlements in one statement: enough to share a commit, small enough to stay quick."""
_GATHER = 0.002
"""Longest time in seconds that a settlement waits for others that follow it turn by turn."""
_UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, InvalidArgumentError)
"""The values are at fault, and would be the next time: numbers, sizes and depths have limits."""


@dataclass(slots=True)
class _Settlement(Generic[E]):
    id: int
    lock_token: int
    outcome: E
    settled: Settled

    @property
    def key(self) -> Key:
        return self.id, self.lock_token

    def tell(self, answer: Answer | BaseException) -> None:
        """Call `settled`, once."""
        settled, self.settled = self.settled, _ignore
        settled(answer)


def _ignore(_answer: Answer | BaseException) -> None:
    return


class _Lane(Generic[E]):
    """Settlements of one kind: while one statement is under way the next ones wait for another.

    `send` answers by the keys that were held. `lone` is for one whose values cannot be stored: they
    fail the statement, and must not fail the others.
    """

    def __init__(
        self,
        send: Callable[[list[_Settlement[E]]], Awaitable[Mapping[Key, Answer]]],
        lone: Callable[[_Settlement[E], Exception], Awaitable[Answer]],
    ) -> None:
        self._send = send
        self._lone = lone
        self._pending: list[_Settlement[E]] = []
        self._flushing: asyncio.Task[None] | None = None

    def add(self, settlement: _Settlement[E]) -> None:
        self._pending.append(settlement)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())

    async def close(self) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
            with suppress(asyncio.CancelledError):
                await self._flushing
        _tell(self._pending, asyncio.CancelledError())
        self._pending.clear()

    async def _flush(self) -> None:
        batch: list[_Settlement[E]] = []
        try:
            while self._pending:
                await self._gather()
                batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
                await self._settle(batch)
        except BaseException as error:
            _tell(batch, error)
            if not isinstance(error, asyncio.CancelledError):
                # Nothing awaits this task: a settlement that is not told would wait for ever.
                _tell(self._pending, error)
                self._pending = []
            raise
        finally:
            self._flushing = None

    async def _gather(self) -> None:
        """Let those that come together go together, while each turn of the loop brings more."""
        give_up = time.monotonic() + _GATHER
        before = 0
        while before < len(self._pending) < _BATCH and time.monotonic() < give_up:
            before = len(self._pending)
            await asyncio.sleep(0)

    async def _settle(self, batch: list[_Settlement[E]]) -> None:
        try:
            held = await self._send(batch)
        except _UNSTORABLE as error:
            if len(batch) == 1:
                await self._settle_alone(batch[0], error)
            else:
                half = len(batch) // 2
                await self._settle(batch[:half])
                await self._settle(batch[half:])
        except Exception as error:  # noqa: BLE001  it belongs to those who wait for it
            _tell(batch, error)
        else:
            for settlement in batch:
                settlement.tell(held.get(settlement.key, False))

    async def _settle_alone(self, settlement: _Settlement[E], error: Exception) -> None:
        try:
            settlement.tell(await self._lone(settlement, error))
        except Exception as again:  # noqa: BLE001  it belongs to those who wait for it
            settlement.tell(again)


class BatchCompleter:
    """Settlements of one worker: finishes, retries and releases, each kind many at a time.

    Each message keeps its own token, so one that lost its lock does not touch the others. One whose
    result cannot be stored is retried, one whose delay cannot is retried by the queue's backoff.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._finishes = _Lane[Success | Rejected](self._finish, self._fail)
        self._retries = _Lane[Failed](self._retry, self._retry_by_queue)
        self._releases = _Lane[Released](self._release, _raise)

    async def settle(
        self, message_id: int, lock_token: int, outcome: Success | Rejected | Failed | Released
    ) -> Answer:
        """Settle a message with others. False: its lock was lost."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def settled(answer: Answer | BaseException) -> None:
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
        self,
        message_id: int,
        lock_token: int,
        outcome: Success | Rejected | Failed | Released,
        settled: Settled,
    ) -> None:
        """Settle a message with others; `settled` gets what `settle` would return or raise."""
        match outcome:
            case Success() | Rejected():
                self._finishes.add(_Settlement(message_id, lock_token, outcome, settled))
            case Failed():
                self._retries.add(_Settlement(message_id, lock_token, outcome, settled))
            case Released():
                self._releases.add(_Settlement(message_id, lock_token, outcome, settled))

    async def has_archived(self, key: Key) -> bool:
        """Whether the message was finished under this very lock."""
        rows = await self._database.persist(sql.ARCHIVE_FIND, key[0])
        return any(row["lock_token"] == key[1] for row in rows)

    async def close(self) -> None:
        """Give up the settlements that could not be written down yet."""
        for lane in (self._finishes, self._retries, self._releases):
            await lane.close()

    async def _finish(self, batch: list[_Settlement[Success | Rejected]]) -> Mapping[Key, Answer]:
        repeated = _Repeated()
        outcomes = [it.outcome for it in batch]
        rows = await self._database.persist(
            sql.FINISH_MANY,
            [it.id for it in batch],
            [it.lock_token for it in batch],
            [it.status for it in outcomes],
            [it.reason if isinstance(it, Rejected) else None for it in outcomes],
            [it.result if isinstance(it, Success) else None for it in outcomes],
            retried=repeated.note,
        )
        done = newest([it.key for it in batch], rows)
        if repeated.happened:
            lost = [it for it in batch if it.key not in done]
            done |= {it.key for it in lost if await self.has_archived(it.key)}
        return dict.fromkeys(done, True)

    async def _fail(self, settlement: _Settlement[Success | Rejected], error: Exception) -> Answer:
        details = f"the result cannot be stored: {error}"
        failed = Failed(details, error=report(error))
        return await self.settle(*settlement.key, failed)

    async def _retry(self, batch: list[_Settlement[Failed]]) -> Mapping[Key, Answer]:
        repeated = _Repeated()
        outcomes = [it.outcome for it in batch]
        errors = [it.error for it in outcomes]
        rows = await self._database.persist(
            sql.RETRY_MANY,
            [it.id for it in batch],
            [it.lock_token for it in batch],
            [it.after for it in outcomes],
            [it.details for it in outcomes],
            [it.status for it in outcomes],
            [it and it.type for it in errors],
            [it and it.text for it in errors],
            [it and it.traceback for it in errors],
            [it.gives_up for it in outcomes],
            retried=repeated.note,
        )
        keys = [it.key for it in batch]
        followed = {row["id"]: Retried(row["max_attempts"], row["delay"]) for row in rows}
        answers: dict[Key, Answer] = {key: followed[key[0]] for key in newest(keys, rows)}
        if repeated.happened:  # after a lost answer "not held" may mean "done by the first try"
            return dict.fromkeys(keys, True) | answers
        return answers

    async def _retry_by_queue(self, settlement: _Settlement[Failed], error: Exception) -> Answer:
        outcome = settlement.outcome
        why = f"retried by the queue's backoff, not after {outcome.after}: {error}"
        again = replace(outcome, details=clean(f"{outcome.details}\n{why}"), after=None)
        answers = await self._retry([replace(settlement, outcome=again)])
        return answers.get(settlement.key, False)

    async def _release(self, batch: list[_Settlement[Released]]) -> Mapping[Key, Answer]:
        rows = await self._database.persist(
            sql.RELEASE_MANY, [it.id for it in batch], [it.lock_token for it in batch]
        )
        return dict.fromkeys(newest([it.key for it in batch], rows), True)


async def _raise(_settlement: _Settlement[Released], error: Exception) -> Answer:
    raise error


def _tell(batch: list[_Settlement[E]], error: BaseException) -> None:
    for settlement in batch:
        settlement.tell(error)


class _Repeated:
    """Remembers that a call was sent again, so that its first try may have taken effect."""

    happened = False

    def note(self) -> None:
        """It is sent again."""
        self.happened = True
