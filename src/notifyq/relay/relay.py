"""The relay of queues: claim at the source, send to the target, finish at the source."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.refusals import Refusals, concerns_all, is_refusal
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.notify.listener import Listener
from notifyq.notify.poller import Poll, Poller
from notifyq.notify.suppression import Suppression
from notifyq.notify.wake import TokenBucket
from notifyq.printable import in_line
from notifyq.relay.base import BaseRelay, log
from notifyq.relay.batch import QueueBatch
from notifyq.relay.message import transform
from notifyq.relay.target import PASSING
from notifyq.telemetry.tracebacks import clean, describe, report
from notifyq.worker.maintenance import Maintenance

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from notifyq.config import RelaySettings
    from notifyq.database.pool import Database
    from notifyq.notify.session import Session
    from notifyq.relay.base import RelayOptions
    from notifyq.relay.target import Sent

_TICK = 0.25
"""Seconds between two checks which locks to extend."""
_FIRST = 100
"""Messages of the first claim; later claims double it while messages are small."""
_LARGEST = 8_000_000
"""Characters that a claim may return, estimated by the claim before."""


class Relay(BaseRelay):
    """Moves messages of queues of `source` into queues of `target`, each once.

    `routes` maps queues of the source to queues of the target. `run()` returns after `stop()`:
    running batches may finish within the grace, then they are released; a second `stop()` releases
    them at once. With `once` it also returns when no message is left. A relay runs once; any number
    of relays may run at the same time.
    """

    def __init__(
        self,
        source: Database,
        target: Database,
        routes: Mapping[str, str],
        *,
        filter: str | None = None,
        **options: Unpack[RelayOptions],
    ) -> None:
        if not routes:
            raise ConfigurationError("a relay needs at least one queue: {'orders': 'orders'}")
        labels = [f"{queue}:{other}" for queue, other in routes.items()]
        super().__init__(source, target, labels, **options)
        self._routes = dict(routes)
        self._batches: dict[QueueBatch, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._fetcher = _Fetcher(source, self._routes, self._settings, self.name, filter)
        self._recovery: asyncio.Timeout | None = None
        self._refusals = Refusals(log)

    def _on_stop(self) -> None:
        if self._recovery is not None:
            self._recovery.reschedule(asyncio.get_running_loop().time())
        if self._stops > 1:
            self._cancel()

    def _make_listener(self) -> Listener:
        suppression = Suppression(self._source, self._telemetry, on_session=self._wake.set)
        self._poller = Poller(
            suppression, list(self._routes), poll=self._settings.poll.total_seconds()
        )
        return Listener(
            self._source,
            [sql.NEW_MESSAGE],
            self._on_notification,
            name="notifyq relay",
            services=[self._extend, suppression.serve],
            telemetry=self._telemetry,
        )

    async def _serve(self) -> None:
        self._listener.failed.add_done_callback(self._ended)
        self._spawn(Maintenance(self._source, 1.0, self._telemetry).serve())
        try:
            await self._move_until_stopped()
        finally:
            try:
                await self._drain()
            finally:
                for task in list(self._tasks):
                    task.cancel()
                if self._tasks:
                    await asyncio.wait(set(self._tasks))
                await self._poller.close()
                await self._fetcher.close()

    async def _move_until_stopped(self) -> None:
        empty_polls = TokenBucket()
        while not self._stops:
            # Clear first: a notification during the fetch causes another one.
            is_notified = self._wake.is_set()
            self._wake.clear()
            if self._free_slots > 0:
                poll = await self._fetch(full_scan=self._poller.needs_full_scan or self._once)
                await self._poller.record(poll)
                if poll.is_full:
                    continue
                if self._once and not poll.queues and not poll.has_failed and not self._batches:
                    return
                if is_notified and not poll.queues and (pause := empty_polls.spend()) > 0:
                    await asyncio.sleep(pause)
            slots = self._free_slots
            seconds = await self._poller.pause(slots)
            if seconds > 0 and slots > 0:
                seconds = min(seconds, await self._poller.rate_limit_wait())
            if seconds > 0 and not self._stops:
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._wake.wait()

    @property
    def _free_slots(self) -> int:
        return 0 if self._is_stalled else self._settings.in_flight - len(self._batches)

    async def _fetch(self, *, full_scan: bool) -> Poll:
        """Claim a batch and start to move it."""
        began = time.monotonic()
        try:
            poll, batch = await self._fetcher.claim(full_scan=full_scan)
        except DatabaseUnavailableError as error:
            log.warning("claim failed: %s", error)
            await self._release_orphans()
            return Poll(frozenset(), is_full=False, began=began, has_failed=True)
        except Exception as error:
            if self._once or not is_refusal(error) or concerns_all(error):
                raise
            self._refusals.refused("the source", error, "it is tried again")
            return Poll(frozenset(), is_full=False, began=began, has_failed=True)
        self._refusals.works("the source")
        if batch is not None:
            self._batches[batch] = self._spawn(self._move(batch))
        return poll

    async def _release_orphans(self) -> None:
        """After a claim without an answer: release the messages that it may have locked."""
        if self._stops:
            return
        known = [i for batch in list(self._batches) for i in batch.ids]
        # The call is retried for minutes; a stop must not wait for it.
        try:
            async with asyncio.timeout(None) as self._recovery:
                await self._source.persist(sql.RELEASE_ORPHANS, self.name, known)
        except TimeoutError:
            log.debug("the relay stops before it has released what its last claim may have locked")
        finally:
            self._recovery = None

    async def _move(self, batch: QueueBatch) -> None:
        try:
            if self._transform is not None:
                await transform(self._transform, batch)
            hold = 0 if self._stops or self._is_stalled else self._settings.hold.total_seconds()
            sent = await self._target.send(batch.items(), hold)
            if sent.error is not None:
                # Before any release: a released message would be claimed again at once.
                self._pause_or_fail(sent.error)
            await self._settle(batch, sent)
        except asyncio.CancelledError:
            await self._release(batch, range(len(batch)))
            raise
        finally:
            del self._batches[batch]
            self._wake.set()

    def _pause_or_fail(self, error: Exception) -> None:
        """Wait for a target that cannot receive messages now; end with any other error."""
        if not isinstance(error, PASSING):
            self._fail(error)
        elif not self._is_stalled and not self._stops:
            self._fetcher.slow_down()
            self._is_stalled = True
            self._spawn(self._wait_for_target(error))

    async def _settle(self, batch: QueueBatch, sent: Sent) -> None:
        """Finish, retry or release each message of a batch."""
        endings = batch.endings(sent)
        held = 0
        if endings.settled:
            # A position that the target has received now; known messages have an older receipt.
            position = next(reversed(sent.ids), None)
            columns = [list(column) for column in zip(*endings.settled, strict=True)]
            held = len(
                await self._source.persist(sql.RELAY_FINISH, *self._names, position, *columns)
            )
        if batch.failed:
            await self._retry(batch)
        if endings.unsent:
            await self._release(batch, endings.unsent)
        for message_id, reason in endings.refused:
            self._note_refused(batch.source, message_id, reason)
        if not endings.settled and not batch.failed:
            self.counts.update(known=sent.known, merged=sent.merged)
            return
        took = time.monotonic() - batch.since
        self._note_moved(
            batch.source,
            len(endings.settled) - endings.dropped - len(endings.refused),
            sent,
            lag=batch.age + took,
            took=took,
            dropped=endings.dropped,
            failed=len(batch.failed),
            refused=len(endings.refused),
            lost=len(endings.settled) - held,
        )

    async def _release(self, batch: QueueBatch, indexes: Iterable[int]) -> None:
        """Release messages of a batch; the claim does not count as an attempt."""
        chosen = list(indexes)
        rows = await self._source.persist(
            sql.RELEASE_MANY, [batch.ids[i] for i in chosen], [batch.tokens[i] for i in chosen]
        )
        self.counts["released"] += len(rows)

    async def _retry(self, batch: QueueBatch) -> None:
        most = self._settings.attempts
        storable = self._source.storable
        errors = list(batch.failed.values())
        reports = [report(error) for error in errors]
        for index, error in zip(batch.failed, reports, strict=True):
            log.warning(
                "queue %r: the transformation failed on message %d in attempt %d of %d: %s",
                batch.source, batch.ids[index], batch.attempts(index), most,
                in_line(f"{error.type}: {error.text}"),
            )  # fmt: skip
        await self._source.persist(
            sql.RETRY_MANY,
            [batch.ids[index] for index in batch.failed],
            [batch.tokens[index] for index in batch.failed],
            None,
            [
                storable(clean(f"the transformation of the relay failed: {describe(it)}"))
                for it in errors
            ],
            None,
            [storable(it.type) for it in reports],
            [storable(it.text) for it in reports],
            [it.traceback and storable(it.traceback) for it in reports],
            [batch.attempts(index) >= most for index in batch.failed],
        )

    async def _extend(self, session: Session) -> None:
        """Extend the locks of running batches, without end; on the listener's loop."""
        while True:
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            for batch in list(self._batches):
                if batch.extend_at <= now:
                    batch.extend_at = now + batch.seconds / 3
                    with self._refusals.noted("extending locks", "they expire"):
                        await session.fetch(
                            sql.EXTEND_MANY, batch.ids, batch.tokens, self._settings.lock_duration
                        )

    def _on_notification(self, _channel: str, payload: str) -> None:
        queue, _, ids = payload.rpartition(":")
        if not queue or (queue in self._routes and self._poller.answers(queue, ids)):
            self._wake.set()

    async def _drain(self) -> None:
        moving = set(self._batches.values())
        if moving and self._stops < 2:
            await asyncio.wait(moving, timeout=self._settings.grace.total_seconds())
        if moving:
            self._cancel()
            await asyncio.wait(moving)
        for batch in list(self._batches):  # cancelled before they had started
            await self._release(batch, range(len(batch)))

    def _cancel(self) -> None:
        for task in self._batches.values():
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task beside the claims; its error ends the relay."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Stop because of an error; `run()` raises it."""
        if self._failure is None:
            self._failure = error
            self._stops += 1
            self._wake.set()


