"""What a worker's listening session promises to publishers and other workers.

See common/notify.sql.

A promise is an advisory lock of that session, so it ends with the session, whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import sql
from notifyq.errors import NotifyqError
from notifyq.telemetry import (
    QueueAttended,
    QueueUnattended,
    StreamAttended,
    StreamUnattended,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.notify.session import Session
    from notifyq.telemetry import Sink

log = logging.getLogger("notifyq.worker")

_BROKEN = (
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
_FIRST_CHECK, _LAST_CHECK = 0.002, 1.0
"""Seconds between two checks on publishers that were silent: the first pause, and the longest."""


class Silence:
    """Publishers that did not ring and may not have committed yet, in `queues`."""

    def __init__(self, queues: Iterable[str], number: str | None) -> None:
        self.queues = set(queues)
        self._number = number
        self._check_in = _FIRST_CHECK
        self._check_at = 0.0

    @property
    def next_check(self) -> float:
        """Seconds to the next check, longer from time to time."""
        return max(0.0, self._check_at - time.monotonic())

    async def is_over(self, promises: Suppression) -> bool:
        """Whether all of them have ended, so that one more look finds what they published."""
        if self.next_check > 0:  # bells may wake whoever waits for it
            return False
        is_over = False
        if self._number is None:  # the server could not be asked when it began
            self._number = await promises.ask(sql.NUMBER)
        else:
            is_over = await promises.ask(sql.SETTLED, self._number) is True
        self._check_at = time.monotonic() + self._check_in
        self._check_in = min(2 * self._check_in, _LAST_CHECK)
        return is_over


class Suppression:
    """Attended queues, and places among those who answer the bell for a single message.

    `serve` runs beside the listener on its loop, all else on the worker's; `on_session` is called
    there whenever a session has taken over.
    """

    _attend, _unattend = sql.ATTEND, sql.UNATTEND

    def __init__(self, database: Database, sink: Sink, on_session: Callable[[], None]) -> None:
        self._database = database
        self._sink = sink
        self._on_session = on_session
        self._home = asyncio.get_running_loop()
        self._loop = self._home
        self._session: Session | None = None
        self._seen: Session | None = None
        self._identity: tuple[int, Any] | None = None
        self.attended: set[str] = set()
        self.places: dict[str, int] = {}
        self.silence: Silence | None = None
        self.is_deaf = False
        """Whether the session is one of a pooler, on which nothing can be promised."""

    @property
    def is_possible(self) -> bool:
        """Whether there is a session to promise anything on."""
        return self._session is not None

    @property
    def session(self) -> Session | None:
        """The session that promises are made on; with it they end."""
        return self._session

    async def serve(self, session: Session) -> None:
        """Lend the session to the worker for as long as it lasts."""
        if self._identity is not None:
            # The server may not know yet that the one before is dead, and believe its promises.
            await session.fetch(sql.END_SESSION, *self._identity)
            self._identity = None
        self._loop = asyncio.get_running_loop()
        if not await session.hears(self._ring):
            session.report_deaf()
            self.is_deaf = True
            self._home.call_soon_threadsafe(self._on_session)
            return
        self.is_deaf = False
        # Of a session that is ours: one of a pooler's must not be ended, others work on it.
        # Where a host dies without a word, its promises must not outlive it by two hours.
        [row] = await session.fetch(sql.KEEP_ALIVE)
        self._identity = (row["pid"], row["backend_start"])
        self._session = session
        try:
            self._home.call_soon_threadsafe(self._on_session)
            await asyncio.Event().wait()
        finally:
            self._session = None

    async def renew(self, queues: Iterable[str]) -> bool:
        """Start again where another session has taken over; true if it has."""
        if self._session is self._seen or self._session is None:
            return False
        self._seen = self._session
        self.attended.clear()
        self.places.clear()
        await self.fall_silent(queues)
        return True

    async def attend(self, queue: str) -> bool | None:
        """Promise to poll the queue every few milliseconds; answer as notifyq.suppress() does."""
        answer: bool | None = await self.call(self._attend, queue)
        if answer is True:
            self.attended.add(queue)
            self._tell(queue, attended=True)
        elif answer is None:
            await self.fall_silent([queue])
        return answer

    async def leave(self, queues: list[str]) -> None:
        """Attend these queues no more. Where that cannot be said, the promise stands."""
        if not queues:
            return
        number = await self.call(self._unattend, queues)
        if number is not None:
            self.attended.difference_update(queues)
            await self.fall_silent(queues, number)
            for queue in queues:
                self._tell(queue, attended=False)

    async def watch(self, queues: list[str]) -> set[str]:
        """Try for a place in each of the queues; return those where all places are taken."""
        places = await self.call(sql.WATCH, queues)
        if places is None:
            return set()
        taken = {q: p for q, p in zip(queues, places, strict=True) if p is not None}
        self.places |= taken
        return set(queues) - taken.keys()

    async def unwatch(self) -> None:
        """Give up all places; whoever is the last to leave calls the others."""
        if self.places:
            await self.call(sql.UNWATCH, list(self.places), list(self.places.values()))
            self.places.clear()

    async def summon(self, queues: Iterable[str], *, always: bool = False) -> bool:
        """Call all workers of those queues that have something waiting. False: it cannot be."""
        return await self.ask(sql.SUMMON, list(queues), always) is not None

    async def next_due(self, queues: Iterable[str], since: timedelta) -> timedelta | None:
        """How long until the next scheduled message is due; None: there is none, or no answer.

        What has become due in the time `since` the last look counts, too.
        """
        due: timedelta | None = await self.ask(sql.NEXT_DUE, list(queues), since)
        return due

    async def token_in(self, queues: Iterable[str], since: timedelta) -> timedelta | None:
        """How long until a rate of these queues lets something through; None if none has one.

        What has been let through in the time `since` the last look counts, too.
        """
        token_in: timedelta | None = await self.ask(sql.DRY_FOR, list(queues), since)
        return token_in

    async def fall_silent(self, queues: Iterable[str], number: str | None = None) -> None:
        """Remember that publishers of these queues may have been silent up to now."""
        before = self.silence.queues if self.silence is not None else set()
        # The later number holds for the earlier silence too.
        self.silence = Silence(before | set(queues), number or await self.ask(sql.NUMBER))

    async def ask(self, statement: str, *args: Any) -> Any:
        """The one value of a call on any session; None if it cannot be had."""
        try:
            return await self._database.value(statement, *args)
        except (NotifyqError, asyncpg.PostgresError) as error:
            log.debug("a call for the bell failed: %s", error)
            return None

    def _tell(self, queue: str, *, attended: bool) -> None:
        self._sink(QueueAttended(queue=queue) if attended else QueueUnattended(queue=queue))

    async def _ring(self, channel: str) -> Any:
        return await self._from_home(self.ask(sql.RING, channel))

    async def _from_home(self, call: Coroutine[Any, Any, Any]) -> Any:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._home))

    async def call(self, statement: str, *args: Any) -> Any:
        """The one value of a call on the listening session; None if it cannot be had."""
        session = self._session
        if session is None:
            return None
        call = session.fetch(statement, *args)
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:  # the listener has ended
            call.close()
            return None
        try:
            rows = await asyncio.wrap_future(future)
        except asyncpg.PostgresError as error:
            log.debug("a call for the bell failed: %s", error)
            return None
        except _BROKEN as error:
            # It may have made a promise that nobody knows of; that ends with the session.
            log.debug("a call for the bell was not answered: %s", error)
            with suppress(RuntimeError):  # the listener has ended
                self._loop.call_soon_threadsafe(session.abort)
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None  # it was the listener's loop that ended
        return rows[0][0]


class StreamPromises(Suppression):
    """Attended streams. Every subscriber answers every bell, so there are no places among them."""

    _attend, _unattend = sql.ATTEND_STREAM, sql.UNATTEND_STREAMS

    async def watch(self, queues: list[str]) -> set[str]:
        """Take no place."""
        return set(queues)

    async def summon(self, queues: Iterable[str], *, always: bool = False) -> bool:
        """Call all subscribers of these streams. False: it cannot be."""
        return await self.ask(sql.RING_STREAMS, list(queues)) is not None

    async def next_due(self, queues: Iterable[str], since: timedelta) -> timedelta | None:
        """Leave what is due again to the poll."""
        return None

    def _tell(self, queue: str, *, attended: bool) -> None:
        self._sink(StreamAttended(stream=queue) if attended else StreamUnattended(stream=queue))
