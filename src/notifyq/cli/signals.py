"""How a worker is stopped: by signals, and over the socket of its supervisor.

A supervisor passes stop requests over a socket pair: Ctrl-C and some service managers signal every
process, and a worker could not distinguish those signals from its supervisor's. The socket closes
when the supervisor ends, in whatever way, which stops the worker as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from notifyq.telemetry import TelemetryEvent, TelemetryHandler, WorkerStarted

log = logging.getLogger("notifyq.processes")

SLOT = "_NOTIFYQ_SLOT"
"""Environment variable that makes a process the worker of a supervisor: number:descriptor."""

STARTED = b"+"
TEMPORARY = b"?"
STOP = b"-"


class Control:
    """A worker's end of the socket to its supervisor."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self._channel = channel
        self._stops = 0

    @classmethod
    def inherited(cls) -> Control | None:
        """Return the control of this process; None where no supervisor has started it."""
        # Removed: a process that a handler starts is not a worker of this supervisor.
        slot = os.environ.pop(SLOT, None)
        if slot is None:
            return None
        number, descriptor = map(int, slot.split(":"))
        channel = socket.socket(fileno=descriptor)
        channel.set_inheritable(False)
        channel.setblocking(False)
        return cls(number, channel)

    def reporting(self, telemetry: TelemetryHandler) -> TelemetryHandler:
        """Make a telemetry handler that also reports to the supervisor that the worker started."""

        def emit(event: TelemetryEvent) -> None:
            telemetry(event)
            if isinstance(event, WorkerStarted):
                self._send(STARTED)

        return emit

    def report_temporary(self) -> None:
        """Report that the error that ends this worker may not meet the next one."""
        self._send(TEMPORARY)

    @contextlib.contextmanager
    def listening(self, reach: Callable[[int], object]) -> Iterator[None]:
        """Call `reach` with the number of stop requests so far, whenever one arrives."""
        loop = asyncio.get_running_loop()

        def receive() -> None:
            requests = received(self._channel)
            if requests:
                self._stops += len(requests)
            elif requests is not None:
                loop.remove_reader(self._channel)
                log.warning("the supervisor is gone: this worker stops")
                self._stops = max(self._stops, 1)
            reach(self._stops)

        loop.add_reader(self._channel, receive)
        try:
            yield
        finally:
            loop.remove_reader(self._channel)

    def _send(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # listening() notices that the supervisor is gone
            self._channel.send(what)


def received(channel: socket.socket) -> bytes | None:
    """Return what has arrived: empty if the other side is closed, None if nothing came yet."""
    try:
        return channel.recv(64)
    except BlockingIOError:
        return None
    except OSError:
        return b""


_AFTER_GRACE, _AT_ONCE = 5.0, 2.0
"""Seconds that the end takes at most: after the grace, and after a second signal."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_handled: set[signal.Signals] = set()
"""Signals that the event loop of this process handles."""


def _before_fork() -> None:
    # A signal that reaches the child before it has its own handlers waits for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, _handled)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _handled)


def _in_child() -> None:
    """Let signals end a child that a handler has forked, instead of stopping its parent."""
    # The child inherits the descriptor that wakes the loop of its parent.
    if _handled:
        signal.set_wakeup_fd(-1)
    for number in _handled:
        signal.signal(number, signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


@contextlib.contextmanager
def stop_signals(
    stop: Callable[[], object],
    control: Control | None = None,
    *,
    grace: timedelta | None = None,
) -> Iterator[Callable[[], bool]]:
    """Call `stop` on the first and the second SIGINT or SIGTERM; the third one kills.

    Yields what requests a stop as the first signal does; it returns false if there was one.

    Requests of a supervisor are not added to the signals, the larger number counts: a Ctrl-C
    reaches both the worker and the supervisor. With a grace the process ends a moment after it,
    and at once after a second signal, even if the database does not answer.
    """
    loop = asyncio.get_running_loop()
    signals = stops = 0
    deadline = _Deadline(grace)

    def reach(number: int) -> bool:
        nonlocal stops
        before = stops
        while stops < min(number, 2):
            stops += 1
            deadline.set(stops)
            stop()
        return stops > before

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        reach(signals)
        if signals == 2:
            uninstall()

    def uninstall() -> None:
        for number in _handled:
            loop.remove_signal_handler(number)
        _handled.clear()

    for number in _STOPPING:
        loop.add_signal_handler(number, on_signal)
        _handled.add(number)
    try:
        with control.listening(reach) if control is not None else contextlib.nullcontext():
            yield partial(reach, 1)
    finally:
        uninstall()
        deadline.cancel()
        logging.shutdown()


class _Deadline:
    """Ends the process if its stop takes too long."""

    def __init__(self, grace: timedelta | None) -> None:
        self._grace = grace
        self._timers: list[threading.Timer] = []

    def set(self, stops: int) -> None:
        """Count from now, for the first stop or the second."""
        if self._grace is None:
            return
        seconds = self._grace.total_seconds() + _AFTER_GRACE if stops == 1 else _AT_ONCE
        # In a thread: a handler may block the event loop.
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), _abandon)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()


def _abandon() -> None:
    log.error(
        "the stop takes too long: the database does not answer, or a handler does not end. What is "
        "left is abandoned, and its locks expire"
    )
    logging.shutdown()
    os._exit(1)


class _Numbered(logging.Formatter):
    """Begins each line with the number of the worker process."""

    def __init__(self, formatter: logging.Formatter, number: int) -> None:
        super().__init__()
        self._formatter = formatter
        self._prefix = f"[{number}] "

    def format(self, record: logging.LogRecord) -> str:
        text = self._formatter.format(record)
        return self._prefix + text.replace("\n", f"\n{self._prefix}")


def number_lines(number: int, *, as_field: bool) -> None:
    """Put the number of this process into its log: a prefix of the line, or a field `process`."""

    def add_field(record: Any) -> bool:
        record.event = {**getattr(record, "event", {}), "process": number}
        return True

    for handler in logging.getLogger().handlers:
        if as_field:
            handler.addFilter(add_field)
        elif handler.formatter is not None:
            handler.setFormatter(_Numbered(handler.formatter, number))
