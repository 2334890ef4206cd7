"""When to poll: after a notification, under load all the time, and what publishers skip meanwhile.

Under load a worker suppresses the notifications of its queues and polls every few milliseconds.
Before it sleeps it ends the suppression, waits until the publishers that skipped NOTIFY are over,
and polls once more. Of many idle workers only a few answer a notification for a single message.

The leases for that are advisory locks of the listening session, so they end with the session in any
case. The protocol is described in db/init/common/notify.sql.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.refusals import Refusals
from notifyq.errors import NotifyqError
from notifyq.notify.wake import TokenBucket, call_on, due_in
from notifyq.telemetry import QueueSuppressed, QueueUnsuppressed, TelemetryHandler

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.notify.session import Session

log = logging.getLogger("notifyq.worker")

_LOADED = 5
"""Polls in a row that found messages: then a queue is suppressed, if its publishers contend."""
_NOTIFICATIONS, _NOTIFICATIONS_RATE = 30, 300.0
"""Notifications of a queue, at once and per second: if there are more, to poll every few
milliseconds costs less, also where publishers do not contend."""
_LULL = 0.05
"""Seconds without a message that end such a row."""
_LINGER = 0.2
"""Seconds without a message that end the suppression of a queue."""
_POLL_EVERY = 0.003
"""Seconds between two polls of suppressed queues that are empty; it grows with that time."""
_WAKE_EVERY = 0.1
"""Seconds between two calls for other workers while this one cannot take everything."""
_STUCK = 1.0
"""Seconds without a free slot after which a worker leaves its queues to others."""
_BUSY = 0.02
"""Seconds without a free slot after which a worker does not answer notifications."""
_AT_ONCE = 0.0
"""Seconds to wait before a poll that must not be left out."""
_RETRY_SUPPRESS, _RETRY_WAKE_SLOTS = 0.2, 1.0
"""Seconds before the next try for what was refused."""
_LONGEST_RETRY = 60.0
"""Seconds to the next try where a publisher's transaction stays open."""
_TOKENS_EVERY = 0.01
"""Least seconds between two polls for what a rate allows: more gathers meanwhile."""
_NO_RATE = 5.0
"""Seconds after which to see whether queues without a rate have got one."""
_MOST_QUEUES = 16
"""Session locks live in shared memory: a worker of a thousand queues must not fill it."""
_BROKEN = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)
_FIRST_CHECK, _LAST_CHECK = 0.002, 1.0
"""Seconds between two checks on open publishers: the first pause, and the longest."""


