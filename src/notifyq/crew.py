"""The handlers at work: start them, watch over them, settle how they end, and stop them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from notifyq.events import HandlerStuck, LockLost, MessageFinished
from notifyq.executor import Cause, Execution
from notifyq.heartbeat import Heartbeat, Key, Lock
from notifyq.model import Failed, Outcome, Released, Success
from notifyq.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.events import Sink
    from notifyq.handlers import Handler
    from notifyq.inbox import Inbox
    from notifyq.model import Message

log = logging.getLogger("notifyq.worker")

SETTLE = 10.0
"""Seconds that cancelled handlers and their settlements get at a stop."""
_WATCH = 0.1
"""Seconds between two looks at timeouts and locks of running handlers."""


class Crew:
    """Every message of a worker from its claim to its settlement.

    `on_free` is called whenever a slot may have become free, `on_failure` with an error that no
    handler has made. All of it happens on the event loop that the first message is started on.
    """

    def __init__(
        self,
        inbox: Inbox,
        sink: Sink,
        *,
        on_free: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._inbox = inbox
        self._sink = sink
        self._on_free = on_free
        self._on_failure = on_failure
        self._threads = Threads()
        self._running: dict[Key, Execution] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._home: asyncio.AbstractEventLoop | None = None
        self.heartbeat = Heartbeat(self._lock_lost)
        self.counts: Counter[str] = Counter()
        """Messages by how they were settled: an archive status, `released`, or `lost`."""

    def __len__(self) -> int:
        """How many messages are not settled yet."""
        return len(self._running)

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        # A thread whose handler was given up still works: its slot is not free.
        return len(self._running) + self._threads.stuck

    def ids(self) -> list[int]:
        """The ids of the messages that are not settled yet."""
        return [message_id for message_id, _token in self._running]

    def start(self, handler: Handler[Any, Any], message: Message, since: float) -> None:
        """Handle a message whose claim was sent at `since`, in monotonic seconds."""
        self._home = asyncio.get_running_loop()
        execution = Execution(handler, message)
        lock = Lock.granted(message, since, extends=handler.heartbeat)
        self._running[lock.key] = execution
        self.heartbeat.add(lock)
        task = asyncio.create_task(self._handle(execution, lock))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def watch(self) -> None:
        """Stop handlers that are past their timeout or their lock, for ever."""
        while True:
            await asyncio.sleep(_WATCH)
            now = time.monotonic()
            for lock in self.heartbeat.expired():
                self._stop(lock.key, Cause.LOCK)
            for key, execution in list(self._running.items()):
                timeout, started = execution.handler.timeout, execution.started
                if timeout is None or started is None:
                    continue
                if now - started >= timeout.total_seconds():
                    self._stop(key, Cause.TIMEOUT)

    def cancel(self) -> None:
        """Stop all handlers; their messages are released."""
        for key in list(self._running):
            self._stop(key, Cause.STOP)
        self._changed.set()

    async def drain(self, grace: float, hurried: Callable[[], bool]) -> None:
        """Let handlers end within the grace or until hurried, then cancel them and wait."""
        await self._wait_until_idle(grace, hurried)
        give_up = time.monotonic() + SETTLE
        while self._running and time.monotonic() < give_up:
            # Again and again: a handler may be about to start.
            self.cancel()
            await self._wait_until_idle(0.2)

    async def abandon(self) -> None:
        """End whatever still runs; what is not settled by now is left to the reaper."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=1)
            if left:
                # Their locks are extended no more, so other workers get the messages.
                log.error("%d handlers do not end although they were cancelled", len(left))
        self._threads.close()

    async def _handle(self, execution: Execution, lock: Lock) -> None:
        message = execution.message
        started = execution.started = time.monotonic()
        try:
            outcome = await execution.outcome(self._threads)
            run = time.monotonic() - started
            self.heartbeat.remove(lock)
            held = await self._inbox.settle(message, outcome)
            self._report(message, outcome, run, held=held)
        except Exception as error:  # noqa: BLE001  whatever it is, the worker must not go on
            self._on_failure(error)
        finally:
            self.heartbeat.remove(lock)
            del self._running[lock.key]
            self._changed.set()
            self._on_free()

    def _report(self, message: Message, outcome: Outcome, run: float, *, held: bool) -> None:
        status = _status(outcome)
        self.counts[status if held else "lost"] += 1
        if not held:
            self._sink(
                LockLost(queue=message.queue, message_id=message.id, lock_token=message.lock_token)
            )
            return
        locked_at = message.locked_at or message.created_at
        self._sink(
            MessageFinished(
                queue=message.queue,
                message_id=message.id,
                status=status,
                wait=(locked_at - message.created_at).total_seconds(),
                run=run,
                details=getattr(outcome, "details", getattr(outcome, "reason", None)),
            )
        )

    def _stop(self, key: Key, cause: Cause) -> None:
        execution = self._running.get(key)
        if execution is None or not execution.is_running or execution.cause is not None:
            return
        execution.stop(cause)
        if not execution.handler.is_async:
            message = execution.message
            self._sink(HandlerStuck(queue=message.queue, message_id=message.id))

    def _lock_lost(self, key: Key) -> None:
        # Called on the listener's loop.
        if self._home is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                self._home.call_soon_threadsafe(self._stop, key, Cause.LOCK)

    async def _wait_until_idle(
        self, seconds: float, hurried: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until every claimed message is settled, for so long, or until hurried."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._running and not hurried():
                    self._changed.clear()
                    await self._changed.wait()


def _status(outcome: Outcome) -> str:
    match outcome:
        case Success():
            return "success"
        case Released():
            return "released"
        case Failed():
            return outcome.status.value
        case _:
            return "rejected"
