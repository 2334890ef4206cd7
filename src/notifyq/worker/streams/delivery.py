"""Takes one batch of a subscription through its subscriber: calls, retries, and its end."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from notifyq.database import statements as sql
from notifyq.database.encoding import storable
from notifyq.database.retry import is_away
from notifyq.errors import BatchNotFoundError, DatabaseUnavailableError
from notifyq.execution.call import BatchCall, Cause, HandlerCall, RollBackError
from notifyq.execution.runtime import Runtime
from notifyq.handlers.subscriber import Subscriber
from notifyq.models.annotations import name
from notifyq.models.event import Event
from notifyq.models.message import Message
from notifyq.models.outcome import Failed, Outcome, Rejected, Released, Success
from notifyq.notify.wake import at_most
from notifyq.printable import in_line
from notifyq.streams.subscription import Batch
from notifyq.telemetry import BatchFinished, EventRetried, HandlerStuck, TelemetryHandler
from notifyq.telemetry.tracebacks import log_failure
from notifyq.telemetry.tracing import trace_id_of
from notifyq.worker.loop_watch import LoopWatch, Running, Work

if TYPE_CHECKING:
    from notifyq.database.pool import AnyConnection, Database

log = logging.getLogger("notifyq.worker")

_Outcomes = list[tuple["Event", Outcome]]
_Again = dict[int, tuple[timedelta, str]]
"""By id of an event: after what time it is delivered again, and why."""
_BASE, _MOST = 2.0, 300.0
"""Seconds of the backoff where a subscriber has none for an error: the first, the longest."""


@dataclass(slots=True)
class _Result:
    """What becomes of the events of a batch; the events that it does not name have succeeded."""

    retried: _Again = field(default_factory=dict)
    """Delivered again in a later batch."""
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Archived as dead, with this status, for this reason."""
    again: _Again = field(default_factory=dict)
    """Handled once more before the batch is finished."""
    is_released: bool = False
    """Whether the batch was cancelled."""

    def next(self, event: Event) -> Event:
        """The event as it is handled next time."""
        if event.id not in self.again:
            return event
        return replace(event, retries=event.attempts, reason=self.again[event.id][1])

    async def write(self, connection: AnyConnection, batch: Batch) -> None:
        """Write what is retried and what has failed, in the transaction that is open."""
        encoding = connection.get_settings().server_encoding
        if retried := self.retried:
            delays = [delay for delay, _ in retried.values()]
            reasons = [batch.as_stored(storable(it, encoding)) for _, it in retried.values()]
            await batch.fetch(
                connection, sql.RETRY_EVENTS, batch.id, list(retried), delays, reasons
            )
        if failed := self.failed:
            statuses, texts = zip(*failed.values(), strict=True)
            reasons = [batch.as_stored(storable(text, encoding)) for text in texts]
            await batch.fetch(
                connection, sql.FAIL_EVENTS, batch.id, list(failed), reasons, statuses
            )


class _Call(HandlerCall):
    """One call for an event; what the function returns is ignored."""

    __slots__ = ("event",)

    def __init__(self, subscriber: Subscriber[Any], event: Event) -> None:
        super().__init__(subscriber, cast("Message", event))
        self.event = event

    def success(self, _result: Any) -> Success | Failed:
        return Success()


