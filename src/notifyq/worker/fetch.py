"""Claims messages: for all queues of a worker, and those of claims whose answer was lost."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.database import statements as sql
from notifyq.database.refusals import Refusals, RefusedQueues, is_refusal
from notifyq.database.retry import StoppableWait
from notifyq.errors import DatabaseUnavailableError
from notifyq.models.message import Message
from notifyq.models.outcome import Rejected
from notifyq.notify.wake import at_most
from notifyq.telemetry import Guarded, MessagesClaimed, OrphansReleased
from notifyq.worker.settle import Key, Settler
from notifyq.worker.wake import Poll

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.handlers.registry import Registry
    from notifyq.worker.queue_order import QueueOrder

log = logging.getLogger("notifyq.worker")

PATIENCE = 1.0
"""Seconds that a message may wait for a slot before other workers may have it."""
_MOST = 10_000
"""The most that messages.claim() returns in one call."""
_SLOW = 0.05
"""Seconds that a full scan may take before it is made less often: dead rows slow it down."""
_DOUBT = 5.0
"""Seconds after a claim without an answer in which the server may still carry it out."""
_LAST_SEARCH = 2.0
"""Seconds that a worker that has stopped spends on a last search for such messages."""
_WORK = 0.1
"""Seconds of work to prefetch: more than a claim takes, less than anybody would notice."""
_MOST_PREFETCHED = 1000
"""Most messages to prefetch, however fast they are: as many as one statement finishes."""
_WINDOW = 0.02
"""Least seconds that one measurement lasts."""


def process_name() -> str:
    """A unique name: messages that are locked under it and not known here are released."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


class Claims:
    """The claims of one worker, and the settler of its messages."""

    def __init__(self, database: Database, worker: str) -> None:
        self._database = database
        # Beside the pool: a claim does not wait for finishes, and uses what the claim before it has
        # left in the session.
        self._session = database.dedicated()
        self.worker = worker
        self.settler = Settler(database)

    async def claim(
        self,
        queues: Sequence[str],
        quantity: int,
        *,
        lock_duration: timedelta | None = None,
        filter: str | None = None,
        full_scan: bool = False,
        max_attempts: Sequence[int | None] | None = None,
        filters: Sequence[str | None] | None = None,
    ) -> list[Message]:
        """Lock up to `quantity` messages as messages.claim() does; fewer are all there are."""
        limits = max_attempts if any(max_attempts or ()) else None
        rows = await self._session.fetch(
            sql.CLAIM,
            queues,
            quantity,
            lock_duration,
            self.worker,
            filter,
            full_scan,
            limits,
            filters,
        )
        messages = []
        for row in rows:
            try:
                messages.append(Message.from_row(row, strict=True))
            except (ValueError, RecursionError) as error:
                # Headers that cannot be decoded must not harm the other messages.
                log.warning("message %d is rejected: %s", row["id"], error)
                reason = f"the headers cannot be decoded: {error}"
                await self.settler.settle(row["id"], row["lock_token"], Rejected(reason))
        if len(messages) < len(rows):
            # Otherwise fewer than `quantity` would mean that there are no more.
            messages += await self.claim(
                queues,
                len(rows) - len(messages),
                lock_duration=lock_duration,
                filter=filter,
                full_scan=full_scan,
                max_attempts=max_attempts,
                filters=filters,
            )
        return messages

    async def release_orphans(self, known: Sequence[int]) -> int:
        """Release messages that are locked for this worker and not `known`; return how many."""
        rows = await self._database.persist(sql.RELEASE_ORPHANS, self.worker, known)
        return int(rows[0][0])

    async def close(self) -> None:
        """Abandon settlements that are not written yet, and end the session."""
        await self.settler.close()
        await self._session.close()


class Prefetch:
    """Measures how fast messages are handled, hence how many to claim before slots are free."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Prefetch nothing until the next measurement, as after messages waited for too long."""
        self._quantity = 0
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._handled = 0
        self._spent = 0.0

    def handled(self, seconds: float) -> None:
        """Count a message whose handler ran for so long."""
        self._handled += 1
        self._spent += seconds

    def quantity(self) -> int:
        """How many messages the handlers finish in a moment; 0 if they are slow."""
        elapsed = time.monotonic() - self._began
        if elapsed < _WINDOW or (not self._handled and elapsed < PATIENCE):
            return self._quantity
        is_quick = self._spent <= _WORK * self._handled
        self._quantity = (
            min(_MOST_PREFETCHED, int(_WORK * self._handled / elapsed)) if is_quick else 0
        )
        self._begin()
        return self._quantity