class _Fetcher:
    """Claims batches of limited size."""

    def __init__(
        self,
        source: Database,
        routes: Mapping[str, str],
        settings: RelaySettings,
        name: str,
        filter: str | None,
    ) -> None:
        # One session: functions keep values there for the next claim.
        self._claims = source.dedicated()
        self._routes = routes
        self._settings = settings
        self._name = name
        self._filter = filter
        self._quantity = min(_FIRST, settings.batch)

    def slow_down(self) -> None:
        """Claim few messages next: how many the target can receive is unknown."""
        self._quantity = 1

    async def claim(self, *, full_scan: bool) -> tuple[Poll, QueueBatch | None]:
        """Claim a batch, if there are messages."""
        since = time.monotonic()
        quantity = self._quantity
        lock_duration = self._settings.lock_duration
        args = quantity, lock_duration, self._name, self._filter, full_scan
        try:
            [row] = await self._claims.fetch(sql.RELAY_CLAIM, list(self._routes), *args)
        except asyncpg.ProgramLimitExceededError:
            if quantity == 1:
                raise
            self._quantity = max(1, quantity // 8)  # the answer was too large
            return Poll(frozenset(), is_full=True, began=since), None
        if row["ids"] is None:
            return Poll(frozenset(), is_full=False, began=since), None
        batch = QueueBatch(row, self._routes, since, lock_duration.total_seconds())
        mean = max(1, batch.size // len(batch))
        self._quantity = max(1, min(2 * quantity, self._settings.batch, _LARGEST // mean))
        return Poll(batch.queues, is_full=len(batch) == quantity, began=since), batch

    async def close(self) -> None:
        """Close the session."""
        await self._claims.close()
