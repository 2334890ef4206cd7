"""Many calls of one kind in one statement: during one the next ones gather for another."""

from __future__ import annotations

import asyncio
import contextvars
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import asyncpg

from notifyq.database.refusals import halving
from notifyq.errors import InvalidArgumentError

A = TypeVar("A")
I = TypeVar("I", bound="Item[Any]")  # noqa: E741

_BATCH = 500
"""Most items in one statement: enough to share a commit, small enough to stay quick."""
_GATHER = 0.002
"""Longest time in seconds that an item waits for others, while more of them arrive."""
_UNSTORABLE = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, InvalidArgumentError)
"""The values themselves cannot be stored: numbers, sizes and depths have limits."""


@dataclass(slots=True)
class Item(ABC, Generic[A]):
    """What is sent with others, and the future of its answer."""

    answered: asyncio.Future[A]

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """What its answer is found by."""

    def settle(self, answer: A | BaseException) -> None:
        """Give the answer, once, to who still waits for it."""
        if self.answered.done():
            return
        if not isinstance(answer, BaseException):
            self.answered.set_result(answer)
        elif isinstance(answer, asyncio.CancelledError):
            self.answered.cancel()
        else:
            self.answered.set_exception(answer)


async def _raise(_item: Any, error: Exception) -> Any:
    raise error


class Batcher(Generic[I, A]):
    """Sends items of one kind.

    `send` returns answers by key; an item without one gets `otherwise`. One that the server refuses
    makes the statement fail, and must not fail the others. Where it refuses the values,
    `send_alone` sends others.
    """

    def __init__(
        self,
        send: Callable[[list[I]], Awaitable[Mapping[Any, A | Exception]]],
        send_alone: Callable[[I, Exception], Awaitable[A]] = _raise,
        *,
        otherwise: A,
    ) -> None:
        self._send = send
        self._send_alone = send_alone
        self._otherwise = otherwise
        self._pending: list[I] = []
        self._flushing: asyncio.Task[None] | None = None
        # Not that of the first item, which may be a handler's: others have items in the statement.
        self._context = contextvars.copy_context()

    def add(self, item: I) -> None:
        """Send an item with the next statement."""
        self._pending.append(item)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush(), context=self._context)

    async def close(self) -> None:
        """Abandon what has no answer yet."""
        if self._flushing is not None:
            self._flushing.cancel()
            # Not `await` of the task: that could not tell its end from a cancelled close().
            await asyncio.wait({self._flushing})
            self._flushing = None  # one that had not begun does not do this itself
        _settle_all(self._pending, asyncio.CancelledError())
        self._pending.clear()

    async def _flush(self) -> None:
        batch: list[I] = []
        try:
            while self._pending:
                await self._gather()
                batch, self._pending = self._pending[:_BATCH], self._pending[_BATCH:]
                await self._settle(batch)
        except BaseException as error:
            _settle_all(batch, error)
            if not isinstance(error, asyncio.CancelledError):
                # Nothing awaits this task: an item without an answer would wait permanently.
                _settle_all(self._pending, error)
                self._pending = []
            raise
        finally:
            self._flushing = None

    async def _gather(self) -> None:
        """Wait for items that arrive together, while each turn of the loop brings more."""
        give_up = time.monotonic() + _GATHER
        before = 0
        while before < len(self._pending) < _BATCH and time.monotonic() < give_up:
            before = len(self._pending)
            await asyncio.sleep(0)

    async def _settle(self, batch: list[I]) -> None:
        async for part, answers in halving(self._send, batch):
            if isinstance(answers, _UNSTORABLE):
                await self._settle_alone(part[0], answers)
            elif isinstance(answers, Exception):
                _settle_all(part, answers)
            else:
                for item in part:
                    item.settle(answers.get(item.key, self._otherwise))

    async def _settle_alone(self, item: I, error: Exception) -> None:
        try:
            item.settle(await self._send_alone(item, error))
        except Exception as again:  # noqa: BLE001  it is raised where the answer is awaited
            item.settle(again)


def _settle_all(batch: list[I], error: BaseException) -> None:
    for item in batch:
        item.settle(error)
