"""Runs handlers on messages: each is held from its claim until it is settled."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from notifyq.database.refusals import concerns_all, is_refusal
from notifyq.execution.call import BatchCall, Cause, HandlerCall
from notifyq.execution.runtime import Runtime, is_closing
from notifyq.handlers.handler import Handler
from notifyq.models.annotations import name
from notifyq.models.message import Message, Retried
from notifyq.models.outcome import (
    Committed,
    Failed,
    Outcome,
    Rejected,
    Released,
    Success,
    Suspended,
)
from notifyq.notify.wake import call_on
from notifyq.printable import in_line
from notifyq.telemetry import Guarded, HandlerStuck, LockLost, LocksExtended, MessageFinished
from notifyq.telemetry.tracebacks import log_failure
from notifyq.telemetry.tracing import trace_id_of
from notifyq.worker.fetch import PATIENCE, Prefetch
from notifyq.worker.heartbeat import Heartbeat, Lock
from notifyq.worker.loop_watch import LoopWatch, Running, Work
from notifyq.worker.settle import Answer, Key, Settler

log = logging.getLogger("notifyq.worker")

_SETTLE = 10.0
"""Seconds that cancelled handlers get to end and be settled at a stop."""
_WATCH = 0.1
"""Seconds between two checks of timeouts and locks."""
_NOTHING = Released()
"""The outcome of a message that is not handled yet, or is settled."""


class Held(HandlerCall, Lock):
    """A message from its claim until it is settled: its call, its lock, and a batch of one."""

    __slots__ = (
        "batch", "deadline", "ended", "extend_at", "extends", "key", "run", "seconds",
        "waits_since",
    )  # fmt: skip

    def __init__(self, handler: Handler[Any], message: Message, since: float) -> None:
        HandlerCall.__init__(self, handler, message)
        Lock.__init__(self, message, since, extends=handler.heartbeat)
        self.batch: BatchCall[Held] | None = None
        """The call that handles it together with others."""
        self.waits_since = 0.0
        self.ended: Outcome = _NOTHING
        self.run = 0.0  # seconds

    @property
    def members(self) -> list[Held]:
        """The message itself."""
        return [self]

    async def outcomes(self, runtime: Runtime) -> dict[Held, Outcome]:
        """Handle it, as a batch does."""
        return {self: await self.outcome(runtime)}


Call = Held | BatchCall[Held]


class Runner:
    """Runs handlers on the messages of a worker.

    Up to `concurrency` handlers run at a time, each in a slot; more messages wait, for a short
    time. Everything runs on the event loop that starts the first message. `wake` is set when a
    worker that `is_full` has settled a message; `on_failure` is called with an error that no
    handler has raised.
    """

    def __init__(
        self,
        settler: Settler,
        telemetry: Guarded,
        wake: asyncio.Event,
        *,
        concurrency: int,
        on_failure: Callable[[BaseException], None],
        runtime: Runtime | None = None,
        loop_watch: LoopWatch | None = None,
    ) -> None:
        self._settler = settler
        self._telemetry = telemetry
        self._wake = wake
        self._concurrency = concurrency
        self._on_failure = on_failure
        self._runtime = runtime or Runtime()
        self._loop_watch = loop_watch or LoopWatch("", telemetry)
        self._prefetch = Prefetch()
        self._waiting: deque[Call] = deque()
        self._gathering: dict[str, BatchCall[Held]] = {}
        self._running = 0
        self._is_stopping = self._is_hurried = False
        self._changed = asyncio.Event()
        self._home: asyncio.AbstractEventLoop
        self._context: contextvars.Context  # each handler gets a copy
        # By token too: a worker may claim a message again while it settles a lock that it lost.
        self.held: dict[Key, Held] = {}
        """The messages that are not settled yet."""
        self._unsettled: dict[Call, int] = {}
        """Calls of handlers, and how many messages of each are not settled yet."""
        self.is_full = False
        """Whether the worker waits for a slot."""
        self.heartbeat = Heartbeat(self.held, self._lock_lost, self._locks_extended)
        self.counts: Counter[str] = Counter()
        """Messages by how they were settled: an archive status, `released`, or `lost`."""

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._running

    @property
    def calls(self) -> list[Call]:
        """Calls of handlers with a message that is not settled yet."""
        # list() of a dict is one step of the interpreter, whatever the other thread does.
        return list(self._unsettled)

    @property
    def busy(self) -> int:
        """How many calls are not settled, and how many slots stuck threads hold."""
        return len(self._unsettled) + self._runtime.stuck

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

    def start(self, handler: Handler[Any], message: Message, since: float) -> None:
        """Handle a message as soon as a slot is free; messages wait in the order of these calls.

        `since` is when its claim was sent, in monotonic seconds.
        """
        if not self.held:
            self._home = asyncio.get_running_loop()
            self._context = contextvars.copy_context()
        held = Held(handler, message, since)
        if handler.batch is None:
            self._hold(held, held)
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
        held.batch = batch
        batch.members.append(held)
        self._hold(held, batch)
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
            self._home.call_soon(self._release_waiting)  # once for all that arrive together

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
            for call in self.calls:
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
        for call in self.calls:
            self._interrupt(call, Cause.STOP)
        self._is_hurried = True
        self._changed.set()

    async def drain(self, grace: float) -> None:
        """Let handlers end within the grace or until `cancel`, then cancel them and wait."""
        self.stop_starting()
        if not self._is_hurried:
            await self._until_idle(grace)
        give_up = time.monotonic() + _SETTLE
        while self.held and time.monotonic() < give_up:
            # Repeatedly: a handler may be about to start.
            self.cancel()
            await self._until_idle(0.2)

    async def _until_idle(self, seconds: float) -> None:
        """Wait until every message is settled, at most for so long, or until hurried meanwhile."""
        was_hurried = self._is_hurried
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.held and self._is_hurried == was_hurried:
                    self._changed.clear()
                    await self._changed.wait()

    async def abandon(self) -> None:
        """End what still runs; the reaper takes the messages that are not settled by now."""
        self._runtime.is_abandoned = True
        tasks = {call.task for call in self.calls if call.task}
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
            first = self._waiting[0]
            if isinstance(first, Held):
                deadline = first.deadline
            else:
                deadline = min(held.deadline for held in first.members)
            if deadline <= time.monotonic():
                self._release_waiting()
            else:
                self._begin(self._waiting.popleft())

    def _release_waiting(self) -> None:
        """Release all waiting messages: another worker may start them sooner."""
        if not self._waiting:
            return
        released = [held for call in self._waiting for held in call.members]
        self._waiting.clear()
        self._prefetch.reset()
        for held in released:
            held.extends = False
        self._settle(dict.fromkeys(released, Released()))

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
                self._failed(held, error)
            if not isinstance(error, Exception):
                raise  # it ends the worker or the process
        else:
            timeout = call.handler.timeout
            if timeout is not None and run > timeout.total_seconds():
                self._loop_watch.log_late(_work(call), timeout, call.started or began)
            self._settle(ended, run)

    def _ended(self, started: float) -> float:
        """Free a slot; return for how many seconds it was taken."""
        run = time.monotonic() - started
        self._running -= 1
        self._prefetch.handled(run)
        self._fill()
        return run

    def _lock_over(self, key: Key) -> None:
        held = self.held.get(key)
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
        calls = [call for call in self.calls if call.handler.is_async]
        return [
            Running(call.running_task, _work(call)) for call in calls if call.started is not None
        ]

    def _lock_lost(self, key: Key) -> None:
        # Called on the listener's loop.
        call_on(self._home, self._lock_over, key)

    def _locks_extended(self, quantity: int) -> None:
        if quantity and self._telemetry.wants(LocksExtended):
            call_on(self._home, self._telemetry, LocksExtended(quantity=quantity))

    def _settle(self, ended: dict[Held, Outcome], run: float = 0.0) -> None:
        """Record how messages ended after so many seconds; none waits for another one."""
        # The heartbeat goes on: this may take longer than a lock lasts.
        for held, outcome in ended.items():
            held.ended, held.run = outcome, run
            log_ = None if held.records is None else held.records.close()
            answered = self._settler.add(held.message, outcome, log_)
            answered.add_done_callback(partial(self._settled, held))

    def _settled(self, held: Held, answered: asyncio.Future[Answer]) -> None:
        if answered.cancelled():
            self._forget(held)
        elif (error := answered.exception()) is not None:
            self._failed(held, error)
        elif self._forget(held):
            answer = answered.result()
            if isinstance(answer, Committed):
                held.ended = answer
            if answer and not isinstance(held.ended, Success):
                _log(held, answer)
            try:
                self._report(held, is_held=bool(answer))
            except Exception:
                log.exception("the end of message %d was not reported", held.message.id)
        # An error refers to its frames, which refer to this message: a cycle costs a collection.
        held.ended = _NOTHING

    def _failed(self, held: Held, error: BaseException) -> None:
        """End a message whose end was not recorded."""
        message = held.message
        if not self._forget(held) or not isinstance(error, Exception):
            return
        if not is_refusal(error) or concerns_all(error):
            self._on_failure(error)  # the worker must not go on with an unknown error
            return
        self.counts["lost"] += 1
        log.error(
            "queue %r: the end of message %d is refused, its lock expires: %s: %s",
            message.queue, message.id, type(error).__name__, error,
        )  # fmt: skip

    def _hold(self, held: Held, call: Call) -> None:
        self.held[held.key] = held
        self._unsettled[call] = self._unsettled.get(call, 0) + 1

    def _forget(self, held: Held) -> bool:
        """Hold a message no longer; false if it is not held."""
        if self.held.pop(held.key, None) is None:
            return False
        call = held.batch or held
        self._unsettled[call] -= 1
        if not self._unsettled[call]:
            del self._unsettled[call]
        if self._is_stopping:
            self._changed.set()
        if self.is_full:
            self._wake.set()
        return True

    def _report(self, held: Held, *, is_held: bool) -> None:
        message, outcome, status = held.message, held.ended, str(held.ended.status)
        self.counts[status if is_held else "lost"] += 1
        if not is_held:
            self._telemetry(
                LockLost(queue=message.queue, message_id=message.id, lock_token=message.lock_token)
            )
        elif not isinstance(outcome, Suspended) and self._telemetry.wants(MessageFinished):
            locked_at = message.locked_at or message.created_at
            available_at = max(message.created_at, message.available_at)
            self._telemetry(
                MessageFinished(
                    queue=message.queue,
                    message_id=message.id,
                    lock_token=message.lock_token,
                    status=status,
                    attempts=message.attempts,
                    wait=(locked_at - message.created_at).total_seconds(),
                    queued=(locked_at - available_at).total_seconds(),
                    run=held.run,
                    details=getattr(outcome, "details", getattr(outcome, "reason", None)),
                )
            )


def _work(call: Call) -> Work:
    members = call.members
    return Work(
        handler=name(call.handler.function),
        queue=members[0].message.queue,
        message_id=members[0].message.id,
        more=len(members) - 1,
    )


def _log(held: Held, answer: Answer) -> None:
    message = held.message
    what = f"queue {message.queue!r}: message {message.id}"
    fields = {
        "queue": message.queue,
        "message_id": message.id,
        "attempt": message.attempts,
        "trace_id": trace_id_of(message.headers),
    }
    match held.ended:
        case Rejected(reason):
            log.warning("%s is rejected: %s", what, in_line(reason), extra={"event": fields})
        case Failed():
            # A plain True: whether another attempt follows was in an answer that was lost.
            attempt = f" in attempt {message.attempts}"
            is_last = False
            if isinstance(answer, Retried):
                attempt += f" of {answer.max_attempts}"
                is_last = answer.delay is None
                if answer.delay is not None:
                    attempt += f", next try in {max(answer.delay.total_seconds(), 0):.1f} s"
            log_failure(log, what, held.ended, attempt, is_last=is_last, fields=fields)