class Delivery:
    """Handles one batch of a subscription; `cancel` may be called meanwhile."""

    def __init__(
        self,
        subscriber: Subscriber[Any],
        database: Database,
        runtime: Runtime,
        telemetry: TelemetryHandler,
        loop_watch: LoopWatch | None = None,
    ) -> None:
        self._subscriber = subscriber
        self._database = database
        self._runtime = runtime
        self._telemetry = telemetry
        self._loop_watch = loop_watch or LoopWatch("", telemetry)
        self._batch_id: int | None = None
        self._calls: set[_Call | BatchCall[_Call]] = set()
        self.cancelled = asyncio.Event()
        self.errors: list[str] = []
        """One for each attempt that did not succeed."""
        self.due_in: float | None = None
        """Seconds until the first retry of its events."""

    def cancel(self) -> None:
        """Cancel what runs: the batch is left as it is, and is delivered again."""
        self.cancelled.set()
        for call in self._calls:
            call.stop(Cause.STOP)

    async def handle(self, batch: Batch) -> bool:
        """Handle a batch to its end. False: it was cancelled, or another session finished it."""
        began = time.monotonic()
        self._batch_id = batch.id
        handle = self._in_transaction if self._subscriber.is_transactional else self._at_once
        result = await handle(batch)
        if result is None:
            return False
        if result.retried:
            self.due_in = min(delay for delay, _ in result.retried.values()).total_seconds()
        self._telemetry(
            BatchFinished(
                stream=batch.stream,
                subscriber=batch.subscriber,
                batch_id=batch.id,
                events=len(batch) - len(result.retried) - len(result.failed),
                retried=len(result.retried),
                failed=len(result.failed),
                run=time.monotonic() - began,
            )
        )
        return True

    async def _at_once(self, batch: Batch) -> _Result | None:
        result = _Result()
        todo = batch.events
        resting: dict[str | None, float] = {}  # keys, and when their failed events are due
        while todo:
            outcomes = await self._round(batch, [it for it in todo if it.key not in resting], None)
            result.again.clear()
            self._apply(outcomes, result)
            now = time.monotonic()
            for event, _ in outcomes:
                if event.id in result.again:
                    due = now + result.again[event.id][0].total_seconds()
                    resting[event.key] = max(due, resting.get(event.key, 0))
            first = min(resting.values(), default=now)
            if result.is_released or not await self._pause(first - now):
                return None
            now = max(first, time.monotonic())
            resting = {key: due for key, due in resting.items() if due > now}
            ended = {event.id for event, _ in outcomes} - result.again.keys()
            todo = [result.next(event) for event in todo if event.id not in ended]
        return result if await self._settle(batch, result) else None

    async def _in_transaction(self, batch: Batch) -> _Result | None:
        todo = batch.events
        while True:
            result = _Result()
            try:
                if await self._commit(batch, todo, result):
                    return result
            except BatchNotFoundError:
                return None
            except Exception as error:
                if is_away(error) or isinstance(error, DatabaseUnavailableError):
                    raise
                # Which event caused it is unknown, as with a deferred constraint: all have failed.
                result = _Result()
                self._apply(
                    [(it, _Call(self._subscriber, it).raised(error)) for it in todo], result
                )
                if not result.again:
                    return result if await self._settle(batch, result) else None
            longest = max((delay.total_seconds() for delay, _ in result.again.values()), default=0)
            if result.is_released or not await self._pause(longest):
                return None
            # All events again: the writes of those that succeeded are rolled back.
            todo = [result.next(event) for event in todo]

    async def _commit(self, batch: Batch, todo: list[Event], result: _Result) -> bool:
        """Handle events and finish their batch in one transaction. False: it is rolled back."""
        if self._runtime.transactions is None:
            raise RuntimeError("the subscriber has no transactions")
        with suppress(RollBackError):
            async with self._runtime.transactions.open() as connection:
                lent = batch.within(connection)
                self._apply(await self._round(lent, todo, connection), result)
                if not result.again and not result.is_released:
                    await result.write(connection, lent)
                    if lent.is_finished or await lent.finish():
                        return True
                    result.is_released = True
                raise RollBackError
        return False

    async def _round(
        self, batch: Batch, events: list[Event], connection: AnyConnection | None
    ) -> _Outcomes:
        """Call the function for these events; return outcomes of those that it was called for."""
        if self._subscriber.batch is not None:
            return await self._call_together(batch, events, connection)
        outcomes: _Outcomes = []
        chains = _chains_of(events, by_key=self._subscriber.ordered)
        work = partial(self._work, chains, connection, outcomes)
        if self._subscriber.concurrency == 1:
            await work()
            return outcomes
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._subscriber.concurrency, len(events))):
                group.create_task(work())
        return outcomes

    async def _work(
        self, chains: Iterator[list[Event]], connection: AnyConnection | None, outcomes: _Outcomes
    ) -> None:
        for chain in chains:
            for event in chain:
                if self.cancelled.is_set():
                    outcomes.append((event, Released()))
                    return
                outcome = await self._call(event, connection)
                outcomes.append((event, outcome))
                if self._subscriber.ordered and self._is_retried(event, outcome):
                    break  # the events after it wait for it

    async def _call(self, event: Event, connection: AnyConnection | None) -> Outcome:
        call = _Call(self._subscriber, event)
        with self._running(call):
            if connection is None:
                return await call.outcome(self._runtime)
            outcome: Outcome = Released()
            with suppress(RollBackError):
                async with connection.transaction():
                    outcome = await call.outcome(self._runtime, connection)
                    if not isinstance(outcome, Success):
                        raise RollBackError
            return outcome

    async def _call_together(
        self, batch: Batch, events: list[Event], connection: AnyConnection | None
    ) -> _Outcomes:
        call = BatchCall[_Call](self._bound(batch))
        call.members += [_Call(self._subscriber, event) for event in events]
        outcomes: dict[_Call, Outcome] = {}
        with self._running(call):
            if connection is None:
                outcomes = await call.outcomes(self._runtime)
            else:
                with suppress(RollBackError):
                    async with connection.transaction():
                        outcomes = await call.outcomes(self._runtime, connection)
                        if not any(isinstance(it, Success) for it in outcomes.values()):
                            raise RollBackError
        return [(member.event, outcome) for member, outcome in outcomes.items()]

    def _bound(self, batch: Batch) -> Subscriber[Any]:
        """The subscriber, bound to the batch where its function takes it."""
        given = [parameter for parameter, kind in self._subscriber.resources if kind is Batch]
        if not given:
            return self._subscriber
        function = partial(self._subscriber.function, **dict.fromkeys(given, batch))
        return replace(self._subscriber, function=function)

    @contextmanager
    def _running(self, call: _Call | BatchCall[_Call]) -> Iterator[None]:
        """Stop a call after its timeout, or at `cancel`."""
        timer, began = None, time.monotonic()
        if (timeout := self._subscriber.timeout) is not None:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(timeout.total_seconds(), self._time_out, call)
        self._calls.add(call)
        try:
            yield
        finally:
            self._calls.discard(call)
            if timer is not None:
                timer.cancel()
            if timeout is not None and time.monotonic() - began > timeout.total_seconds():
                self._loop_watch.log_late(self._work_of(call), timeout, began)

    def on_loop(self) -> list[Running]:
        """The calls that run on the event loop; called on the listener's loop."""
        calls = list(self._calls) if self._subscriber.is_async else []
        return [Running(call.running_task, self._work_of(call)) for call in calls]

    def _work_of(self, call: _Call | BatchCall[_Call]) -> Work:
        events = [call.event] if isinstance(call, _Call) else [it.event for it in call.members]
        return Work(
            handler=name(self._subscriber.function),
            stream=self._subscriber.stream,
            subscriber=self._subscriber.name,
            batch_id=self._batch_id,
            event_id=events[0].id,
            more=len(events) - 1,
        )

    def _time_out(self, call: _Call | BatchCall[_Call], turns: int = 2) -> None:
        # After a blocked loop a result may be there already: it takes two turns to arrive, as the
        # loop may run timers first.
        if turns:
            asyncio.get_running_loop().call_soon(self._time_out, call, turns - 1)
            return
        if call.stop(Cause.TIMEOUT) and not self._subscriber.is_async:
            first = call if isinstance(call, _Call) else call.members[0]
            self._telemetry(HandlerStuck(queue=first.event.stream, message_id=first.event.id))

    def _apply(self, outcomes: _Outcomes, result: _Result) -> None:
        for event, outcome in outcomes:
            match outcome:
                case Released():
                    result.is_released = True
                case Rejected():
                    log.warning(
                        "%s is rejected: %s", self._named(event), in_line(outcome.reason),
                        extra={"event": self._fields(event)},
                    )  # fmt: skip
                    self.errors.append(f"event {event.id}: {outcome.reason}")
                    result.failed[event.id] = outcome.status, outcome.reason
                case Failed():
                    self._apply_failed(event, outcome, result)

    def _apply_failed(self, event: Event, outcome: Failed, result: _Result) -> None:
        self.errors.append(f"event {event.id}: {outcome.details}")
        attempt = f" in attempt {event.attempts} of {self._subscriber.max_attempts}"
        if not self._is_retried(event, outcome):
            self._log_failure(event, outcome, attempt, is_last=True)
            result.failed[event.id] = outcome.status, outcome.details
            return
        delay = _delay_of(event, outcome)
        attempt += f", next try in {delay.total_seconds():.1f} s"
        self._log_failure(event, outcome, attempt, is_last=False)
        retried = result.again if self._subscriber.ordered else result.retried
        retried[event.id] = delay, outcome.details
        self._telemetry(
            EventRetried(
                stream=event.stream,
                subscriber=self._subscriber.name,
                event_id=event.id,
                attempts=event.attempts,
                details=outcome.details,
            )
        )

    def _log_failure(self, event: Event, failed: Failed, follows: str, *, is_last: bool) -> None:
        fields = self._fields(event)
        log_failure(log, self._named(event), failed, follows, is_last=is_last, fields=fields)

    def _fields(self, event: Event) -> dict[str, Any]:
        return {
            "stream": event.stream,
            "subscriber": self._subscriber.name,
            "event_id": event.id,
            "attempt": event.attempts,
            "trace_id": trace_id_of(event.headers),
        }

    def _named(self, event: Event) -> str:
        return f"stream {event.stream!r}: event {event.id} for {self._subscriber.name!r}"

    def _is_retried(self, event: Event, outcome: Outcome) -> bool:
        return (
            isinstance(outcome, Failed)
            and not outcome.gives_up
            and event.attempts < self._subscriber.max_attempts
        )

    async def _pause(self, seconds: float) -> bool:
        """Wait before the next call for events that failed. False: it was cancelled."""
        if seconds > 0:
            await at_most(seconds, self.cancelled.wait())
        return not self.cancelled.is_set()

    async def _settle(self, batch: Batch, result: _Result) -> bool:
        """Write what became of the events, and finish. False: another session did."""
        try:
            if not (result.retried or result.failed):
                return batch.is_finished or await batch.finish()
            async with self._database.begun() as connection:
                await result.write(connection, batch)
                return batch.is_finished or await batch.within(connection).finish()
        except BatchNotFoundError:
            return False


def _delay_of(event: Event, failed: Failed) -> timedelta:
    """After what time a failed event is delivered again."""
    if failed.after is not None:
        return failed.after
    seconds = min(_MOST, _BASE * 2.0 ** min(event.attempts - 1, 20))
    return timedelta(seconds=seconds * random.uniform(0.5, 1))  # noqa: S311  nothing secret


def _chains_of(events: list[Event], *, by_key: bool) -> Iterator[list[Event]]:
    """Lists of events to handle one after the other; events without a key share one list."""
    if not by_key:
        yield from ([event] for event in events)
        return
    chains: dict[str | None, list[Event]] = {}
    for event in events:
        chains.setdefault(event.key, []).append(event)
    yield from chains.values()
