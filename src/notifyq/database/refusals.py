"""What the server refuses: mostly that concerns one thing, and a process goes on with the rest."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple, TypeVar

import asyncpg

from notifyq.database.retry import is_passing
from notifyq.errors import (
    AccessDeniedError,
    DatabaseUnavailableError,
    LostReceiptsError,
    NotifyqError,
    QueueDeniedError,
    RestoredDatabaseError,
    SchemaError,
)

T = TypeVar("T")
A = TypeVar("A")

PAUSE = 1.0
"""Seconds until what was refused is tried again."""
_QUIET = 60.0
"""Seconds in which the same refusal of one thing is logged once."""


def is_refusal(error: BaseException) -> bool:
    """Whether the server has answered, and the same call for something else may succeed."""
    if isinstance(error, DatabaseUnavailableError | LostReceiptsError | RestoredDatabaseError):
        return False
    if isinstance(error, NotifyqError):
        return True
    return isinstance(error, asyncpg.PostgresError) and not is_passing(error)


def concerns_all(error: BaseException) -> bool:
    """Whether each call of this kind is refused: for want of a right, or of the schema."""
    return isinstance(error, AccessDeniedError | SchemaError) and not isinstance(
        error, QueueDeniedError
    )


def is_limited(error: BaseException) -> bool:
    """Whether the server refuses the call, and may accept it for something else, or later."""
    return is_refusal(error) and not concerns_all(error)


async def halving(
    call: Callable[[list[T]], Awaitable[A]], items: list[T]
) -> AsyncIterator[tuple[list[T], A | Exception]]:
    """Make a call for items; where it is refused, for each half, so that one stops no other.

    Yields each part with what the call returned, or with its error: one item that is refused, or
    all of a part whose call failed otherwise.
    """
    parts = [items] if items else []
    while parts:
        part = parts.pop()
        answer: A | Exception
        try:
            answer = await call(part)
        except Exception as error:  # noqa: BLE001  the caller decides
            if len(part) > 1 and is_limited(error):
                half = len(part) // 2
                parts += [part[half:], part[:half]]
                continue
            answer = error
        yield part, answer


class Refusals:
    """Logs a refusal once, and once that it is over; the same of one thing once a minute at most.

    A queue that is full now and then is refused now and then.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        # Of what is refused: the error that was logged last since then, if any.
        self._refused: dict[str, type[BaseException] | None] = {}
        self._logged: dict[tuple[str, type[BaseException]], float] = {}

    def refused(self, what: str, error: BaseException, meanwhile: str) -> None:
        """Record that the server refuses `what`; log it unless that is logged."""
        kind, now = type(error), time.monotonic()
        if self._refused.setdefault(what, None) is kind:
            return
        if now - self._logged.get((what, kind), -math.inf) >= _QUIET:
            self._refused[what] = kind
            self._logged[what, kind] = now
            reason = str(error).partition("\n")[0]  # without the hint
            self._log.error("%s: %s; %s", what, reason, meanwhile)

    def works(self, what: str) -> None:
        """Record that the server does not refuse it, or no longer."""
        if self._refused and self._refused.pop(what, None) is not None:
            self._log.info("%s: it works again", what)

    @contextmanager
    def noted(
        self, what: str, meanwhile: str, is_final: Callable[[Exception], bool] = lambda _: False
    ) -> Iterator[None]:
        """Record whether the server refuses the block, and go on behind it unless that is final."""
        try:
            yield
        except Exception as error:
            if not is_refusal(error) or is_final(error):
                raise
            self.refused(what, error, meanwhile)
        else:
            self.works(what)

    @asynccontextmanager
    async def repeated(
        self, what: str, meanwhile: str, is_final: Callable[[Exception], bool] = concerns_all
    ) -> AsyncIterator[None]:
        """As `noted`, for a block that a loop repeats: pause after a refusal."""
        works = False
        with self.noted(what, meanwhile, is_final):
            yield
            works = True
        if not works:
            await asyncio.sleep(PAUSE)


class _Resting(NamedTuple):
    error: Exception
    until: float
    """In monotonic seconds."""


class RefusedQueues:
    """Queues that the server refuses, each until it is tried again; the others go on."""

    def __init__(
        self,
        log: logging.Logger,
        pause: float = PAUSE,
        on_works: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._refusals = Refusals(log)
        self._pause = pause
        self._on_works = on_works
        self._queues: dict[str, _Resting] = {}

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    def refuse(self, queue: str, error: Exception, pause: float | None = None) -> None:
        """Leave a queue out until it is tried again, and log this once."""
        pause = self._pause if pause is None else pause
        self._queues[queue] = _Resting(error, time.monotonic() + pause)
        meanwhile = "it is left out" if pause == math.inf else "it is tried again each second"
        self._refusals.refused(f"queue {queue!r}", error, meanwhile)

    def works(self, queues: Iterable[str]) -> None:
        """Record that the server refuses none of these."""
        for queue in self._queues.keys() & queues:
            self._refusals.works(f"queue {queue!r}")
            del self._queues[queue]
            self._on_works(queue)

    def is_resting(self, queue: str) -> bool:
        """Whether it is too early to try it again."""
        resting = self._queues.get(queue)
        return resting is not None and time.monotonic() < resting.until

    def take_due(self) -> list[str]:
        """Return those to try now; unless that succeeds they rest again."""
        due = [queue for queue in self._queues if not self.is_resting(queue)]
        until = time.monotonic() + PAUSE
        self._queues |= {queue: self._queues[queue]._replace(until=until) for queue in due}
        return due

    def check(self, size: int) -> None:
        """Raise where all queues, this many, are refused, and not because they do not exist."""
        errors = [it.error for it in self._queues.values()]
        if len(errors) == size and all(map(concerns_all, errors)):
            raise errors[0]

    def raise_any(self) -> None:
        """Raise why one is refused, if one is."""
        for it in self._queues.values():
            raise it.error

    @property
    def retry_in(self) -> float:
        """Seconds until the next try of one of them; or infinite."""
        instants = [it.until for it in self._queues.values()]
        return max(0.0, min(instants) - time.monotonic()) if instants else math.inf
