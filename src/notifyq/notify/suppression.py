"""Leases under which publishers skip NOTIFY, and which workers wake up for a single message.

A lease is an advisory lock of the listening session, so it ends with the session in any case. The
protocol is described in db/init/common/notify.sql.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.refusals import Refusals
from notifyq.errors import NotifyqError
from notifyq.telemetry import (
    QueueSuppressed,
    QueueUnsuppressed,
    StreamSuppressed,
    StreamUnsuppressed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.notify.session import Session
    from notifyq.telemetry import TelemetryHandler

log = logging.getLogger("notifyq.worker")

_BROKEN = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_FIRST_CHECK, _LAST_CHECK = 0.002, 1.0
"""Seconds between two checks on open publishers: the first pause, and the longest."""


class OpenPublishers:
    """Transactions that may have skipped NOTIFY for `queues` and may not have committed yet.

    All of them have a smaller transaction id than `xid`.
    """

    def __init__(self, queues: Iterable[str], xid: str | None) -> None:
        self.queues = set(queues)
        self._xid = xid
        self._check_in = _FIRST_CHECK
        self._check_at = 0.0

    @property
    def next_check(self) -> float:
        """Seconds to the next check; the pauses between checks grow."""
        return max(0.0, self._check_at - time.monotonic())

    async def have_ended(self, suppression: Suppression) -> bool:
        """Whether all of them are over, which means that one more poll finds their messages."""
        if self.next_check > 0:  # notifications may cause calls in between
            return False
        have_ended = False
        if self._xid is None:  # the server did not answer when this began
            self._xid = await suppression.query(sql.CURRENT_XACT_ID)
        else:
            have_ended = await suppression.query(sql.IS_TRANSACTION_OVER, self._xid) is True
        self._check_at = time.monotonic() + self._check_in
        self._check_in = min(2 * self._check_in, _LAST_CHECK)
        return have_ended


class Suppression:
    """The suppression leases and wake slots of a worker's listening session.

    `serve` runs beside the listener on its loop, everything else on the worker's; `on_session` is
    called there for each new session.
    """

    _suppress, _unsuppress = sql.SUPPRESS, sql.UNSUPPRESS

    def __init__(
        self, database: Database, telemetry: TelemetryHandler, on_session: Callable[[], None]
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._on_session = on_session
        self._home = self._loop = asyncio.get_running_loop()
        self._refusals = Refusals(log)
        self._renewed_for: Session | None = None
        self._identity: tuple[int, Any] | None = None
        self.session: Session | None = None
        """The session that has the leases; None where there is no session to hold any."""
        self.suppressed: set[str] = set()
        """Queues for which publishers skip NOTIFY."""
        self.wake_slots: dict[str, int] = {}
        """By queue: with a slot this worker wakes up for a single message."""
        self.publishers: OpenPublishers | None = None
        """Those to wait for before the last poll."""
        self.is_pooled = False
        """Whether a pooler lends the session, which therefore cannot hold leases."""

    async def serve(self, session: Session) -> None:
        """Lend the session to the worker for as long as it lasts."""
        if self._identity is not None:
            # The server may not have noticed that the session before is gone, and keep its leases.
            with self._refusals.noted("leases", "publishers always notify"):
                await session.fetch(sql.END_SESSION, *self._identity)
            self._identity = None
        self._loop = asyncio.get_running_loop()
        self.is_pooled = not await session.delivers()
        try:
            if not self.is_pooled:
                # Never of a pooler's session, which must not be ended: others work on it. With
                # keepalives the leases of a host that fails do not outlive it by two hours.
                with self._refusals.noted("leases", "publishers always notify"):
                    [row] = await session.fetch(sql.KEEP_ALIVE)
                    self._identity = (row["pid"], row["backend_start"])
                    self.session = session
            self._home.call_soon_threadsafe(self._on_session)
            await asyncio.Event().wait()
        finally:
            self.session = None

    async def renew(self, queues: Iterable[str]) -> bool:
        """Start over where there is a new session; true if there is."""
        if self.session is self._renewed_for or self.session is None:
            return False
        self._renewed_for = self.session
        self.suppressed.clear()
        self.wake_slots.clear()
        await self.await_publishers(queues)
        return True

    async def suppress(self, queue: str) -> bool | None:
        """Have publishers skip NOTIFY for a queue; answer as notifyq.suppress() does."""
        answer: bool | None = await self.call(self._suppress, queue)
        if answer is True:
            self.suppressed.add(queue)
            self._report(queue, is_suppressed=True)
        elif answer is None:
            await self.await_publishers([queue])
        return answer

    async def unsuppress(self, queues: list[str]) -> None:
        """Have publishers notify again; without an answer of the server the leases stay."""
        if not queues:
            return
        xid = await self.call(self._unsuppress, queues)
        if xid is not None:
            self.suppressed.difference_update(queues)
            await self.await_publishers(queues, xid)
            for queue in queues:
                self._report(queue, is_suppressed=False)

    async def take_wake_slots(self, queues: list[str]) -> set[str]:
        """Try for a wake slot in each of the queues; return those where all slots are taken."""
        slots = await self.call(sql.TAKE_WAKE_SLOTS, queues)
        if slots is None:
            return set()
        taken = {queue: s for queue, s in zip(queues, slots, strict=True) if s is not None}
        self.wake_slots |= taken
        return set(queues) - taken.keys()

    async def leave_wake_slots(self) -> None:
        """Give up all wake slots; the last worker to do that wakes the others."""
        if self.wake_slots:
            held = self.wake_slots
            await self.call(sql.LEAVE_WAKE_SLOTS, list(held), list(held.values()))
            held.clear()

    async def wake_all(self, queues: Iterable[str], *, always: bool = False) -> None:
        """Wake all workers of those queues that have messages waiting, or of all of them."""
        await self.query(sql.WAKE_ALL, list(queues), always)

    async def next_due(self, queues: Iterable[str], since: timedelta) -> timedelta | None:
        """How long until the next scheduled message is due; None: there is none, or no answer.

        What has become due since the last poll, which was `since` ago, counts too.
        """
        due: timedelta | None = await self.query(sql.NEXT_DUE, list(queues), since)
        return due

    async def rate_limit_wait(self, queues: Iterable[str], since: timedelta) -> timedelta | None:
        """How long until a rate of these queues allows a message; None: none has a rate.

        What was allowed since the last poll, which was `since` ago, counts too.
        """
        wait: timedelta | None = await self.query(sql.RATE_LIMIT_WAIT, list(queues), since)
        return wait

    async def await_publishers(self, queues: Iterable[str], xid: str | None = None) -> None:
        """Remember that publishers of these queues may have skipped NOTIFY until now."""
        before = self.publishers.queues if self.publishers is not None else set()
        # The later transaction id is the larger one, hence right for the queues of before too.
        xid = xid or await self.query(sql.CURRENT_XACT_ID)
        self.publishers = OpenPublishers(before | set(queues), xid)

    async def query(self, statement: str, *args: Any) -> Any:
        """The one value of a call on any session; None without an answer."""
        try:
            return await self._database.value(statement, *args)
        except (NotifyqError, asyncpg.PostgresError) as error:
            log.debug("a call about notifications failed: %s", error)
            return None

    async def call(self, statement: str, *args: Any) -> Any:
        """The one value of a call on the listening session; None without an answer."""
        session = self.session
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
            log.debug("a call about notifications failed: %s", error)
            return None
        except _BROKEN as error:
            # The call may have taken a lease that is not known here: it ends with the session.
            log.debug("a call about notifications was not answered: %s", error)
            with suppress(RuntimeError):  # the listener has ended
                self._loop.call_soon_threadsafe(session.abort)
            return None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None  # the listener's loop has ended
        return rows[0][0]

    def _report(self, queue: str, *, is_suppressed: bool) -> None:
        kind = QueueSuppressed if is_suppressed else QueueUnsuppressed
        self._telemetry(kind(queue=queue))


class StreamSuppression(Suppression):
    """The leases for streams; every subscriber wakes up for each notification, without slots."""

    _suppress, _unsuppress = sql.SUPPRESS_STREAM, sql.UNSUPPRESS_STREAMS

    async def take_wake_slots(self, queues: list[str]) -> set[str]:
        """Take no slot."""
        return set(queues)

    async def wake_all(self, queues: Iterable[str], *, always: bool = False) -> None:
        """Wake all subscribers of these streams."""
        await self.query(sql.NOTIFY_STREAMS, list(queues))

    async def next_due(self, queues: Iterable[str], since: timedelta) -> timedelta | None:
        """Leave what is due again to the poll."""
        return None

    def _report(self, queue: str, *, is_suppressed: bool) -> None:
        kind = StreamSuppressed if is_suppressed else StreamUnsuppressed
        self._telemetry(kind(stream=queue))
