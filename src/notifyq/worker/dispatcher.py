"""Dispatches messages to handlers: start them, watch them, settle how they end, stop them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq.execution.call import BatchCall, Cause, is_closing
from notifyq.execution.runtime import Runtime
from notifyq.models.annotations import name
from notifyq.telemetry import HandlerStuck, LocksExtended
from notifyq.worker.heartbeat import Key, Lock
from notifyq.worker.in_flight import Call, Held, InFlight
from notifyq.worker.loop_watch import LoopWatch, Running, Work
from notifyq.worker.prefetch import PATIENCE, Prefetch

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.handlers.handler import Handler
    from notifyq.models.message import Message
    from notifyq.queues.claim_client import ClaimClient
    from notifyq.telemetry import Guarded

log = logging.getLogger("notifyq.worker")

_SETTLE = 10.0
"""Seconds that cancelled handlers get to end and be settled at a stop."""
_WATCH = 0.1
"""Seconds between two checks of timeouts and locks."""


class Dispatcher:
    """Runs handlers on the messages of a worker.

    Up to `concurrency` handlers run at a time, each in a slot; more messages wait, for a short
    time. `on_free` is called whenever there may be room for a claim, `on_failure` with an error
    that no handler has raised. Everything runs on the event loop that starts the first message.
    """

    def __init__(
        self,
        client: ClaimClient,
        telemetry: Guarded,
        *,
        concurrency: int,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        runtime: Runtime | None = None,
        loop_watch: LoopWatch | None = None,
    ) -> None:
        self._telemetry = telemetry
        self._concurrency = concurrency
        self._runtime = runtime or Runtime()
        self._loop_watch = loop_watch or LoopWatch("", telemetry)
        self._prefetch = Prefetch()
        self._waiting: deque[Call] = deque()
        self._gathering: dict[str, BatchCall[Held]] = {}
        self._running = 0
        self._is_stopping = False
        self._releases: set[asyncio.Task[None]] = set()
        self._home: asyncio.AbstractEventLoop
        self._context: contextvars.Context  # each handler gets a copy
        self._in_flight = InFlight(
            client,
            telemetry,
            on_free=on_free,
            on_failure=on_failure,
            on_lost=self._lock_lost,
            on_extended=self._locks_extended,
        )
        self.heartbeat = self._in_flight.heartbeat
        self.counts = self._in_flight.counts
        """Messages by how they were settled: an archive status, `released`, or `lost`."""

    def __len__(self) -> int:
        """How many messages are not settled yet."""
        return len(self._in_flight)

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._running

    @property
    def busy(self) -> int:
        """How many calls are not settled, and how many slots stuck threads hold."""
        return len(self._in_flight.calls) + self._runtime.stuck

    @property
    def room(self) -> int:
        """How many messages may be claimed now; 0 or less: none.

        Enough for all slots and for what they handle in a moment: no slot waits for a claim, and
        where handlers are slow other workers get the messages.
        """
        prefetch = self._prefetch.quantity()
        room = self._concurrency + prefetch - self.busy
        # A few large claims cost the server less than many small ones.
        return room if room >= prefetch // 2 else 0

    def ids(self) -> list[int]:
        """The ids of the messages that are not settled yet."""
        return [message_id for message_id, _token in self._in_flight.keys]

    def start(self, handler: Handler[Any], message: Message, since: float) -> None:
        """Handle a message as soon as a slot is free; messages wait in the order of these calls.

        `since` is when its claim was sent, in monotonic seconds.
        """
        if not self._in_flight:
            self._home = asyncio.get_running_loop()
            self._context = contextvars.copy_context()
        held = Held(handler, message, Lock(message, since, extends=handler.heartbeat))
        if handler.batch is None:
            self._in_flight.add(held)
            self._enter(held)
        else:
            self._gather(held)

    def _gather(self, held: Held) -> None:
        """Add a message to the batch of its queue, which begins when full or after `linger`."""
        queue, handler = held.message.queue, held.handler
        if (batch := self._gathering.get(queue)) is None:
            batch = self._gathering[queue] = BatchCall(handler)
            # Even without linger: the messages of one claim arrive one after the other.
            self._home.call_later(handler.linger.total_seconds(), self._close, batch)
        self._in_flight.add(held, batch)
        if batch.is_full or self._is_stopping:
            self._close(batch)

    def _close(self, batch: BatchCall[Held]) -> None:
        if self._gathering.get(batch.handler.queue) is batch:
            del self._gathering[batch.handler.queue]
            self._enter(batch)

    def _enter(self, call: Call) -> None:
        if not self._waiting and self._free > 0 and not self._is_stopping:
            self._begin(call)
            return
        call.waits_since = time.monotonic()
        self._waiting.append(call)
        if self._is_stopping:
            self._release_waiting()

    def stop_starting(self) -> None:
        """Start no more handlers, and release the messages that wait for a slot."""
        self._is_stopping = True
        for batch in list(self._gathering.values()):
            self._close(batch)
        self._release_waiting()

    async def watch(self) -> None:
        """Stop handlers that are past their timeout or their lock."""
        while True:
            await asyncio.sleep(_WATCH)
            now = time.monotonic()
            for lock in self.heartbeat.expired():
                self._lock_over(lock.key)
            for call in list(self._in_flight.calls):
                timeout, started = call.handler.timeout, call.started
                if timeout is None or started is None:
                    continue
                if now - started >= timeout.total_seconds():
                    self._interrupt(call, Cause.TIMEOUT)
            self._fill()  # the thread that held a slot may have ended
            if self._waiting and now - self._waiting[0].waits_since > PATIENCE:
                self._release_waiting()

    def cancel(self) -> None:
        """Stop all handlers; their messages are released."""
        self.stop_starting()
        for call in list(self._in_flight.calls):
            self._interrupt(call, Cause.STOP)
        self._in_flight.recheck()

    async def drain(self, grace: float, hurried: Callable[[], bool]) -> None:
        """Let handlers end within the grace or until hurried, then cancel them and wait."""
        self.stop_starting()
        await self._in_flight.wait_until_idle(grace, hurried)
        give_up = time.monotonic() + _SETTLE
        while self._in_flight and time.monotonic() < give_up:
            # Repeatedly: a handler may be about to start.
            self.cancel()
            await self._in_flight.wait_until_idle(0.2)

    async def abandon(self) -> None:
        """End what still runs; the reaper takes the messages that are not settled by now."""
        tasks = {call.task for call in self._in_flight.calls if call.task} | self._releases
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=1)
            if left:
                # Their locks are no longer extended: other workers get the messages.
                log.error("%d handlers do not end although they were cancelled", len(left))
        await self._runtime.close()

    @property
    def _free(self) -> int:
        # A thread still works for a handler that was abandoned: its slot is not free.
        return self._concurrency - self._running - self._runtime.stuck

    def _begin(self, call: Call) -> None:
        self._running += 1
        # Not in the context of the caller, which may be the handler of another message.
        call.task = self._home.create_task(self._handle(call), context=self._context.copy())

    def _fill(self) -> None:
        """Give free slots to waiting messages."""
        while self._waiting and self._free > 0:
            deadline = min(held.lock.deadline for held in self._waiting[0].members)
            if deadline <= time.monotonic():
                self._release_waiting()
            else:
                self._begin(self._waiting.popleft())

    def _release_waiting(self) -> None:
        """Release all waiting messages: another worker may start them sooner."""
        if self._waiting:
            released = [held for call in self._waiting for held in call.members]
            self._waiting.clear()
            self._prefetch.reset()
            task = asyncio.create_task(self._in_flight.release(released))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _handle(self, call: Call) -> None:
        began = call.started = time.monotonic()
        try:
            try:
                ended = await call.outcomes(self._runtime)
            except GeneratorExit as error:
                if is_closing(error, call.task):
                    raise
                # From a task that the handler awaits: it has closed all coroutines but this one.
                ended = {held: held.raised(error) for held in call.members}
            finally:
                run = self._ended(call.started or began)
        except BaseException as error:
            for held in call.members:
                self._in_flight.settled(held, error)
            if not isinstance(error, Exception):
                raise  # it ends the worker or the process
        else:
            timeout = call.handler.timeout
            if timeout is not None and run > timeout.total_seconds():
                self._loop_watch.log_late(_work(call), timeout, call.started or began)
            await self._in_flight.settle(ended, run)

    def _ended(self, started: float) -> float:
        """Free a slot; return for how many seconds it was taken."""
        run = time.monotonic() - started
        self._running -= 1
        self._prefetch.handled(run)
        self._fill()
        return run

    def _lock_over(self, key: Key) -> None:
        held = self._in_flight.get(key)
        if held is None:
            return
        if (batch := held.batch) is None:
            self._interrupt(held, Cause.LOCK)
        elif batch.lose(held):
            self._interrupt(batch, Cause.LOCK)

    def _interrupt(self, call: Call, cause: Cause) -> None:
        if call.task is None:
            if call in self._waiting:
                self._release_waiting()
        elif call.stop(cause) and not (call.handler.is_async or call.handler.process):
            message = call.members[0].message
            self._telemetry(HandlerStuck(queue=message.queue, message_id=message.id))

    def on_loop(self) -> list[Running]:
        """The calls of async handlers; called on the listener's loop."""
        # list() of a set is one step of the interpreter, whatever the other thread does.
        calls = [call for call in list(self._in_flight.calls) if call.handler.is_async]
        return [
            Running(call.running_task, _work(call)) for call in calls if call.started is not None
        ]

    def _lock_lost(self, key: Key) -> None:
        # Called on the listener's loop.
        with suppress(RuntimeError):  # the loop is closed: there is nothing left to stop
            self._home.call_soon_threadsafe(self._lock_over, key)

    def _locks_extended(self, quantity: int) -> None:
        if quantity and self._telemetry.wants(LocksExtended):
            with suppress(RuntimeError):
                self._home.call_soon_threadsafe(self._telemetry, LocksExtended(quantity=quantity))


def _work(call: Call) -> Work:
    members = call.members
    return Work(
        handler=name(call.handler.function),
        queue=members[0].message.queue,
        message_id=members[0].message.id,
        more=len(members) - 1,
    )
