"""The handlers at work: start them, watch over them, settle how they end, and stop them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq.execution.batch import BatchCall
from notifyq.execution.call import Cause, is_closing
from notifyq.execution.runtime import Runtime
from notifyq.notify.wake import PATIENCE
from notifyq.telemetry import HandlerStuck, LocksExtended
from notifyq.worker.heartbeat import Key, Lock
from notifyq.worker.in_flight import Held, InFlight, deadline_of, messages_of
from notifyq.worker.prefetch import Prefetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.handlers.handler import Handler
    from notifyq.models.message import Message
    from notifyq.queues.claim_client import ClaimClient
    from notifyq.telemetry import Guarded

log = logging.getLogger("notifyq.worker")

SETTLE = 10.0
"""Seconds that cancelled handlers and their settlements get at a stop."""
_WATCH = 0.1
"""Seconds between two looks at timeouts and locks."""


class Dispatcher:
    """Every message of a worker from its claim to its settlement.

    Up to `concurrency` handlers run at a time, each in a slot; messages beyond that wait, for a
    short time only. `on_free` is called whenever there may be room for a claim, `on_failure` with
    an error that no handler has made. All of it happens on the event loop that the first message is
    started on.
    """

    def __init__(
        self,
        inbox: ClaimClient,
        sink: Guarded,
        *,
        concurrency: int,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        tools: Runtime | None = None,
    ) -> None:
        self._inbox = inbox
        self._sink = sink
        self._concurrency = concurrency
        self._tools = tools or Runtime()
        self._pace = Prefetch()
        self._waiting: deque[Held | BatchCall[Held]] = deque()
        self._gathering: dict[str, BatchCall[Held]] = {}
        self._running = 0
        self._is_stopping = False
        self._releases: set[asyncio.Task[None]] = set()
        self._home: asyncio.AbstractEventLoop
        self._context: contextvars.Context  # what each handler begins with a copy of
        self._ledger = InFlight(
            inbox,
            sink,
            on_free=on_free,
            on_failure=on_failure,
            on_lost=self._lock_lost,
            on_extended=self._locks_extended,
        )
        self.heartbeat = self._ledger.heartbeat
        self.counts = self._ledger.counts
        """Messages by how they were settled: an archive status, `released`, or `lost`."""

    def __len__(self) -> int:
        """How many messages are not settled yet."""
        return len(self._ledger)

    @property
    def running(self) -> int:
        """How many calls of handlers are under way."""
        return self._running

    @property
    def busy(self) -> int:
        """How many calls have messages that are not settled, and slots that stuck threads hold."""
        return self._ledger.calls + self._tools.stuck

    @property
    def room(self) -> int:
        """How many messages may be claimed now; 0 or less: none.

        Enough for all slots and for what they will handle in a moment: so no slot waits for a
        claim, and where handlers are slow other workers get what these have no slot for.
        """
        ahead = self._pace.ahead()
        room = self._concurrency + ahead - self.busy
        # A few large claims cost the server less than many small ones.
        return room if room >= ahead // 2 else 0

    def ids(self) -> list[int]:
        """The ids of the messages that are not settled yet."""
        return [message_id for message_id, _token in self._ledger.keys]

    def start(self, handler: Handler[Any], message: Message, since: float) -> None:
        """Handle a message as soon as a slot is free; messages wait in the order of these calls.

        `since` is when its claim was sent, in monotonic seconds.
        """
        if not self._ledger:
            self._home = asyncio.get_running_loop()
            self._context = contextvars.copy_context()
        held = Held(handler, message, Lock(message, since, extends=handler.heartbeat))
        self._ledger.add(held)
        if handler.batch is None:
            self._enter(held)
        else:
            self._gather(held)

    def _gather(self, held: Held) -> None:
        """Add a message to the batch of its queue, which begins when it is full or has lingered."""
        queue, handler = held.message.queue, held.handler
        if (batch := self._gathering.get(queue)) is None:
            batch = self._gathering[queue] = BatchCall(handler, opened=time.monotonic())
            # Not at once: the messages of one claim come one after the other.
            self._home.call_later(handler.linger.total_seconds(), self._close, batch)
        self._ledger.join(held, batch)
        if batch.is_full or self._is_stopping:
            self._close(batch)

    def _close(self, batch: BatchCall[Held]) -> None:
        if self._gathering.get(batch.handler.queue) is batch:
            del self._gathering[batch.handler.queue]
            self._enter(batch)

    def _enter(self, call: Held | BatchCall[Held]) -> None:
        if not self._waiting and self._free > 0 and not self._is_stopping:
            self._begin(call)
            return
        call.waits_since = time.monotonic()
        self._waiting.append(call)
        if self._is_stopping:
            self._give_back()

    def stop_starting(self) -> None:
        """From now on let running handlers end, and release what waits for a slot."""
        self._is_stopping = True
        for batch in list(self._gathering.values()):
            self._close(batch)
        self._give_back()

    async def watch(self) -> None:
        """Stop handlers that are past their timeout or their lock, for ever."""
        while True:
            await asyncio.sleep(_WATCH)
            now = time.monotonic()
            for lock in self.heartbeat.expired():
                self._stop(lock.key, Cause.LOCK)
            for call in self._ledger.open_calls():
                timeout, started = call.handler.timeout, call.started
                if timeout is None or started is None:
                    continue
                if now - started >= timeout.total_seconds():
                    self._interrupt(call, Cause.TIMEOUT)
            self._fill()  # the thread that held a slot may have ended
            if self._waiting and now - self._waiting[0].waits_since > PATIENCE:
                self._give_back()

    def cancel(self) -> None:
        """Stop all handlers; their messages are released."""
        self.stop_starting()
        for call in self._ledger.open_calls():
            self._interrupt(call, Cause.STOP)
        self._ledger.stir()

    async def drain(self, grace: float, hurried: Callable[[], bool]) -> None:
        """Let handlers end within the grace or until hurried, then cancel them and wait."""
        self.stop_starting()
        await self._ledger.wait_until_idle(grace, hurried)
        give_up = time.monotonic() + SETTLE
        while self._ledger and time.monotonic() < give_up:
            # Again and again: a handler may be about to start.
            self.cancel()
            await self._ledger.wait_until_idle(0.2)

    async def abandon(self) -> None:
        """End whatever still runs; what is not settled by now is left to the reaper."""
        calls = self._ledger.open_calls()
        tasks = {call.task for call in calls if call.task} | self._releases
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=1)
            if left:
                # Their locks are extended no more, so other workers get the messages.
                log.error("%d handlers do not end although they were cancelled", len(left))
        await self._tools.close()

    @property
    def _free(self) -> int:
        # A thread whose handler was given up still works: its slot is not free.
        return self._concurrency - self._running - self._tools.stuck

    def _begin(self, call: Held | BatchCall[Held]) -> None:
        self._running += 1
        handling = self._handle(call) if isinstance(call, Held) else self._handle_batch(call)
        # Not in the context of whoever calls: that may be the handler of another message.
        call.task = self._home.create_task(handling, context=self._context.copy())

    def _fill(self) -> None:
        """Give free slots to what waits."""
        while self._waiting and self._free > 0:
            if deadline_of(self._waiting[0]) <= time.monotonic():
                self._give_back()
            else:
                self._begin(self._waiting.popleft())

    def _give_back(self) -> None:
        """Release all that waits: whoever claims it next may start it sooner."""
        if self._waiting:
            released = [held for call in self._waiting for held in messages_of(call)]
            self._waiting.clear()
            self._pace.stumble()
            task = asyncio.create_task(self._ledger.release(released))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _handle(self, held: Held) -> None:
        taken = held.started = time.monotonic()
        try:
            try:
                held.ended = await held.outcome(self._tools)
            except GeneratorExit as error:
                if is_closing(error, held.task):
                    raise
                # Of a task that the handler awaits: it has closed all coroutines but this one.
                held.ended = held.raised(error)
            finally:
                held.run = self._ended(held.started or taken)
        except BaseException as error:
            self._ledger.fail(held, error)
            if not isinstance(error, Exception):
                raise  # of the worker or of the process
        else:
            await self._ledger.settle(held)

    async def _handle_batch(self, batch: BatchCall[Held]) -> None:
        batch.started = time.monotonic()
        try:
            try:
                ended = await batch.outcomes(self._tools)
            except GeneratorExit as error:  # as above
                if is_closing(error, batch.task):
                    raise
                ended = {held: held.raised(error) for held in batch.members}
            finally:
                run = self._ended(batch.started)
        except BaseException as error:
            for held in batch.members:
                self._ledger.fail(held, error)
            if not isinstance(error, Exception):
                raise  # of the worker or of the process
        else:
            for held, outcome in ended.items():
                held.ended, held.run = outcome, run
            # At once: what has failed is not kept waiting by what else has.
            await asyncio.gather(*(self._ledger.settle(held) for held in ended))

    def _ended(self, started: float) -> float:
        """Free a slot, and tell for how many seconds it was taken."""
        run = time.monotonic() - started
        self._running -= 1
        self._pace.handled(run)
        self._fill()
        return run

    def _stop(self, key: Key, cause: Cause) -> None:
        held = self._ledger.get(key)
        if held is None:
            return
        if (batch := held.batch) is None:
            self._interrupt(held, cause)
        elif batch.lose(held):
            self._interrupt(batch, cause)

    def _interrupt(self, call: Held | BatchCall[Held], cause: Cause) -> None:
        if call.task is None:
            if call in self._waiting:
                self._give_back()
        elif call.stop(cause) and not (call.handler.is_async or call.handler.process):
            message = messages_of(call)[0].message
            self._sink(HandlerStuck(queue=message.queue, message_id=message.id))

    def _lock_lost(self, key: Key) -> None:
        # Called on the listener's loop.
        with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
            self._home.call_soon_threadsafe(self._stop, key, Cause.LOCK)

    def _locks_extended(self, quantity: int) -> None:
        if quantity and self._sink.hears(LocksExtended):
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._sink, LocksExtended(quantity=quantity))
