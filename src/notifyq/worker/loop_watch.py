"""Watches the event loop of the handlers from the thread of the listener.

While a handler blocks the loop, the other handlers stand still and no timeout fires. Nothing on
that loop can report it: the thread of the listener does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from notifyq.telemetry import LoopBlocked, TelemetryHandler
from notifyq.telemetry.tracebacks import stack_of

if TYPE_CHECKING:
    from notifyq.notify.session import Session

log = logging.getLogger("notifyq.worker")

_TICK = 0.25
"""Seconds between two probes of the loop."""
_TICKS = 4
"""After how many ticks without an answer the loop counts as blocked.

Not seconds: a process that was stopped for a while has not blocked its loop.
"""
_LATE = 1.0
"""Seconds past its timeout after which a call is logged even if nothing blocked the loop."""
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a call of a handler handles: messages of a queue, or events of a batch."""

    handler: str
    """Module and name of the function."""
    queue: str | None = None
    message_id: int | None = None
    """The first message of a call that handles several."""
    stream: str | None = None
    subscriber: str | None = None
    batch_id: int | None = None
    event_id: int | None = None
    more: int = 0
    """How many further messages or events the same call handles."""

    @property
    def title(self) -> str:
        """Its name at the beginning of a log line."""
        return f"{self._source}: {self._item}"

    @property
    def phrase(self) -> str:
        """Its name inside a sentence."""
        return f"{self._item} of {self._source}"

    @property
    def _source(self) -> str:
        return f"queue {self.queue!r}" if self.stream is None else f"stream {self.stream!r}"

    @property
    def _item(self) -> str:
        more = f" and {self.more} more" if self.more else ""
        if self.stream is None:
            return f"message {self.message_id}{more}"
        return f"event {self.event_id}{more} in batch {self.batch_id} for {self.subscriber!r}"


class Running(NamedTuple):
    """A call of an async handler that runs, and the task that runs it."""

    task: asyncio.Task[Any] | None
    work: Work


@dataclass(slots=True, eq=False)
class _Blockage:
    """A time in which the loop did not turn, in monotonic seconds."""

    since: float
    by: Work | None
    until: float | None = None

    def covers(self, instant: float) -> bool:
        """Whether the loop was blocked at this instant; its start is known to a tick."""
        return self.since - _TICK <= instant and (self.until is None or instant <= self.until)


class LoopWatch:
    """Logs each blockage of an event loop: when it has lasted for a second, and when it ends.

    `running` are functions that return the calls of handlers; like `on_change`, which is called
    when a blockage is found and when it is over, they are called on the listener's loop.
    """

    def __init__(self, worker: str, telemetry: TelemetryHandler) -> None:
        self._worker = worker
        self._telemetry = telemetry
        self.running: list[Callable[[], list[Running]]] = []
        self.on_change: Callable[[], None] = lambda: None
        self._home: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        # Between the probe's answer on the one loop and its check on the other one.
        self._lock = threading.Lock()
        self._is_pending = False
        self._sent_at = 0.0
        self._ticks = 0
        self._now: _Blockage | None = None
        self._last: _Blockage | None = None
        self._is_known = False
        """Whether `on_change` was called for the blockage."""

    def watch(self) -> None:
        """Watch the loop that runs in this thread, while `serve` runs in another one."""
        self._home, self._thread = asyncio.get_running_loop(), threading.get_ident()

    @property
    def blocked_for(self) -> float | None:
        """Seconds for which the loop has been blocked until now; None: it is not."""
        blockage = self._now
        return None if blockage is None else time.monotonic() - blockage.since

    async def serve(self, _session: Session) -> None:
        """Probe the loop regularly."""
        while True:
            self._probe()
            await asyncio.sleep(_TICK)
            self._check()

    def _probe(self) -> None:
        with self._lock:
            if self._is_pending or self._home is None:
                return
            self._is_pending, self._sent_at, self._ticks = True, time.monotonic(), 0
        try:
            self._home.call_soon_threadsafe(self._turned)
        except RuntimeError:  # the loop is closed: the worker has ended
            self._is_pending = False

    def _check(self) -> None:
        with self._lock:
            if self._is_pending:
                self._ticks += 1
                if self._ticks >= _TICKS and self._now is None:
                    self._blocked(self._sent_at)
            is_blocked = self._now is not None
        if is_blocked != self._is_known:
            self._is_known = is_blocked
            self.on_change()

    def _blocked(self, since: float) -> None:
        task = asyncio.current_task(self._home)
        running = [it for calls in self.running for it in calls()]
        by = next((it.work for it in running if task is not None and it.task is task), None)
        self._now = self._last = _Blockage(since, by)
        where = stack_of(self._thread)
        seconds = time.monotonic() - since
        if by is not None:
            text = (
                f"{by.title} has blocked the event loop for {seconds:.1f} s, in handler "
                f"{by.handler}: other handlers stand still, and no timeout fires"
            )
        else:
            text = (
                f"the event loop has been blocked for {seconds:.1f} s by a task that no handler "
                f"was started in: handlers stand still, and no timeout fires{_suspects(running)}"
            )
        # In a thread of its own: the blocked thread may hold the lock of a log handler, as when
        # stderr is a full pipe, and the listener's thread must go on to extend locks.
        threading.Thread(
            target=lambda: log.warning("%s. It stands in\n%s", text, where()),
            name="notifyq-loop-watch",
            daemon=True,
        ).start()

    def _turned(self) -> None:
        with self._lock:
            self._is_pending = False
            blockage, self._now = self._now, None
        if blockage is None:
            return
        blockage.until = time.monotonic()
        seconds, by = blockage.until - blockage.since, blockage.by
        title = "a task that no handler was started in" if by is None else by.title
        log.warning("%s blocked the event loop for %.1f s; it turns again", title, seconds)
        names = ("handler", "queue", "message_id", "stream", "subscriber", "batch_id")
        fields = {} if by is None else {name: getattr(by, name) for name in names}
        self._telemetry(LoopBlocked(worker=self._worker, seconds=seconds, **fields))

    def log_late(self, work: Work, timeout: timedelta, began: float) -> None:
        """Log a call that has ended past its timeout because the loop was blocked, or far past.

        `began` is in monotonic seconds. A handler that stops at its timeout is no such call.
        """
        ran, limit = time.monotonic() - began, timeout.total_seconds()
        blockage = self._last
        why = ""
        if blockage is not None and blockage.covers(began + limit):
            if blockage.by is None:
                why = ", because the event loop was blocked"
            elif blockage.by == work:
                why = ", because it blocked the event loop"
            else:
                why = f", because {blockage.by.phrase} blocked the event loop"
        elif ran < limit + _LATE:
            return
        log.warning(
            "%s ended after %.1f s, past its timeout of %g s%s", work.title, ran, limit, why
        )


def _suspects(running: list[Running]) -> str:
    if not running:
        return ""
    named = ", ".join(f"{it.work.handler} ({it.work.title})" for it in running[:_MOST_NAMED])
    return f"; async handlers that run: {named}{', …' if len(running) > _MOST_NAMED else ''}"
