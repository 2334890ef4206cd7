"""Serves the subscriptions of a worker: when to fetch their batches, and batches that run."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.database.refusals import PAUSE, Refusals, concerns_all, is_refusal
from notifyq.errors import NotifyqError, RestoredDatabaseError
from notifyq.execution.runtime import Runtime, Threads, Transactions, is_closing
from notifyq.handlers.subscriber import Subscriber
from notifyq.notify.session import Session
from notifyq.notify.wake import TokenBucket, at_most
from notifyq.streams.subscription import Batch
from notifyq.telemetry import BatchDropped, StreamSuppressed, StreamUnsuppressed, TelemetryHandler
from notifyq.worker.loop_watch import LoopWatch, Running
from notifyq.worker.streams.assignment import Assignment
from notifyq.worker.streams.delivery import Delivery
from notifyq.worker.streams.member import Member
from notifyq.worker.wake import Poll, Poller, Suppression

if TYPE_CHECKING:
    from notifyq.handlers.handler import AroundSync

log = logging.getLogger("notifyq.worker")

_SETTLE = 10.0
"""Seconds that cancelled batches get at a stop."""
_LAST_POLL = 2.0
"""Seconds that a poll that runs gets at a stop."""
_LONGEST_PAUSE = 30.0
_CONNECTIONS = 4


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


class StreamConsumer:
    """Serves subscriptions until it is stopped; `on_failure` gets what no subscriber has raised."""

    def __init__(
        self,
        database: Database,
        subscribers: Sequence[Subscriber[Any]],
        telemetry: TelemetryHandler,
        *,
        poll: float,
        on_failure: Callable[[BaseException], None],
        loop_watch: LoopWatch,
        around_sync: Sequence[AroundSync] = (),
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._poll = poll
        self._on_failure = on_failure
        self._loop_watch = loop_watch
        # Beside the pool: a poll does not wait for what subscribers do there.
        self._connections = database.dedicated(_CONNECTIONS)
        self._streams = frozenset(subscriber.stream for subscriber in subscribers)
        self._runtime = Runtime(threads=Threads(around_sync))
        if in_transactions := sum(it.members for it in subscribers if it.is_transactional):
            self._runtime.transactions = Transactions(database, in_transactions)
        self._wake = asyncio.Event()
        self._due: set[Member] = set()
        self._is_notified = False
        self._is_stopping = False
        self._has_ended = asyncio.Event()
        self._refusals = Refusals(log)
        self._suppression = StreamSuppression(database, telemetry, on_session=self._poll_all)
        self._members = Assignment(subscribers, self._suppression, telemetry, self._connections)
        self._poller = Poller(self._suppression, tuple(self._streams), poll=poll)

    async def serve(self, session: Session) -> None:
        """Run beside the listener, on its session."""
        await self._suppression.serve(session)

    def receive(self, payload: str) -> None:
        """Poll the stream that a notification names; an empty payload: all streams."""
        if not payload or payload in self._streams:
            self._is_notified = True
            self._poller.notified(payload)
            self._due.update(it for it in self._members if payload in {"", it.stream})
            self._wake.set()

    def on_loop(self) -> list[Running]:
        """The calls of async subscribers; called on the listener's loop."""
        deliveries = [member.delivery for member in self._members]
        return [it for delivery in deliveries if delivery for it in delivery.on_loop()]

    def _poll_all(self) -> None:
        self._due.update(self._members)
        self._wake.set()

    async def run(self, subscribers: Mapping[Any, Subscriber[Any]]) -> None:
        """Serve until `stop`; `subscribers` by subscription are ready to be called."""
        for member in self._members:
            member.subscriber = subscribers[member.subscriber.subscription]
        self._runtime.owner = asyncio.current_task()
        try:
            await self._serve_until_stopped()
        finally:
            self._has_ended.set()

    async def _serve_until_stopped(self) -> None:
        empty_polls = TokenBucket()
        polled_at = 0.0
        while not self._is_stopping:
            self._wake.clear()
            is_notified, self._is_notified = self._is_notified, False
            now = time.monotonic()
            self._due.update(await self._members.take())
            if now >= polled_at + self._poll:
                polled_at = now
                self._due.update(self._members)
            if any(member.is_idle for member in self._members):
                is_full_scan = self._poller.needs_full_scan
                polled = self._choose(now, everything=is_full_scan)
                poll = await self._poll_members(polled)
                if is_full_scan:
                    await self._wake_others(polled)
                await self._poller.record(poll)
                is_empty = polled and not poll.queues
                if is_notified and is_empty and (pause := empty_polls.spend()) > 0:
                    await asyncio.sleep(pause)
            await self._wait(await self._pause(), polled_at)

    async def _pause(self) -> float:
        room = sum(member.is_idle for member in self._members)
        if room == 0 and (resting := [it.rests_until for it in self._members if it.is_resting]):
            return min(resting) - time.monotonic()  # there is room again soon
        return await self._poller.pause(room)

    async def _wait(self, seconds: float, polled_at: float) -> None:
        now = time.monotonic()
        instants = [polled_at + self._poll]
        instants += [it.due_at for it in self._members if it.due_at is not None and it.is_idle]
        instants += [it.not_before for it in self._members if it.not_before > now]
        instants += [it.rests_until for it in self._members if it.is_resting]
        instants.append(self._members.next_try)
        seconds = min(seconds, max(0.0, min(instants) - now))
        if seconds > 0 and not self._is_stopping:
            await at_most(seconds, self._wake.wait())

    def _choose(self, now: float, *, everything: bool) -> list[Member]:
        chosen = [
            member
            for member in self._members
            if member.is_free
            and (
                everything
                or member in self._due
                or member.stream in self._suppression.suppressed
                or (member.due_at is not None and member.due_at <= now)
            )
        ]
        # Those that rest or wait are polled after that, busy ones when their batch is over.
        idle = [member for member in chosen if member.is_idle]
        self._due = set(chosen).difference(idle)
        return idle

    async def _poll_members(self, members: list[Member]) -> Poll:
        began = time.monotonic()
        opened = await asyncio.gather(*(self._open(member) for member in members))
        self._check_refused()
        found = set()
        for member, batch in zip(members, opened, strict=True):
            if batch is None:
                continue
            if self._is_stopping or not self._members.holds(member):
                # Another worker has the slot, or will have it: nothing of the batch ran here.
                await batch.leave()
                continue
            found.add(member.stream)
            member.opened()
            member.task = asyncio.create_task(self._deliver(member, batch))
        return Poll(frozenset(found), is_full=False, began=began)

    async def _open(self, member: Member) -> Batch | None:
        if member.due_at is not None and member.due_at <= time.monotonic():
            member.due_at = None
        try:
            if member.is_inherited:
                await member.recover()
            batch = await member.subscription.next_batch(member.subscriber.quantity)
            if batch is None and member.may_have_retries and member.due_at is None:
                await member.fetch_due()
        except Exception as error:
            if not is_refusal(error):
                raise
            member.refused_with = error
            self._refusals.refused(member.name, error, "nothing is handled until it works again")
            member.not_before = time.monotonic() + min(PAUSE, self._poll)
            return None
        if member.refused_with is not None:
            member.refused_with = None
            self._refusals.works(member.name)
        return batch

    def _check_refused(self) -> None:
        """Raise where all subscriptions are refused, and not because they do not exist."""
        errors = [it.refused_with for it in self._members if it.is_held]
        refused = [it for it in errors if it is not None and concerns_all(it)]
        if refused and len(refused) == len(errors):
            raise refused[0]

    async def _wake_others(self, polled: list[Member]) -> None:
        """Wake other workers for streams that were not polled here, as their members are busy."""
        publishers = self._suppression.publishers
        if publishers is not None and publishers.queues:
            return  # another full scan follows
        busy = {it.stream for it in self._members if it.task is not None}
        if missed := busy - {member.stream for member in polled}:
            await self._suppression.wake_all(missed)

    async def _deliver(self, member: Member, batch: Batch) -> None:
        delivery = member.delivery = Delivery(
            member.subscriber, self._database, self._runtime, self._telemetry, self._loop_watch
        )
        try:
            reason = await self._handle(delivery, member, batch)
        finally:
            member.task = member.delivery = None
        self._delivered(member, batch, reason)
        if delivery.due_in is not None:
            member.retry_in(delivery.due_in)
        if self._is_stopping or member.is_surplus:
            await self._members.leave([member])
        self._due.add(member)
        self._wake.set()

    async def _handle(self, delivery: Delivery, member: Member, batch: Batch) -> str | None:
        """Handle a batch; return why it was not finished here."""
        try:
            if await delivery.handle(batch):
                return None
            if delivery.cancelled.is_set():
                await batch.leave()
            return "it was cancelled, or another session has finished it"
        except (NotifyqError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if isinstance(error, RestoredDatabaseError):
                self._on_failure(error)
            return f"{type(error).__name__}: {error}"
        except GeneratorExit as error:
            if is_closing(error, member.task):
                raise
            # From a task that the function awaits: it has closed the coroutines inside this one.
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  the worker must not go on with an unknown error
            self._on_failure(error)
            return f"{type(error).__name__}: {error}"

    def _delivered(self, member: Member, batch: Batch, reason: str | None) -> None:
        if reason is None:
            member.failures = 0
            member.rest(len(batch))
            return
        self._telemetry(
            BatchDropped(
                stream=batch.stream, subscriber=batch.subscriber, batch_id=batch.id, reason=reason
            )
        )
        member.not_before = time.monotonic() + min(0.1 * 2.0**member.failures, _LONGEST_PAUSE)
        member.failures = min(member.failures + 1, 20)

    def stop(self) -> None:
        """Fetch no more batches, and let those that run end."""
        self._is_stopping = True
        self._wake.set()

    def cancel(self) -> None:
        """Cancel the batches that run: they are delivered again."""
        self._members.cancel()

    async def drain(self, grace: float) -> None:
        """Let batches end within the grace, then cancel them; leave all member slots."""
        self.stop()
        closing = asyncio.create_task(self._poller.close())
        # A poll that runs may have opened a batch: it must leave the batch before the slot is left.
        await at_most(_LAST_POLL, self._has_ended.wait())
        await self._members.stand_down()
        await self._members.leave([member for member in self._members if member.task is None])
        tasks = {member.task for member in self._members if member.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            self.cancel()
            _, left = await asyncio.wait(tasks, timeout=_SETTLE)
            self._runtime.is_abandoned = True
            for task in left:
                task.cancel()
        await closing

    async def close(self) -> None:
        """End what still runs, and close the connections."""
        self._runtime.is_abandoned = True
        tasks = {member.task for member in self._members if member.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        async with AsyncExitStack() as stack:  # each closes, whatever another one raises
            for part in (self._connections, self._runtime, self._members):
                stack.push_async_callback(part.close)
