"""One batch of a subscription on its way through its subscriber: calls, retries, and its end.

Knows nothing of bells and of who may serve a subscription.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from notifyq.database.retry import is_away
from notifyq.errors import BatchNotFoundError, DatabaseUnavailableError
from notifyq.execution import batch as batches
from notifyq.execution.call import Cause, HandlerCall, RollBackError
from notifyq.models.outcome import Failed, Outcome, Rejected, Released, Success
from notifyq.streams.subscription import Batch
from notifyq.telemetry import BatchFinished, EventRetried, HandlerStuck
from notifyq.telemetry.tracebacks import in_line, log_failure
from notifyq.worker.streams.batch_result import BatchResult, chains_of, delay_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq.database.pool import AnyConnection, Database
    from notifyq.execution.runtime import Runtime
    from notifyq.handlers.subscriber import Subscriber
    from notifyq.models.event import Event
    from notifyq.models.message import Message
    from notifyq.telemetry import Sink
    from notifyq.worker.streams.batch_result import Again

log = logging.getLogger("notifyq.worker")

_Outcomes = list[tuple["Event", Outcome]]


class _Call(HandlerCall):
    """One call for an event; what the function returns is of no interest."""

    __slots__ = ("event",)

    def __init__(self, subscriber: Subscriber[Any], event: Event) -> None:
        super().__init__(subscriber, cast("Message", event))
        self.event = event

    def success(self, _result: Any) -> Success | Failed:
        return Success()


class Delivery:
    """Handles batches of one subscription, one at a time; `stop` and `cancel` are for others."""

    def __init__(
        self, subscriber: Subscriber[Any], database: Database, tools: Runtime, sink: Sink
    ) -> None:
        self._subscriber = subscriber
        self._database = database
        self._tools = tools
        self._sink = sink
        self._calls: set[_Call | batches.BatchCall[_Call]] = set()
        self.cancelled = asyncio.Event()
        self.errors: list[str] = []
        """Of each attempt that did not succeed."""
        self.due_in: float | None = None
        """Seconds until the first event comes again of those that were put back."""

    def cancel(self) -> None:
        """Break off what runs: its batch is left as it is, and comes again."""
        self.cancelled.set()
        for call in self._calls:
            call.stop(Cause.STOP)

    async def handle(self, batch: Batch) -> bool:
        """Handle a batch to its end. False: it was broken off, or another session finished it."""
        began = time.monotonic()
        handle = self._in_transaction if self._subscriber.is_transactional else self._at_once
        verdict = await handle(batch)
        if verdict is None:
            return False
        if verdict.retried:
            self.due_in = min(delay for delay, _ in verdict.retried.values()).total_seconds()
        self._sink(
            BatchFinished(
                stream=batch.stream,
                subscriber=batch.subscriber,
                batch_id=batch.id,
                events=len(batch) - len(verdict.retried) - len(verdict.failed),
                retried=len(verdict.retried),
                failed=len(verdict.failed),
                run=time.monotonic() - began,
            )
        )
        return True

    async def _at_once(self, batch: Batch) -> BatchResult | None:
        verdict = BatchResult()
        todo = batch.events
        while todo:
            outcomes = await self._round(batch, todo, None)
            verdict.again.clear()
            self._judge(outcomes, verdict)
            if verdict.is_released or not await self._pause(verdict.again):
                return None
            ended = {event.id for event, _ in outcomes} - verdict.again.keys()
            todo = [verdict.next(event) for event in todo if event.id not in ended]
        return verdict if await self._settle(batch, verdict) else None

    async def _in_transaction(self, batch: Batch) -> BatchResult | None:
        todo = batch.events
        while True:
            verdict = BatchResult()
            try:
                if await self._commit(batch, todo, verdict):
                    return verdict
            except BatchNotFoundError:
                return None
            except Exception as error:
                if is_away(error) or isinstance(error, DatabaseUnavailableError):
                    raise
                # Which of them it was for, as with a constraint that is checked in the end, nobody
                # can tell.
                verdict = BatchResult()
                self._judge(
                    [(it, _Call(self._subscriber, it).raised(error)) for it in todo], verdict
                )
                if not verdict.again:
                    return verdict if await self._settle(batch, verdict) else None
            if verdict.is_released or not await self._pause(verdict.again):
                return None
            # All of it anew: what was written for those that succeeded is gone.
            todo = [verdict.next(event) for event in todo]

    async def _commit(self, batch: Batch, todo: list[Event], verdict: BatchResult) -> bool:
        """Handle events and finish their batch in one transaction. False: it is rolled back."""
        if self._tools.transactions is None:
            raise RuntimeError("there is no place for transactions")
        with suppress(RollBackError):
            async with self._tools.transactions.open() as connection:
                lent = batch.within(connection)
                self._judge(await self._round(lent, todo, connection), verdict)
                if not verdict.again and not verdict.is_released:
                    await verdict.write(connection, lent)
                    if lent.is_finished or await lent.finish():
                        return True
                    verdict.is_released = True
                raise RollBackError(Released())
        return False

    async def _round(
        self, batch: Batch, events: list[Event], connection: AnyConnection | None
    ) -> _Outcomes:
        """Call the function for these events; the outcomes of those that it was called for."""
        if self._subscriber.batch is not None:
            return await self._call_together(batch, events, connection)
        outcomes: _Outcomes = []
        chains = chains_of(events, by_key=self._subscriber.ordered)
        work = partial(self._work, chains, connection, outcomes)
        if self._subscriber.concurrency == 1:
            await work()
            return outcomes
        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._subscriber.concurrency, len(events))):
                group.create_task(work())
        return outcomes

    async def _work(
        self,
        chains: Iterator[list[Event]],
        connection: AnyConnection | None,
        outcomes: _Outcomes,
    ) -> None:
        for chain in chains:
            for event in chain:
                if self.cancelled.is_set():
                    outcomes.append((event, Released()))
                    return
                outcome = await self._call(event, connection)
                outcomes.append((event, outcome))
                if self._subscriber.ordered and self._comes_again(event, outcome):
                    break  # those behind it wait for it

    async def _call(self, event: Event, connection: AnyConnection | None) -> Outcome:
        call = _Call(self._subscriber, event)
        with self._running(call):
            if connection is None:
                return await call.outcome(self._tools)
            outcome: Outcome = Released()
            with suppress(RollBackError):
                async with connection.transaction():
                    outcome = await call.outcome(self._tools, connection)
                    if not isinstance(outcome, Success):
                        raise RollBackError(outcome)
            return outcome

    async def _call_together(
        self, batch: Batch, events: list[Event], connection: AnyConnection | None
    ) -> _Outcomes:
        call = batches.BatchCall[_Call](self._bound(batch), opened=0)
        call.members += [_Call(self._subscriber, event) for event in events]
        outcomes: dict[_Call, Outcome] = {}
        with self._running(call):
            if connection is None:
                outcomes = await call.outcomes(self._tools)
            else:
                with suppress(RollBackError):
                    async with connection.transaction():
                        outcomes = await call.outcomes(self._tools, connection)
                        if not any(isinstance(it, Success) for it in outcomes.values()):
                            raise RollBackError(Released())
        return [(member.event, outcome) for member, outcome in outcomes.items()]

    def _bound(self, batch: Batch) -> Subscriber[Any]:
        """The subscriber with the batch, where its function takes that."""
        given = [place for place, kind in self._subscriber.resources if kind is Batch]
        if not given:
            return self._subscriber
        function = partial(self._subscriber.function, **dict.fromkeys(given, batch))
        return replace(self._subscriber, function=function)

    @contextmanager
    def _running(self, call: _Call | batches.BatchCall[_Call]) -> Iterator[None]:
        """Have a call stopped after its timeout, or by `cancel`."""
        timer = None
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

    def _time_out(self, call: _Call | batches.BatchCall[_Call]) -> None:
        if call.stop(Cause.TIMEOUT) and not self._subscriber.is_async:
            first = call if isinstance(call, _Call) else call.members[0]
            self._sink(HandlerStuck(queue=first.event.stream, message_id=first.event.id))

    def _judge(self, outcomes: _Outcomes, verdict: BatchResult) -> None:
        for event, outcome in outcomes:
            match outcome:
                case Released():
                    verdict.is_released = True
                case Rejected():
                    log.warning("%s is rejected: %s", self._named(event), in_line(outcome.reason))
                    self.errors.append(f"event {event.id}: {outcome.reason}")
                    verdict.failed[event.id] = outcome.reason
                case Failed():
                    self._judge_failed(event, outcome, verdict)

    def _judge_failed(self, event: Event, outcome: Failed, verdict: BatchResult) -> None:
        self.errors.append(f"event {event.id}: {outcome.details}")
        attempt = f" in attempt {event.attempts} of {self._subscriber.max_attempts}"
        if not self._comes_again(event, outcome):
            log_failure(log, self._named(event), outcome, attempt, is_last=True)
            verdict.failed[event.id] = outcome.details
            return
        delay = delay_of(event, outcome)
        attempt += f", next try in {delay.total_seconds():.1f} s"
        log_failure(log, self._named(event), outcome, attempt, is_last=False)
        comes = verdict.again if self._subscriber.ordered else verdict.retried
        comes[event.id] = delay, outcome.details
        self._sink(
            EventRetried(
                stream=event.stream,
                subscriber=self._subscriber.name,
                event_id=event.id,
                attempts=event.attempts,
                details=outcome.details,
            )
        )

    def _named(self, event: Event) -> str:
        return f"stream {event.stream!r}: event {event.id} for {self._subscriber.name!r}"

    def _comes_again(self, event: Event, outcome: Outcome) -> bool:
        return (
            isinstance(outcome, Failed)
            and not outcome.gives_up
            and event.attempts < self._subscriber.max_attempts
        )

    async def _pause(self, again: Again) -> bool:
        """Wait before the next call for those that failed. False: it was broken off."""
        if again:
            delay = max(delay for delay, _ in again.values()).total_seconds()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self.cancelled.wait()
        return not self.cancelled.is_set()

    async def _settle(self, batch: Batch, verdict: BatchResult) -> bool:
        """Write down what became of the events, and finish. False: another session has."""
        try:
            if not (verdict.retried or verdict.failed):
                return batch.is_finished or await batch.finish()
            async with self._database.connection() as connection, connection.transaction():
                await verdict.write(connection, batch)
                return batch.is_finished or await batch.within(connection).finish()
        except BatchNotFoundError:
            return False