class Fetcher:
    """Fetches messages for one worker; `held` are those that it has and has not settled."""

    def __init__(
        self,
        claims: Claims,
        registry: Registry,
        order: QueueOrder,
        held: Collection[Key],
        telemetry: Guarded,
    ) -> None:
        self._claims = claims
        self._registry = registry
        self._order = order
        self._held = held
        self._telemetry = telemetry
        self.poll = Poll(frozenset(), is_full=False, began=0)
        """What the last fetch has found."""
        # The search is retried for minutes: a stop must not wait for that.
        self._recovery = StoppableWait()
        self._doubt_ends = 0.0
        self._full_scan_at = 0.0
        self._is_stopping = False
        self._is_loaded = True
        self._refusals = Refusals(log)
        self._refused = RefusedQueues(log)

    async def fetch(
        self, room: int, notified_at: float | None, *, full_scan: bool = False
    ) -> AsyncIterator[tuple[float, list[Message]]]:
        """Claim messages for up to `room` calls, from the queues in their order.

        Gives the messages of each claim and, before them, when it was sent, in monotonic seconds.
        `notified_at` is when the notification arrived that caused the fetch. The last fetch before
        a sleep is a full scan of what is there, unless that is very slow.
        """
        began = time.monotonic()
        if self._doubt_ends > began:
            await self._release_orphans()
        full_scan = full_scan and began >= self._full_scan_at
        found: set[str] = set()
        left = min(room, _MOST)
        for lock_duration, batch, queues, share in self._requests(left):
            if left <= 0 or self._is_stopping:
                break
            since = time.monotonic()
            most = min(left * batch, share or _MOST, _MOST)
            try:
                claimed = await self._claim(queues, most, lock_duration, full_scan=full_scan)
            except DatabaseUnavailableError as error:
                log.warning("claim failed: %s", error)
                self._doubt_ends = time.monotonic() + _DOUBT
                await self._recovery.through(self._release_orphans)  # close() searches once more
                self.poll = Poll(frozenset(found), is_full=False, began=began, has_failed=True)
                return
            except asyncio.CancelledError:
                self._doubt_ends = time.monotonic() + _DOUBT
                raise
            if claimed:
                left -= -(-len(claimed) // batch)
                found.update(message.queue for message in claimed)
                self._order.record(claimed)
                self._report(claimed, queues, notified_at)
                yield since, claimed
        self._refused.check(self._order.size)
        if full_scan and (took := time.monotonic() - began) > _SLOW:
            self._full_scan_at = began + 10 * took
        self._is_loaded = left <= 0
        self.poll = Poll(frozenset(found), is_full=left <= 0, began=began)

    async def _claim(
        self,
        queues: list[str],
        quantity: int,
        lock_duration: timedelta | None,
        *,
        full_scan: bool,
    ) -> list[Message]:
        """Claim from queues; if the server refuses that, from each one, for those that it takes."""
        try:
            claimed = await self._claims.claim(
                queues,
                quantity,
                lock_duration=lock_duration,
                full_scan=full_scan,
                max_attempts=[self._registry[queue].policy.max_attempts for queue in queues],
            )
        except Exception as error:
            if not is_refusal(error):
                raise
            if len(queues) == 1:
                self._refused.refuse(queues[0], error)
                return []
        else:
            self._refused.works(queues)
            return claimed
        claimed = []
        for queue in queues:
            if (left := quantity - len(claimed)) > 0:
                claimed += await self._claim([queue], left, lock_duration, full_scan=full_scan)
        return claimed

    @property
    def retry_in(self) -> float:
        """Seconds until the next try of a queue that the server has refused; or infinite."""
        return self._refused.retry_in

    def _report(self, claimed: list[Message], queues: list[str], notified_at: float | None) -> None:
        if self._telemetry.wants(MessagesClaimed):
            since = None if notified_at is None else time.monotonic() - notified_at
            self._telemetry(
                MessagesClaimed(
                    quantity=len(claimed),
                    queues=tuple(queues),
                    by_queue=dict(Counter(message.queue for message in claimed)),
                    since_notification=since,
                )
            )

    def stop(self) -> None:
        """Claim nothing more, and stop waiting for a server that is away."""
        self._is_stopping = True
        self._recovery.stop()

    async def close(self) -> None:
        """Search a last time for messages of claims without an answer."""
        if self._doubt_ends > time.monotonic():
            await at_most(_LAST_SEARCH, self._release_orphans())

    def _requests(self, room: int) -> list[tuple[timedelta | None, int, list[str], int | None]]:
        return [
            (lock_duration, batch, group, share)
            for queues, share in self._order.requests(room, is_loaded=self._is_loaded)
            for lock_duration, batch, group in self._groups(queues)
        ]

    def _groups(self, order: list[str]) -> list[tuple[timedelta | None, int, list[str]]]:
        """Queues that can share a claim; a queue with batches has its own."""
        groups: dict[tuple[timedelta | None, str, int], list[str]] = {}
        part = 0
        for queue in order:
            handler = self._registry[queue]
            if self._refused.is_resting(queue):
                continue
            alone = queue if handler.batch or queue in self._refused else ""
            if self._order.is_kept and (handler.lock_duration, alone, part) not in groups:
                part += 1  # a group ends: its claim must not name a queue that stands after others
            groups.setdefault((handler.lock_duration, alone, part), []).append(queue)
        return [
            (lock_duration, self._registry[queues[0]].batch or 1, queues)
            for (lock_duration, *_), queues in groups.items()
        ]

    async def _release_orphans(self) -> None:
        """Release messages that were locked by a claim without an answer."""
        with self._refusals.noted("what a claim may have locked", "its locks expire"):
            orphans = await self._claims.release_orphans([id_ for id_, _token in self._held])
            if orphans:
                self._telemetry(OrphansReleased(quantity=orphans))
