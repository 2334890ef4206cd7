"""Settles messages: writes how they ended, many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from notifyq.database import statements as sql
from notifyq.database.batching import Batcher, Item
from notifyq.database.encryption.sealing import encrypted, encrypted_log
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
    import asyncpg

    from notifyq.database.pool import Database

Key = tuple[int, int]
"""Id and lock token of a message."""
Answer = bool | Retried | Committed
"""Whether the lock was held; for a failed attempt, what followed, or that it has not failed."""
_LOST: Answer = False

Log = tuple[int, str]
"""The number of an attempt, and what a call of it has logged, as JSON."""

E = TypeVar("E", bound=Outcome)


@dataclass(slots=True)
class _Settlement(Item[Answer], Generic[E]):
    id: int
    lock_token: int
    outcome: E
    log: Log | None

    @property
    def key(self) -> Key:
        return self.id, self.lock_token


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
        self._finishes = Batcher(self._finish, self._fail, otherwise=_LOST)
        self._retries = Batcher(self._retry, self._retry_by_queue, otherwise=_LOST)
        self._releases = Batcher(self._release, otherwise=_LOST)
        self._logs = Batcher(self._keep, otherwise=_LOST)

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
                self._finishes.add(_Settlement(answered, message_id, lock_token, outcome, log))
            case Failed():
                self._retries.add(_Settlement(answered, message_id, lock_token, outcome, log))
            case Released():
                self._releases.add(_Settlement(answered, message_id, lock_token, outcome, log))
            case Committed() | Suspended() if log is not None:
                self._logs.add(_Settlement(answered, message_id, lock_token, outcome, log))
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
