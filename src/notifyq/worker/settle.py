"""Settles messages: writes how they ended, many at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.encryption.sealing import encrypted, encrypted_log
from notifyq.database.refusals import halving
from notifyq.errors import InvalidArgumentError
from notifyq.execution.runtime import ends_of
from notifyq.models.message import Message, Retried, newest
from notifyq.models.outcome import (
    Committed,
    Doubtful,
    Failed,
    Outcome,
    Rejected,
    Released,
    Success,
    Suspended,
)
from notifyq.models.payload import is_sealed
from notifyq.telemetry.tracebacks import clean, report

if TYPE_CHECKING:
    from notifyq.database.pool import Database

Key = tuple[int, int]
"""Id and lock token of a message."""
Answer = bool | Retried | Committed
"""Whether the lock was held; for a failed attempt, what followed, or that it has not failed."""

Log = tuple[int, str]
"""The number of an attempt, and what a call of it has logged, as JSON."""

E = TypeVar("E", bound=Outcome)

_BATCH = 500
"""Most settlements in one statement: enough to share a commit, small enough to stay quick."""
_GATHER = 0.002
"""Longest time in seconds that a settlement waits for others, while more of them arrive."""
_UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, InvalidArgumentError)
"""The values themselves cannot be stored: numbers, sizes and depths have limits."""


@dataclass(slots=True)
class _Settlement(Generic[E]):
    id: int
    lock_token: int
    outcome: E
    answered: asyncio.Future[Answer]
    log: Log | None

    @property
    def key(self) -> Key:
        return self.id, self.lock_token

    def settle(self, answer: Answer | BaseException) -> None:
        """Give the answer, once, to who still waits for it."""
        if self.answered.done():
            return
        if not isinstance(answer, BaseException):
            self.answered.set_result(answer)
        elif isinstance(answer, asyncio.CancelledError):
            self.answered.cancel()
        else:
            self.answered.set_exception(answer)


class _Batcher(Generic[E]):
    """Settlements of one kind: during one statement the next ones gather for another.

    `send` returns answers by the keys that were held. One that the server refuses makes the
    statement fail, and must not fail the others. Where it refuses the values, `send_alone` sends
    others.
    """

    def __init__(
        self,
        send: Callable[[list[_Settlement[E]]], Awaitable[Mapping[Key, Answer]]],
        send_alone: Callable[[_Settlement[E], Exception], Awaitable[Answer]],
    ) -> None:
        self._send = send
        self._send_alone = send_alone
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
        _settle_all(self._pending, asyncio.CancelledError())
        self._pending.clear()

    async def _flush(self) -> None:
        batch: list[_Settlement[E]] = []
        try:
            while self._pending:
                await self._gather()
                batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
                await self._settle(batch)
        except BaseException as error:
            _settle_all(batch, error)
            if not isinstance(error, asyncio.CancelledError):
                # Nothing awaits this task: a settlement without an answer would wait permanently.
                _settle_all(self._pending, error)
                self._pending = []
            raise
        finally:
            self._flushing = None

    async def _gather(self) -> None:
        """Wait for settlements that arrive together, while each turn of the loop brings more."""
        give_up = time.monotonic() + _GATHER
        before = 0
        while before < len(self._pending) < _BATCH and time.monotonic() < give_up:
            before = len(self._pending)
            await asyncio.sleep(0)

    async def _settle(self, batch: list[_Settlement[E]]) -> None:
        async for part, held in halving(self._send, batch):
            if isinstance(held, _UNSTORABLE):
                await self._settle_alone(part[0], held)
            elif isinstance(held, Exception):
                _settle_all(part, held)
            else:
                for settlement in part:
                    settlement.settle(held.get(settlement.key, False))

    async def _settle_alone(self, settlement: _Settlement[E], error: Exception) -> None:
        try:
            settlement.settle(await self._send_alone(settlement, error))
        except Exception as again:  # noqa: BLE001  it is raised where the answer is awaited
            settlement.settle(again)


class Settler:
    """The settlements of one worker: finishes, retries and releases, each kind many at a time.

    Each message has its own token: one that lost its lock does not affect the others. One whose
    result cannot be stored is retried; one whose delay cannot is retried by the queue's backoff.
    An attempt that is doubtful fails unless its transaction has committed.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._text = database.storable
        self._is_closed = False
        self._finishes = _Batcher[Success | Rejected](self._finish, self._fail)
        self._retries = _Batcher[Failed](self._retry, self._retry_by_queue)
        self._releases = _Batcher[Released](self._release, _raise)
        self._logs = _Batcher[Committed | Suspended](self._keep, _raise)

    def add(
        self, message: Message, outcome: Outcome, log: str | None = None
    ) -> asyncio.Future[Answer]:
        """Record with others how a message ended, and its log. False: its lock was lost."""
        if message.is_encrypted:
            keys = self._database.keys
            outcome, log = encrypted(message, outcome, keys), encrypted_log(message, log, keys)
        kept = None if log is None else (message.attempts, log)
        return self.settle(message.id, message.lock_token, outcome, kept)

    def settle(
        self, message_id: int, lock_token: int, outcome: Outcome, log: Log | None = None
    ) -> asyncio.Future[Answer]:
        """Do what `add` does, for a message of which only the lock is known."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self._is_closed:  # the handler has ended after its worker
            answered.set_result(False)
            return answered
        match outcome:
            case Success() | Rejected():
                self._finishes.add(_Settlement(message_id, lock_token, outcome, answered, log))
            case Failed():
                self._retries.add(_Settlement(message_id, lock_token, outcome, answered, log))
            case Released():
                self._releases.add(_Settlement(message_id, lock_token, outcome, answered, log))
            case Committed() | Suspended() if log is not None:
                self._logs.add(_Settlement(message_id, lock_token, outcome, answered, log))
            case Committed(is_held):  # it is in the database already
                answered.set_result(is_held)
            case Suspended():
                answered.set_result(True)
        return answered

    async def close(self) -> None:
        """Abandon settlements that are not written yet, and accept no more."""
        self._is_closed = True
        for batcher in (self._finishes, self._retries, self._releases, self._logs):
            await batcher.close()

    async def _persist(
        self, statement: str, batch: list[_Settlement[E]], *args: Any, **options: Any
    ) -> list[asyncpg.Record]:
        """Send a statement, together with what calls have logged."""
        if logged := _logs_of(batch):
            statement, args = sql.with_logs(statement), (*args, *logged)
        return await self._database.persist(statement, *args, **options)

    async def _keep(self, batch: list[_Settlement[Committed | Suspended]]) -> Mapping[Key, Answer]:
        await self._database.persist(sql.KEEP_LOGS, *_logs_of(batch))
        return {
            it.key: it.outcome.is_held if isinstance(it.outcome, Committed) else True
            for it in batch
        }

    async def _has_archived(self, key: Key) -> bool:
        """Whether the message was finished under this lock token."""
        rows = await self._database.persist(sql.ARCHIVE_FIND, key[0])
        return any(row["lock_token"] == key[1] for row in rows)

    async def _finish(self, batch: list[_Settlement[Success | Rejected]]) -> Mapping[Key, Answer]:
        repeats: list[bool] = []
        rows = await self._persist(
            sql.FINISH_MANY,
            batch,
            [it.id for it in batch],
            [it.lock_token for it in batch],
            *ends_of([it.outcome for it in batch], self._text),
            retried=lambda: repeats.append(True),
        )
        done = newest([it.key for it in batch], rows)
        if repeats:
            lost = [it for it in batch if it.key not in done]
            done |= {it.key for it in lost if await self._has_archived(it.key)}
        return dict.fromkeys(done, True)

    async def _fail(self, settlement: _Settlement[Success | Rejected], error: Exception) -> Answer:
        details = f"the result cannot be stored: {error}"
        failed = Failed(details, error=report(error))
        return await self.settle(*settlement.key, failed, settlement.log)

    async def _retry(self, batch: list[_Settlement[Failed]]) -> Mapping[Key, Answer]:
        repeats: list[bool] = []
        outcomes = [it.outcome for it in batch]
        errors = [it.error for it in outcomes]
        rows = await self._persist(
            sql.RETRY_MANY,
            batch,
            [it.id for it in batch],
            [it.lock_token for it in batch],
            [it.after for it in outcomes],
            [self._text(it.details) for it in outcomes],
            [it.status for it in outcomes],
            [it and self._text(it.type) for it in errors],
            [it and self._text(it.text) for it in errors],
            [it and it.traceback and self._text(it.traceback) for it in errors],
            [it.gives_up for it in outcomes],
            retried=lambda: repeats.append(True),
        )
        keys = [it.key for it in batch]
        followed = {row["id"]: Retried(row["max_attempts"], row["delay"]) for row in rows}
        answers: dict[Key, Answer] = {key: followed[key[0]] for key in newest(keys, rows)}
        # Only now it is certain that the transactions of these handlers are over.
        doubtful = {it.key for it in batch if isinstance(it.outcome, Doubtful)} - answers.keys()
        answers |= {key: Committed() for key in doubtful if await self._has_archived(key)}
        if repeats:  # "not held" may mean that the first try, without answer, succeeded
            return dict.fromkeys(keys, True) | answers
        return answers

    async def _retry_by_queue(self, settlement: _Settlement[Failed], error: Exception) -> Answer:
        outcome = settlement.outcome
        why = f"retried by the queue's backoff, not after {outcome.after}: {error}"
        details = outcome.details  # an envelope stays whole
        if not is_sealed(details):
            details = clean(f"{details}\n{why}")
        again = replace(outcome, details=details, after=None)
        answers = await self._retry([replace(settlement, outcome=again)])
        return answers.get(settlement.key, False)

    async def _release(self, batch: list[_Settlement[Released]]) -> Mapping[Key, Answer]:
        by_delay: dict[timedelta | None, list[_Settlement[Released]]] = {}
        for it in batch:
            by_delay.setdefault(it.outcome.after, []).append(it)
        rows: list[asyncpg.Record] = []
        for after, some in by_delay.items():
            keys = [it.id for it in some], [it.lock_token for it in some]
            if after is None:
                rows += await self._persist(sql.RELEASE_MANY, some, *keys)
            else:
                rows += await self._persist(sql.SNOOZE_MANY, some, *keys, after)
        return dict.fromkeys(newest([it.key for it in batch], rows), True)


def _logs_of(batch: list[_Settlement[E]]) -> tuple[list[Any], ...]:
    """The arguments of KEEP_LOGS for what was logged; empty where nothing was."""
    return tuple(map(list, zip(*((*it.key, *it.log) for it in batch if it.log), strict=True)))


async def _raise(_settlement: _Settlement[E], error: Exception) -> Answer:
    raise error


def _settle_all(batch: list[_Settlement[E]], error: BaseException) -> None:
    for settlement in batch:
        settlement.settle(error)
