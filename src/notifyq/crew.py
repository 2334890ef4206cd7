"""The handlers at work: start them, watch over them, settle how they end, and stop them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections import Counter, deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from notifyq.events import HandlerStuck, LockLost, MessageFinished
from notifyq.executor import Cause, Execution
from notifyq.heartbeat import Heartbeat, Key, Lock
from notifyq.model import Outcome, Rejected, Released, Success
from notifyq.pace import PATIENCE, Pace
from notifyq.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.events import Guarded
    from notifyq.handlers import Handler
    from notifyq.inbox import Inbox
    from notifyq.model import Message

log = logging.getLogger("notifyq.worker")

SETTLE = 10.0
"""Seconds that cancelled handlers and their settlements get at a stop."""
_WATCH = 0.1
"""Seconds between two looks at timeouts and locks."""


class _Held(Execution):
    """A message from its claim to its settlement; without a task it waits for a slot."""

    __slots__ = ("ended", "lock", "run", "waits_since")

    def __init__(self, handler: Handler[Any], message: Message, lock: Lock) -> None:
        super().__init__(handler, message)
        self.lock = lock
        self.waits_since = 0.0
        self.ended: Outcome = Released()
        self.run = 0.0  # seconds


class Crew:
    """Every message of a worker from its claim to its settlement.

    Up to `concurrency` handlers run at a time, each in a slot; messages beyond that wait, for a
    short time only. `on_free` is called whenever there may be room for a claim, `on_failure` with
    an error that no handler has made. All of it happens on the event loop that the first message is
    started on.
    """

    def __init__(
        self,
        inbox: Inbox,
        sink: Guarded,
        *,
        concurrency: int,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._inbox = inbox
        self._sink = sink
        self._concurrency = concurrency
        self._on_free = on_free
        self._on_failure = on_failure
        self._threads = Threads()
        self._pace = Pace()
        self._held: dict[Key, _Held] = {}
        self._waiting: deque[_Held] = deque()
        self._running = 0
        self._is_stopping = False
        self._releases: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._home: asyncio.AbstractEventLoop
        self._context: contextvars.Context  # what each handler begins with a copy of
        self.heartbeat = Heartbeat(self._lock_lost)
        self.counts: Counter[str] = Counter()
        """Messages by how they were settled: an archive status, `released`, or `lost`."""

    def __len__(self) -> int:
        """How many messages are not settled yet."""
        return len(self._held)

    @property
    def busy(self) -> int:
        """How many messages are not settled yet, and how many slots stuck threads hold."""
        return len(self._held) + self._threads.stuck

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
        return [message_id for message_id, _token in self._held]

    def start(self, handler: Handler[Any], message: Message, since: float) -> None:
        """Handle a message as soon as a slot is free; messages wait in the order of these calls.

        `since` is when its claim was sent, in monotonic seconds.
        """
        if not self._held:
            self._home = asyncio.get_running_loop()
            self._context = contextvars.copy_context()
        held = _Held(handler, message, Lock(message, since, extends=handler.heartbeat))
        self._held[held.lock.key] = held
        self.heartbeat.add(held.lock)
        if not self._waiting and self._free > 0 and not self._is_stopping:
            self._begin(held)
            return
        held.waits_since = time.monotonic()
        self._waiting.append(held)
        if self._is_stopping:
            self._give_back()

    def stop_starting(self) -> None:
        """From now on let running handlers end, and release what waits for a slot."""
        self._is_stopping = True
        self._give_back()

    async def watch(self) -> None:
        """Stop handlers that are past their timeout or their lock, for ever."""
        while True:
            await asyncio.sleep(_WATCH)
            now = time.monotonic()
            for lock in self.heartbeat.expired():
                self._stop(lock.key, Cause.LOCK)
            for key, held in list(self._held.items()):
                timeout, started = held.handler.timeout, held.started
                if timeout is None or started is None:
                    continue
                if now - started >= timeout.total_seconds():
                    self._stop(key, Cause.TIMEOUT)
            self._fill()  # the thread that held a slot may have ended
            if self._waiting and now - self._waiting[0].waits_since > PATIENCE:
                self._give_back()

    def cancel(self) -> None:
        """Stop all handlers; their messages are released."""
        self.stop_starting()
        for key in list(self._held):
            self._stop(key, Cause.STOP)
        self._changed.set()

    async def drain(self, grace: float, hurried: Callable[[], bool]) -> None:
        """Let handlers end within the grace or until hurried, then cancel them and wait."""
        self.stop_starting()
        await self._wait_until_idle(grace, hurried)
        give_up = time.monotonic() + SETTLE
        while self._held and time.monotonic() < give_up:
            # Again and again: a handler may be about to start.
            self.cancel()
            await self._wait_until_idle(0.2)

    async def abandon(self) -> None:
        """End whatever still runs; what is not settled by now is left to the reaper."""
        tasks = {held.task for held in self._held.values() if held.task} | self._releases
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=1)
            if left:
                # Their locks are extended no more, so other workers get the messages.
                log.error("%d handlers do not end although they were cancelled", len(left))
        self._threads.close()

    @property
    def _free(self) -> int:
        # A thread whose handler was given up still works: its slot is not free.
        return self._concurrency - self._running - self._threads.stuck

    def _begin(self, held: _Held) -> None:
        self._running += 1
        # Not in the context of whoever calls: that may be the handler of another message.
        held.task = self._home.create_task(self._handle(held), context=self._context.copy())

    def _fill(self) -> None:
        """Give free slots to what waits."""
        while self._waiting and self._free > 0:
            if self._waiting[0].lock.deadline <= time.monotonic():
                self._give_back()
            else:
                self._begin(self._waiting.popleft())

    def _give_back(self) -> None:
        """Release all that waits: whoever claims it next may start it sooner."""
        if self._waiting:
            released = list(self._waiting)
            self._waiting.clear()
            self._pace.stumble()
            task = asyncio.create_task(self._release(released))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, released: list[_Held]) -> None:
        for held in released:
            self.heartbeat.remove(held.lock)
        try:
            kept = await self._inbox.release([held.message for held in released])
        except BaseException as error:
            for held in released:
                self._settled(held, error)
            if not isinstance(error, Exception):
                raise  # of the worker or of the process
        else:
            for held in released:
                self._settled(held, held.message.id in kept)

    async def _handle(self, held: _Held) -> None:
        started = held.started = time.monotonic()
        try:
            try:
                held.ended = await held.outcome(self._threads)
            finally:
                held.run = time.monotonic() - started
                self._running -= 1
                self._pace.handled(held.run)
                self._fill()
            # Its lock is extended on: to write the outcome down may take longer than it lasts.
            if isinstance(held.ended, Success | Rejected):
                self._inbox.finish(held.message, held.ended, partial(self._settled, held))
            else:
                self._settled(held, await self._inbox.settle(held.message, held.ended))
        except BaseException as error:
            self._settled(held, error)
            if not isinstance(error, Exception):
                raise  # of the worker or of the process

    def _settled(self, held: _Held, answer: bool | BaseException) -> None:  # noqa: FBT001
        """Take the answer to a settlement: whether the lock was held, or what went wrong."""
        self.heartbeat.remove(held.lock)
        del self._held[held.lock.key]
        self._changed.set()
        self._on_free()
        if isinstance(answer, Exception):
            self._on_failure(answer)  # whatever it is, the worker must not go on
        elif not isinstance(answer, BaseException):
            self._report(held, is_held=answer)

    def _report(self, held: _Held, *, is_held: bool) -> None:
        message, outcome, status = held.message, held.ended, str(held.ended.status)
        self.counts[status if is_held else "lost"] += 1
        if not is_held:
            self._sink(
                LockLost(queue=message.queue, message_id=message.id, lock_token=message.lock_token)
            )
        elif self._sink.hears(MessageFinished):
            locked_at = message.locked_at or message.created_at
            self._sink(
                MessageFinished(
                    queue=message.queue,
                    message_id=message.id,
                    lock_token=message.lock_token,
                    status=status,
                    wait=(locked_at - message.created_at).total_seconds(),
                    run=held.run,
                    details=getattr(outcome, "details", getattr(outcome, "reason", None)),
                )
            )

    def _stop(self, key: Key, cause: Cause) -> None:
        held = self._held.get(key)
        if held is None:
            return
        if held.task is None:
            self._give_back()
        elif held.is_running and held.cause is None:
            held.stop(cause)
            if not held.handler.is_async:
                self._sink(HandlerStuck(queue=held.message.queue, message_id=held.message.id))

    def _lock_lost(self, key: Key) -> None:
        # Called on the listener's loop.
        with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
            self._home.call_soon_threadsafe(self._stop, key, Cause.LOCK)

    async def _wait_until_idle(
        self, seconds: float, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every claimed message is settled, for so long, or until hurried."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._held and not hurried():
                    self._changed.clear()
                    await self._changed.wait()
