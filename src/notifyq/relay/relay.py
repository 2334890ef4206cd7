"""The relay of queues: claim at the source, send to the target, finish at the source."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import asyncpg

from notifyq.config import RelaySettings
from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import (
    PAUSE,
    RefusedQueues,
    halving,
    is_limited,
    is_refusal,
)
from notifyq.database.retry import StoppableWait
from notifyq.errors import ConfigurationError, DatabaseUnavailableError
from notifyq.notify.listener import Listener
from notifyq.notify.session import Session
from notifyq.notify.wake import TokenBucket, at_most
from notifyq.printable import in_line
from notifyq.queues.admin import copy_queues
from notifyq.relay.base import DatabaseRelay, log
from notifyq.relay.batch import QueueBatch
from notifyq.relay.message import transform
from notifyq.relay.target import WAITS, Target
from notifyq.telemetry.tracebacks import clean, describe, report
from notifyq.worker.maintenance import Maintenance
from notifyq.worker.wake import Poll, Poller, Suppression

if TYPE_CHECKING:
    from notifyq.relay.base import RelayOptions
    from notifyq.relay.target import Sent

    _Call: TypeAlias = Callable[..., Awaitable[list[asyncpg.Record]]]

_TICK = 0.25
"""Seconds between two checks which locks to extend."""
_FIRST = 100
"""Messages of the first claim; later claims double it while messages are small."""
_LARGEST = 8_000_000
"""Characters that a claim may return, estimated by the claim before."""


class Relay(DatabaseRelay):
    """Moves messages of queues of `source` into queues of `target`, each once.

    `routes` maps queues of the source to queues of the target. `run()` returns after `stop()`:
    running batches may finish within the grace, then they are released; a second `stop()` releases
    them at once. With `once` it also returns when no message is left. With `create_queues` it makes
    queues that the target lacks, with the policy of those at the source. A relay runs once; any
    number of relays may run at the same time.
    """

    def __init__(
        self,
        source: Database,
        target: Database,
        routes: Mapping[str, str],
        *,
        filter: str | None = None,
        create_queues: bool = False,
        accept_restored: bool = False,
        **options: Unpack[RelayOptions],
    ) -> None:
        if not routes:
            raise ConfigurationError("a relay needs at least one queue: {'orders': 'orders'}")
        labels = [f"{queue}:{other}" for queue, other in routes.items()]
        super().__init__(source, target, labels, accept_restored=accept_restored, **options)
        self._creates_queues = create_queues
        self._routes = dict(routes)
        self._batches: dict[QueueBatch, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # With once only a target that cannot receive now is tried again: else the error ends it.
        self._refused = RefusedQueues(log, math.inf if self._once else PAUSE, self._resume)
        self._fetcher = _Fetcher(
            source, self._routes, self._settings, self.name, filter, self._refused, self._start
        )
        # The search is retried for minutes: a stop must not wait for that.
        self._recovery = StoppableWait()

    def _on_stop(self) -> None:
        self._recovery.stop()
        if self._stops > 1:
            self._cancel()

    async def _target_of(self, database: Database) -> Target:
        target = await super()._target_of(database)
        if self._creates_queues:
            # With its shares and limits, or not at all.
            async with database.transaction() as there:
                created = await copy_queues(self._source, there, self._routes)
            for name in created:
                log.info("created queue %r at the target", name)
        return target

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
                if self._once and self._is_done(poll):
                    return
                if is_notified and not poll.queues and (pause := empty_polls.spend()) > 0:
                    await asyncio.sleep(pause)
            slots = self._free_slots
            seconds = await self._poller.pause(slots)
            if seconds > 0 and slots > 0:
                wait = await self._poller.rate_limit_wait()
                seconds = min(seconds, self._refused.retry_in, wait)
            if seconds > 0 and not self._stops:
                await at_most(seconds, self._wake.wait())

    def _is_done(self, poll: Poll) -> bool:
        """Whether nothing is left to move; raises why a queue is refused."""
        is_waiting = poll.queues or poll.has_failed or self._batches
        if is_waiting or self._refused.retry_in < math.inf:
            return False
        self._refused.raise_any()
        return True

    @property
    def _free_slots(self) -> int:
        return 0 if None in self._stalled else self._settings.in_flight - len(self._batches)

    async def _fetch(self, *, full_scan: bool) -> Poll:
        """Claim batches and start to move them."""
        began = time.monotonic()
        try:
            poll = await self._fetcher.claim(self._free_slots, full_scan=full_scan)
        except DatabaseUnavailableError as error:
            log.warning("claim failed: %s", error)
            if not await self._recovery.through(self._release_orphans):
                log.debug("the relay stops: the locks of its last claim expire")
            return Poll(frozenset(), is_full=False, began=began, has_failed=True)
        if not poll.queues:
            self.works.set()
        return poll

    def _start(self, batch: QueueBatch) -> None:
        self._batches[batch] = self._spawn(self._move(batch))

    async def _release_orphans(self) -> None:
        """After a claim without an answer: release the messages that it may have locked."""
        known = [i for batch in list(self._batches) for i in batch.ids]
        with self._refusals.noted("what a claim may have locked", "its locks expire"):
            await self._source.persist(sql.RELEASE_ORPHANS, self.name, known)

    async def _move(self, batch: QueueBatch) -> None:
        try:
            if self._transform is not None:
                await transform(self._transform, batch)
            hold = (
                0 if self._stops or None in self._stalled else self._settings.hold.total_seconds()
            )
            sent = await self._target.send(batch.items(), hold)
            if sent.error is not None:
                # Before any release: a released message would be claimed again at once.
                self._pause_or_fail(sent.error)
            stopped = batch.stopped(sent)
            for queue, error in stopped.items():
                self._refused.refuse(queue, error, PAUSE if isinstance(error, WAITS) else None)
                self._stall(queue, error)
            if sent.error is None:
                self._refused.works(batch.queues - stopped.keys())
            await self._settle(batch, sent)
        except asyncio.CancelledError:
            await self._release(batch, range(len(batch)))
            raise
        finally:
            del self._batches[batch]
            self._wake.set()

    def _pause_or_fail(self, error: Exception) -> None:
        """Wait for a target that cannot receive messages now; end with any other error."""
        if not isinstance(error, DatabaseUnavailableError):
            self._fail(error)
        elif None not in self._stalled and not self._stops:
            self._fetcher.slow_down()
            self._stall(None, error)
            self._spawn(self._wait_for_target())

    async def _settle(self, batch: QueueBatch, sent: Sent) -> None:
        """Finish, retry or release each message of a batch."""
        endings = batch.endings(sent)
        held = 0
        if endings.settled:
            # A position that the target has received now; known messages have an older receipt.
            position = next(reversed(sent.ids), None)
            call = partial(self._source.persist, sql.RELAY_FINISH, *self._names, position)
            held = len(await self._end(call, endings.settled))
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
        ends = [(batch.ids[index], batch.tokens[index]) for index in indexes]
        rows = await self._end(partial(self._source.persist, sql.RELEASE_MANY), ends)
        self.counts["released"] += len(rows)

    async def _retry(self, batch: QueueBatch) -> None:
        most = self._settings.attempts
        storable = self._source.storable
        ends = []
        for index, error in batch.failed.items():
            it, message_id, attempts = report(error), batch.ids[index], batch.attempts(index)
            log.warning(
                "queue %r: the transformation failed on message %d in attempt %d of %d: %s",
                batch.source, message_id, attempts, most, in_line(f"{it.type}: {it.text}"),
            )  # fmt: skip
            details = storable(clean(f"the transformation of the relay failed: {describe(error)}"))
            texts = storable(it.type), storable(it.text), it.traceback and storable(it.traceback)
            given = (None, texts[0], None, None) if batch.is_sealed(index) else (details, *texts)
            ends.append((message_id, batch.tokens[index], *given, attempts >= most))

        async def retry(ids: Any, tokens: Any, details: Any, *rest: Any) -> list[asyncpg.Record]:
            return await self._source.persist(
                sql.RETRY_MANY, ids, tokens, None, details, None, *rest
            )

        await self._end(retry, ends)

    async def _end(self, call: _Call, ends: list[Any]) -> list[asyncpg.Record]:
        """End messages by a call; `ends` has its arguments for each.

        The lock of a message whose end the server refuses expires.
        """
        refused: list[Exception] = []
        rows: list[asyncpg.Record] = []
        async for _, answer in halving(
            lambda part: call(*map(list, zip(*part, strict=True))), ends
        ):
            if not isinstance(answer, Exception):
                rows += answer
            elif is_limited(answer):
                refused.append(answer)
            else:
                raise answer
        if refused:
            self._refusals.refused("how messages ended", refused[0], "their locks expire")
        elif ends:
            self._refusals.works("how messages ended")
        return rows

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
            self._recovery.stop()
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
        refused: RefusedQueues,
        start: Callable[[QueueBatch], None],
    ) -> None:
        # One session: functions keep values there for the next claim.
        self._claims = source.dedicated()
        self._routes = routes
        self._settings = settings
        self._name = name
        self._filter = filter
        self._refused = refused
        self._start = start
        self._quantity = min(_FIRST, settings.batch)

    def slow_down(self) -> None:
        """Claim few messages next: how many the target can receive is unknown."""
        self._quantity = 1

    async def claim(self, room: int, *, full_scan: bool) -> Poll:
        """Claim and start up to `room` batches: mostly one, of all queues.

        If the server refuses that it is made again for each queue, and then for those that it
        takes, and beside them for each that is to be tried again.
        """
        began = time.monotonic()
        found: set[str] = set()
        is_full = False
        groups = self._groups()
        while groups and room > 0:
            queues = groups.pop(0)
            try:
                batch, has_more = await self._claim(queues, full_scan=full_scan)
            except Exception as error:
                if not is_refusal(error):
                    raise
                if len(queues) > 1:
                    groups = [[queue] for queue in queues] + groups
                else:
                    self._refused.refuse(queues[0], error)
                continue
            is_full = is_full or has_more
            if batch is None:
                self._refused.works(queues)
            else:
                room -= 1
                found |= batch.queues
                self._start(batch)
        self._refused.check(len(self._routes))
        return Poll(frozenset(found), is_full=is_full or bool(groups), began=began)

    def _groups(self) -> list[list[str]]:
        """Queues that share a claim; one that was refused has its own, when it is due."""
        free = [queue for queue in self._routes if queue not in self._refused]
        due = self._refused.take_due()
        return [group for group in (free, *([queue] for queue in due)) if group]

    async def _claim(self, queues: list[str], *, full_scan: bool) -> tuple[QueueBatch | None, bool]:
        """Claim a batch, if there are messages, and whether there may be more."""
        since = time.monotonic()
        is_trial = queues[0] in self._refused  # one message shows whether it works again
        quantity = 1 if is_trial else self._quantity
        lock_duration = self._settings.lock_duration
        args = quantity, lock_duration, self._name, self._filter, full_scan
        try:
            [row] = await self._claims.fetch(sql.RELAY_CLAIM, queues, *args)
        except asyncpg.ProgramLimitExceededError:
            if quantity == 1:
                raise
            self._quantity = max(1, quantity // 8)  # the answer was too large
            return None, True
        if row["ids"] is None:
            return None, False
        batch = QueueBatch(row, self._routes, since, lock_duration.total_seconds())
        if is_trial:
            return batch, False
        mean = max(1, batch.size // len(batch))
        self._quantity = max(1, min(2 * quantity, self._settings.batch, _LARGEST // mean))
        return batch, len(batch) == quantity

    async def close(self) -> None:
        """Close the session."""
        await self._claims.close()
