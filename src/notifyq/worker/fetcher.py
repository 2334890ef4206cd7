"""Fetches messages for all queues of a worker, and finds those of claims whose answer was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from notifyq.database.refusals import Refusals, RefusedQueues, is_refusal
from notifyq.errors import DatabaseUnavailableError
from notifyq.notify.poller import Poll
from notifyq.telemetry import MessagesClaimed, OrphansReleased

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from notifyq.handlers.registry import Registry
    from notifyq.models.message import Message
    from notifyq.queues.claim_client import ClaimClient
    from notifyq.telemetry import Guarded
    from notifyq.worker.queue_order import QueueOrder

log = logging.getLogger("notifyq.worker")

_MOST = 10_000
"""The most that messages.claim() returns in one call."""
_SLOW = 0.05
"""Seconds that a full scan may take before it is made less often: dead rows slow it down."""
_DOUBT = 5.0
"""Seconds after a claim without an answer in which the server may still carry it out."""
_LAST_SEARCH = 2.0
"""Seconds that a worker that has stopped spends on a last search for such messages."""


class Fetcher:
    """Claims messages for one worker.

    `on_claimed` gets messages and when their claim was sent, in monotonic seconds; `known_ids`
    returns the ids that the worker has; `on_failure` gets an error that ends the worker.
    """

    def __init__(
        self,
        client: ClaimClient,
        registry: Registry,
        order: QueueOrder,
        *,
        on_claimed: Callable[[list[Message], float], None],
        known_ids: Callable[[], list[int]],
        on_failure: Callable[[BaseException], None],
        telemetry: Guarded,
    ) -> None:
        self._client = client
        self._registry = registry
        self._order = order
        self._on_claimed = on_claimed
        self._known_ids = known_ids
        self._on_failure = on_failure
        self._telemetry = telemetry
        self._recovery: asyncio.Timeout | None = None
        self._doubt_ends = 0.0
        self._full_scan_at = 0.0
        self._is_stopping = False
        self._is_loaded = True
        self._refusals = Refusals(log)
        self._refused = RefusedQueues(log)

    async def poll(self, room: int, notified_at: float | None, *, full_scan: bool = False) -> Poll:
        """Claim messages for up to `room` calls, from the queues in their order.

        `notified_at` is when the notification arrived that caused the poll, in monotonic seconds.
        The last poll before a sleep is a full scan of what is there, unless that is very slow.
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
            try:
                claimed = await self._claim(
                    queues,
                    min(left * batch, share or _MOST, _MOST),
                    lock_duration,
                    full_scan=full_scan,
                )
            except DatabaseUnavailableError as error:
                log.warning("claim failed: %s", error)
                self._doubt_ends = time.monotonic() + _DOUBT
                await self._recover()
                return Poll(frozenset(found), is_full=False, began=began, has_failed=True)
            except asyncio.CancelledError:
                self._doubt_ends = time.monotonic() + _DOUBT
                raise
            if claimed:
                left -= -(-len(claimed) // batch)
                found.update(message.queue for message in claimed)
                self._order.record(claimed)
                self._report(claimed, queues, notified_at)
                self._on_claimed(claimed, since)
        self._refused.check(self._order.size)
        if full_scan and (took := time.monotonic() - began) > _SLOW:
            self._full_scan_at = began + 10 * took
        self._is_loaded = left <= 0
        return Poll(frozenset(found), is_full=left <= 0, began=began)

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
            claimed = await self._client.claim(
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
        if self._recovery is not None:
            self._recovery.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Search a last time for messages of claims without an answer."""
        if self._doubt_ends > time.monotonic():
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_SEARCH):
                    await self._release_orphans()

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

    async def _recover(self) -> None:
        if self._is_stopping:
            return  # close() searches once more
        # The call is retried for minutes: a stop must not wait for that.
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._recovery:
                await self._release_orphans()
        self._recovery = None

    async def _release_orphans(self) -> None:
        """Release messages that were locked by a claim without an answer."""
        try:
            orphans = await self._client.release_orphans(self._known_ids())
        except Exception as error:  # noqa: BLE001  a refusal ends nothing
            if is_refusal(error):
                self._refusals.refused("what a claim may have locked", error, "its locks expire")
            else:
                self._on_failure(error)
            return
        if orphans:
            self._telemetry(OrphansReleased(quantity=orphans))
