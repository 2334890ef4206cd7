"""The subscriptions of a worker: when to look for their batches, and batches on their way."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from notifyq.errors import (
    DatabaseUnavailableError,
    RestoredDatabaseError,
    StreamNotFoundError,
    SubscriptionNotFoundError,
)
from notifyq.execution.call import is_closing
from notifyq.execution.runtime import Runtime
from notifyq.execution.transactions import Transactions
from notifyq.notify.poller import Poll, Poller
from notifyq.notify.suppression import StreamPromises
from notifyq.notify.wake import TokenBucket
from notifyq.telemetry import BatchDropped
from notifyq.worker.streams.assignment import Assignment
from notifyq.worker.streams.delivery import Delivery
from notifyq.worker.streams.member import Member

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from notifyq.database.pool import Database
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.notify.session import Session
    from notifyq.streams.subscription import Batch
    from notifyq.telemetry import Sink

log = logging.getLogger("notifyq.worker")

_SETTLE = 10.0
"""Seconds that batches which are broken off get at a stop."""
_FAREWELL = 2.0
"""Seconds that a look under way gets at a stop."""
_LONGEST_PAUSE = 30.0
_LANES = 4


class StreamConsumer:
    """Serves subscriptions until it is stopped; `on_failure` gets what no subscriber has raised."""

    def __init__(
        self,
        database: Database,
        subscribers: Sequence[Subscriber[Any]],
        sink: Sink,
        *,
        poll: float,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._database = database
        self._sink = sink
        self._poll = poll
        self._on_failure = on_failure
        # Beside the pool: a look is never kept waiting by what subscribers do there.
        self._lane = database.lane(_LANES)
        self._streams = frozenset(subscriber.stream for subscriber in subscribers)
        self._tools = Runtime()
        if in_transactions := sum(it.members for it in subscribers if it.is_transactional):
            self._tools.transactions = Transactions(database, in_transactions)
        self._wake = asyncio.Event()
        self._due: set[Member] = set()
        self._is_rung = False
        self._is_stopping = False
        self._has_ended = asyncio.Event()
        self._promises = StreamPromises(database, sink, on_session=self._look_at_all)
        self._places = Assignment(subscribers, self._promises, sink, self._lane)
        self._attendance = Poller(self._promises, tuple(self._streams), poll=poll)

    @property
    def serve(self) -> Callable[[Session], Coroutine[Any, Any, None]]:
        """What runs beside the listener, on its session."""
        return self._promises.serve

    def hear(self, payload: str) -> None:
        """Look where the bell has rung; an empty payload: anywhere."""
        if not payload or payload in self._streams:
            self._is_rung = True
            self._due.update(it for it in self._places if payload in {"", it.stream})
            self._wake.set()

    def _look_at_all(self) -> None:
        self._due.update(self._places)
        self._wake.set()

    async def run(self, subscribers: Mapping[Any, Subscriber[Any]]) -> None:
        """Serve until `stop`; `subscribers` by subscription are ready to be called."""
        for place in self._places:
            place.subscriber = subscribers[place.subscriber.subscription]
        try:
            await self._serve_until_stopped()
        finally:
            self._has_ended.set()

    async def _serve_until_stopped(self) -> None:
        vain = TokenBucket()
        polled_at = 0.0
        while not self._is_stopping:
            self._wake.clear()
            is_rung, self._is_rung = self._is_rung, False
            now = time.monotonic()
            self._due.update(await self._places.take())
            if now >= polled_at + self._poll:
                polled_at = now
                self._due.update(self._places)
            if any(place.is_idle for place in self._places):
                is_last = self._attendance.owes_look
                looked = self._choose(now, all_of_them=is_last)
                look = await self._look(looked)
                if is_last:
                    await self._ring_busy(looked)
                await self._attendance.note(look)
                if is_rung and looked and not look.queues and (pause := vain.spend()) > 0:
                    await asyncio.sleep(pause)
            await self._wait(await self._pause(), polled_at)

    async def _pause(self) -> float:
        room = sum(place.is_idle for place in self._places)
        if room == 0 and (resting := [it.rests_until for it in self._places if it.is_resting]):
            return min(resting) - time.monotonic()  # it is not without room for long
        return await self._attendance.pause(room)

    async def _wait(self, seconds: float, polled_at: float) -> None:
        now = time.monotonic()
        instants = [polled_at + self._poll]
        instants += [it.due_at for it in self._places if it.due_at is not None and it.is_idle]
        instants += [it.not_before for it in self._places if it.not_before > now]
        instants += [it.rests_until for it in self._places if it.is_resting]
        instants.append(self._places.next_try)
        seconds = min(seconds, max(0.0, min(instants) - now))
        if seconds > 0 and not self._is_stopping:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    def _choose(self, now: float, *, all_of_them: bool) -> list[Member]:
        chosen = [
            place
            for place in self._places
            if place.is_free
            and (
                all_of_them
                or place in self._due
                or place.stream in self._promises.attended
                or (place.due_at is not None and place.due_at <= now)
            )
        ]
        # What is busy now looks by itself when it is not; what rests or waits does so after that.
        idle = [place for place in chosen if place.is_idle]
        self._due = set(chosen).difference(idle)
        return idle

    async def _look(self, places: list[Member]) -> Poll:
        began = time.monotonic()
        opened = await asyncio.gather(*(self._open(place) for place in places))
        found = set()
        for place, batch in zip(places, opened, strict=True):
            if batch is None:
                continue
            if self._is_stopping or not self._places.holds(place):
                # Another worker may have it by now, or will: nothing of it has been tried here.
                await batch.leave()
                continue
            found.add(place.stream)
            place.opened()
            place.task = asyncio.create_task(self._deliver(place, batch))
        return Poll(frozenset(found), is_full=False, began=began)

    async def _open(self, place: Member) -> Batch | None:
        if place.due_at is not None and place.due_at <= time.monotonic():
            place.due_at = None
        try:
            if place.is_inherited:
                await place.recover()
            batch = await place.subscription.next_batch(place.subscriber.quantity)
            if batch is None and place.may_owe and place.due_at is None:
                await place.ask_due()
        except (SubscriptionNotFoundError, StreamNotFoundError) as error:
            if not place.is_missing:
                log.error("%s: nothing is handled until it is there again", error)  # noqa: TRY400
            place.is_missing = True
            place.not_before = time.monotonic() + self._poll
            return None
        place.is_missing = False
        return batch

    async def _ring_busy(self, looked: list[Member]) -> None:
        """Call others for streams where we owe a look and have no place that is free for it."""
        silence = self._promises.silence
        if silence is not None and silence.queues:
            return  # it is not the last look yet
        seen = {place.stream for place in looked}
        busy = {it.stream for it in self._places if it.task is not None} - seen
        if busy:
            await self._promises.summon(busy)

    async def _deliver(self, place: Member, batch: Batch) -> None:
        delivery = place.delivery = Delivery(
            place.subscriber, self._database, self._tools, self._sink
        )
        try:
            reason = await self._handle(delivery, place, batch)
        finally:
            place.task = place.delivery = None
        self._delivered(place, batch, reason)
        if delivery.due_in is not None:
            place.put_off(delivery.due_in)
        if self._is_stopping or place.is_owed:
            await self._places.give_up([place])
        self._due.add(place)
        self._wake.set()

    async def _handle(self, delivery: Delivery, place: Member, batch: Batch) -> str | None:
        """Handle a batch; return why it was not finished here."""
        try:
            if await delivery.handle(batch):
                return None
            if delivery.cancelled.is_set():
                await batch.leave()
            return "it was broken off, or another session has finished it"
        except (DatabaseUnavailableError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if isinstance(error, RestoredDatabaseError):
                self._on_failure(error)
            return f"{type(error).__name__}: {error}"
        except GeneratorExit as error:
            if is_closing(error, place.task):
                raise
            # Of a task that the function awaits: it has closed the coroutines inside of this one.
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001  whatever it is, the worker must not go on
            self._on_failure(error)
            return f"{type(error).__name__}: {error}"

    def _delivered(self, place: Member, batch: Batch, reason: str | None) -> None:
        if reason is None:
            place.in_vain = 0
            place.rest(len(batch))
            return
        self._sink(
            BatchDropped(
                stream=batch.stream, subscriber=batch.subscriber, batch_id=batch.id, reason=reason
            )
        )
        place.not_before = time.monotonic() + min(0.1 * 2.0**place.in_vain, _LONGEST_PAUSE)
        place.in_vain = min(place.in_vain + 1, 20)

    def stop(self) -> None:
        """Open no more batches, and let those in hand come to their end."""
        self._is_stopping = True
        self._wake.set()

    def cancel(self) -> None:
        """Break off the batches in hand: they come again."""
        self._places.break_off()

    async def drain(self, grace: float) -> None:
        """Let batches come to their end within the grace, then break them off; leave all places."""
        self.stop()
        farewell = asyncio.create_task(self._attendance.close())
        # A look that is under way may have opened a batch, and leaves it before its place is left.
        with suppress(TimeoutError):
            async with asyncio.timeout(_FAREWELL):
                await self._has_ended.wait()
        await self._places.stand_down()
        await self._places.give_up([place for place in self._places if place.task is None])
        tasks = {place.task for place in self._places if place.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=grace)
            self.cancel()
            _, left = await asyncio.wait(tasks, timeout=_SETTLE)
            for task in left:
                task.cancel()
        await farewell

    async def close(self) -> None:
        """End what still runs, and close what is ours."""
        tasks = {place.task for place in self._places if place.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        await self._places.close()
        await self._tools.close()
        await self._lane.close()
