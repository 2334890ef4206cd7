"""The claims of a worker over all of its queues, and the search for those whose answer was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from notifyq.errors import DatabaseUnavailableError
from notifyq.notify.poller import Poll
from notifyq.telemetry import MessagesClaimed, OrphansReleased

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from notifyq.handlers.registry import Registry
    from notifyq.models.message import Message
    from notifyq.queues.claim_client import ClaimClient
    from notifyq.telemetry import Guarded

log = logging.getLogger("notifyq.worker")

Take = Callable[["list[Message]", float], None]
"""Is given messages that were claimed, and when the claim was sent in monotonic seconds."""

_MOST = 10_000
"""What messages.claim() hands out in one call."""
_SLOW = 0.05
"""Seconds of a thorough look from which on it is made more rarely: many dead rows lie before it."""
_DOUBT = 5.0
"""Seconds after a claim without an answer in which the server may still carry it out."""
_FAREWELL = 2.0
"""Seconds that a worker that has stopped spends on looking for them a last time."""


class Fetcher:
    """Claims for one worker.

    `take` is called with what came, `known` tells which ids the worker has, and `on_failure` is
    called with an error after which it cannot go on.
    """

    def __init__(
        self,
        inbox: ClaimClient,
        registry: Registry,
        queues: Sequence[str],
        *,
        take: Take,
        known: Callable[[], list[int]],
        on_failure: Callable[[BaseException], None],
        sink: Guarded,
    ) -> None:
        self._inbox = inbox
        self._registry = registry
        self._queues = list(queues)
        self._take = take
        self._known = known
        self._on_failure = on_failure
        self._sink = sink
        self._recovery: asyncio.Timeout | None = None
        self._doubt_ends = 0.0
        self._thorough_at = 0.0
        self._is_stopping = False

    async def look(self, room: int, rung_at: float | None, *, is_last: bool = False) -> Poll:
        """Claim messages for up to `room` calls; each queue has its turn at being the first.

        `rung_at` is when the bell rang that called for it, in monotonic seconds.
        The last look before a sleep goes through all that is there, unless that is very slow.
        """
        began = time.monotonic()
        if self._doubt_ends > began:
            await self._release_orphans()
        is_thorough = is_last and began >= self._thorough_at
        found: set[str] = set()
        left = min(room, _MOST)
        for lock_timeout, batch, queues in self._groups():
            if left <= 0 or self._is_stopping:
                break
            most = min(left * batch, _MOST)
            since = time.monotonic()
            try:
                claimed = await self._inbox.claim(
                    queues,
                    most,
                    lock_timeout=lock_timeout,
                    thorough=is_thorough,
                    max_attempts=[self._registry[queue].policy.max_attempts for queue in queues],
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
                self._report(claimed, queues, rung_at)
                self._take(claimed, since)
        if is_thorough and (took := time.monotonic() - began) > _SLOW:
            self._thorough_at = began + 10 * took
        self._queues.append(self._queues.pop(0))
        return Poll(frozenset(found), is_full=left <= 0, began=began)

    def _report(self, claimed: list[Message], queues: list[str], rung_at: float | None) -> None:
        if self._sink.hears(MessagesClaimed):
            self._sink(
                MessagesClaimed(
                    quantity=len(claimed),
                    queues=tuple(queues),
                    by_queue=dict(Counter(message.queue for message in claimed)),
                    since_bell=None if rung_at is None else time.monotonic() - rung_at,
                )
            )

    def stop(self) -> None:
        """Claim no more, and wait no longer for a server that is gone."""
        self._is_stopping = True
        if self._recovery is not None:
            self._recovery.reschedule(asyncio.get_running_loop().time())

    async def close(self) -> None:
        """Look a last time for messages that were claimed unheard."""
        if self._doubt_ends > time.monotonic():
            with suppress(TimeoutError):
                async with asyncio.timeout(_FAREWELL):
                    await self._release_orphans()

    def _groups(self) -> list[tuple[timedelta | None, int, list[str]]]:
        """Queues that one claim can be for; those of batches each have one of their own."""
        groups: dict[tuple[timedelta | None, str], list[str]] = {}
        for queue in self._queues:
            handler = self._registry[queue]
            alone = queue if handler.batch else ""
            groups.setdefault((handler.lock_timeout, alone), []).append(queue)
        return [
            (lock_timeout, self._registry[queues[0]].batch or 1, queues)
            for (lock_timeout, _), queues in groups.items()
        ]

    async def _recover(self) -> None:
        if self._is_stopping:
            return  # close() looks once more
        # The call is tried again for minutes; a stop must not wait for that.
        with suppress(TimeoutError):
            async with asyncio.timeout(None) as self._recovery:
                await self._release_orphans()
        self._recovery = None

    async def _release_orphans(self) -> None:
        """After a claim without an answer: it may have locked messages that nobody knows of."""
        try:
            orphans = await self._inbox.release_orphans(self._known())
        except DatabaseUnavailableError as gone:
            self._on_failure(gone)
            return
        if orphans:
            self._sink(OrphansReleased(quantity=orphans))