@dataclass(slots=True)
class _Load:
    """How busy one queue is."""

    polls: int = 0
    notifications: TokenBucket = field(
        default_factory=partial(TokenBucket, _NOTIFICATIONS, _NOTIFICATIONS_RATE)
    )
    has_many: bool = False
    """Whether notifications come faster than that."""
    empty_since: float | None = None
    retry_at: float = 0
    retry_in: float = _RETRY_SUPPRESS

    def lull(self, now: float) -> float:
        """Seconds since it was found empty."""
        return 0 if self.empty_since is None else now - self.empty_since


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll of all queues has found; `is_full` means that there may be more."""

    queues: frozenset[str]
    is_full: bool
    began: float
    """In monotonic seconds: what was due by then was found."""
    has_failed: bool = False


class Poller:
    """Decides, after each poll of a worker, what to suppress and how long to wait."""

    def __init__(self, suppression: Suppression, queues: Sequence[str], *, poll: float) -> None:
        self._suppression = suppression
        self._queues = frozenset(queues)
        self._poll = poll
        self._loads: dict[str, _Load] = {}
        self._suppressing: asyncio.Task[None] | None = None
        self._without_slot: set[str] = set()
        """Queues whose wake slots are all taken by other workers."""
        self._woken: set[str] = set()
        """Queues for which all workers were woken."""
        self._take_slots_at = 0.0
        self._query_rate_at = 0.0
        self._wake_all_at = 0.0
        self._full_since: float | None = None
        self._empty_polls = 0
        self._full_scan_after = 0
        self._has_failed = False
        self._polled_at = 0.0
        self._due_at: float | None = None
        self._query_due_at = 0.0

    def notified(self, queue: str) -> None:
        """Count a notification of a queue."""
        if (load := self._loads.get(queue)) is not None:
            load.has_many = load.notifications.spend() > 0

    def answers(self, queue: str, ids: str) -> bool:
        """Whether this worker polls after a notification of a queue; without ids all workers do."""
        if not ids:
            self._woken.add(queue)
            # Perhaps no worker is left that has a wake slot.
            self._without_slot.discard(queue)
            self._take_slots_at = 0
        return queue not in self._without_slot or not ids.isdecimal()

    @property
    def needs_full_scan(self) -> bool:
        """Whether messages may be there without a notification: the next poll must find them."""
        return self._full_scan_after == self._empty_polls

    async def record(self, poll: Poll) -> None:
        """Learn what a poll has found, and suppress notifications of queues under load."""
        now = time.monotonic()
        self._has_failed = poll.has_failed
        self._polled_at = poll.began
        self._full_since = None
        for queue in poll.queues:
            load = self._loads.setdefault(queue, _Load())
            load.polls = 1 if load.lull(now) > _LULL else load.polls + 1
            load.empty_since = None if poll.is_full else now
        if poll.is_full:
            await self._wake_others(now)
        elif not poll.has_failed:
            self._empty_polls += 1
            if not poll.queues:
                self._query_due_at = 0  # the notification may be for what is due in a moment
            for queue, load in self._loads.items():
                if queue not in poll.queues and load.empty_since is None:
                    load.empty_since = now
        self._suppress(now)

    async def pause(self, room: int) -> float:
        """Adjust the leases of a worker that can claim nothing now; return how long to wait."""
        if self._suppression.session is None:
            return await self._until_due() if room > 0 else self._poll
        if await self._suppression.renew(self._queues):
            self._without_slot.clear()
            self._take_slots_at = 0
        now = time.monotonic()
        if room <= 0:
            return await self._pause_full(now)
        # Only with room: where all workers are full they would wake each other without end.
        if self._woken:
            woken, self._woken = self._woken, set()
            await self._suppression.await_publishers(woken)
        lulls = {queue: self._lull(queue, now) for queue in self._suppression.suppressed}
        await self._suppression.unsuppress([q for q, lull in lulls.items() if lull >= _LINGER])
        if self._suppression.suppressed or self._suppressing is not None:
            return max(_POLL_EVERY, min(lulls.values(), default=0) / 8)
        if now >= self._take_slots_at:
            await self._take_wake_slots(now)
        seconds = await self._before_sleep()
        return seconds if seconds == _AT_ONCE else min(seconds, await self._until_due())

    async def rate_limit_wait(self) -> float:
        """Seconds until a rate allows a message again; infinite where no queue has a rate."""
        now = time.monotonic()
        if now < self._query_rate_at:
            return math.inf
        query = partial(self._suppression.rate_limit_wait, self._queues)
        seconds = await due_in(self._polled_at, query)
        if seconds is None:
            self._query_rate_at = now + _NO_RATE
            return math.inf
        return max(_TOKENS_EVERY, seconds)

    async def close(self) -> None:
        """End all leases, and leave messages of open publishers to the other workers."""
        if self._suppressing is not None:
            await asyncio.wait({self._suppressing})
        await self._suppression.unsuppress(list(self._suppression.suppressed))
        await self._suppression.leave_wake_slots()
        if publishers := self._suppression.publishers:
            await self._suppression.wake_all(publishers.queues, always=True)

    async def _before_sleep(self) -> float:
        if publishers := self._suppression.publishers:
            if not await publishers.have_ended(self._suppression):
                return publishers.next_check
            self._suppression.publishers = None
            self._full_scan_after = self._empty_polls
        return _AT_ONCE if self.needs_full_scan and not self._has_failed else self._poll

    async def _until_due(self) -> float:
        """Seconds until something may be due, or the poll."""
        now = time.monotonic()
        if now >= self._query_due_at:
            self._query_due_at = now + self._poll
            query = partial(self._suppression.next_due, self._queues)
            seconds = await due_in(self._polled_at, query)
            self._due_at = None if seconds is None else time.monotonic() + seconds
        if self._due_at is None:
            return self._poll
        return min(self._poll, max(_POLL_EVERY, self._due_at - time.monotonic()))

    def _lull(self, queue: str, now: float) -> float:
        return self._loads[queue].lull(now) if queue in self._loads else _LINGER

    async def _pause_full(self, now: float) -> float:
        suppression = self._suppression
        if self._full_since is None:
            self._full_since = now
        full_for = now - self._full_since
        if full_for >= _BUSY and suppression.wake_slots:
            await suppression.leave_wake_slots()
            self._take_slots_at = 0
        if full_for >= _STUCK:
            await suppression.unsuppress(list(suppression.suppressed))
        if suppression.suppressed:
            await self._wake_others(now)
            return _WAKE_EVERY
        seconds = await self._before_sleep()
        if seconds == _AT_ONCE:
            # There is no room for the poll that is due: other workers must make it.
            await suppression.wake_all(self._queues)
            self._empty_polls += 1
        return min(seconds, _BUSY if suppression.wake_slots else self._poll)

    def _suppress(self, now: float) -> None:
        for queue, load in list(self._loads.items()):
            if queue in self._suppression.suppressed:
                continue
            if self._suppressing is None and load.polls >= _LOADED and now >= load.retry_at:
                load.retry_at = now + load.retry_in
                if len(self._suppression.suppressed) < _MOST_QUEUES:
                    # Beside the claims, since publishers that notify may delay it.
                    self._suppressing = asyncio.create_task(self._try_to_suppress(queue, load))
            elif load.lull(now) > _LINGER:
                del self._loads[queue]

    async def _try_to_suppress(self, queue: str, load: _Load) -> None:
        try:
            answer = await self._suppression.suppress(queue, eager=load.has_many)
            # During an unsuccessful try publishers skip NOTIFY, for as long as it lasts.
            is_over = answer is not None
            load.retry_in = _RETRY_SUPPRESS if is_over else min(2 * load.retry_in, _LONGEST_RETRY)
        finally:
            self._suppressing = None

    async def _wake_others(self, now: float) -> None:
        if self._suppression.suppressed and now >= self._wake_all_at:
            await self._suppression.wake_all(self._suppression.suppressed)
            # Old snapshots can make this slow: it must take a small part of the time only.
            self._wake_all_at = now + max(_WAKE_EVERY, 10 * (time.monotonic() - now))

    async def _take_wake_slots(self, now: float) -> None:
        """Try for a wake slot in each queue."""
        self._take_slots_at = now + _RETRY_WAKE_SLOTS
        missing = [queue for queue in self._queues if queue not in self._suppression.wake_slots]
        if not missing or len(self._queues) > _MOST_QUEUES:
            return
        self._without_slot = await self._suppression.take_wake_slots(missing)
        if len(self._without_slot) < len(missing):
            # Perhaps no worker answered the notifications before this one had its slot.
            self._full_scan_after = self._empty_polls


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

    async def suppress(self, queue: str, *, eager: bool) -> bool | None:
        """Have publishers skip NOTIFY for a queue; arguments and answer of notifyq.suppress()."""
        answer: bool | None = await self.call(self._suppress, queue, eager)
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
            call_on(self._loop, session.abort)
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
