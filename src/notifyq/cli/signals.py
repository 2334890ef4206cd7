"""What a worker has of its supervisor: a number, and one end of a socket pair.

It says there that it has started; the supervisor says there how far to stop. Signals would not do
for that: Ctrl-C and some service managers send them to every process, and a worker could not tell
those from the ones that its supervisor passes on. When the supervisor is gone, however it ended,
the socket closes, which means stop as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from notifyq.telemetry import Event, Sink, WorkerStarted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("notifyq.processes")

PLACE = "_NOTIFYQ_PLACE"
"""Variable of the environment that makes a process a worker of a supervisor: number:descriptor."""

STARTED = b"+"
PASSING = b"?"
STOP = b"-"


class Control:
    """A worker's end of the socket to its supervisor."""

    def __init__(self, number: int, channel: socket.socket) -> None:
        self.number = number
        self._channel = channel
        self._asked = 0

    @classmethod
    def inherited(cls) -> Control | None:
        """Return that of this process; None where no supervisor has started it."""
        # Taken away: what a handler starts is no worker of this supervisor.
        place = os.environ.pop(PLACE, None)
        if place is None:
            return None
        number, descriptor = map(int, place.split(":"))
        channel = socket.socket(fileno=descriptor)
        channel.set_inheritable(False)
        channel.setblocking(False)
        return cls(number, channel)

    def reporting(self, sink: Sink) -> Sink:
        """Make a sink that also tells the supervisor when the worker has started."""

        def emit(event: Event) -> None:
            sink(event)
            if isinstance(event, WorkerStarted):
                self._tell(STARTED)

        return emit

    def report_passing(self) -> None:
        """Tell the supervisor that the next try may not meet the error that ends this one."""
        self._tell(PASSING)

    @contextlib.contextmanager
    def heard(self, reach: Callable[[int], None]) -> Iterator[None]:
        """Call `reach` with how many stops the supervisor has asked for, whenever it asks."""
        loop = asyncio.get_running_loop()

        def hear() -> None:
            asked = received(self._channel)
            if asked:
                self._asked += len(asked)
            elif asked is not None:
                loop.remove_reader(self._channel)
                log.warning("the supervisor is gone: this worker stops")
                self._asked = max(self._asked, 1)
            reach(self._asked)

        loop.add_reader(self._channel, hear)
        try:
            yield
        finally:
            loop.remove_reader(self._channel)

    def _tell(self, what: bytes) -> None:
        with contextlib.suppress(OSError):  # a supervisor that is gone is noticed by `heard`
            self._channel.send(what)


def received(channel: socket.socket) -> bytes | None:
    """Return what has arrived: empty if the other side is closed, None if nothing came yet."""
    try:
        return channel.recv(64)
    except BlockingIOError:
        return None
    except OSError:
        return b""


class _Numbered(logging.Formatter):
    """Begins each line with the number of the process, so that they can be told apart."""

    def __init__(self, formatter: logging.Formatter, number: int) -> None:
        super().__init__()
        self._formatter = formatter
        self._prefix = f"[{number}] "

    def format(self, record: logging.LogRecord) -> str:
        text = self._formatter.format(record)
        return self._prefix + text.replace("\n", f"\n{self._prefix}")


def number_lines(number: int, *, as_json: bool) -> None:
    """Have what this process logs bear its number: as a prefix, or in JSON as field `process`."""

    def add_field(record: Any) -> bool:
        record.event = {**getattr(record, "event", {}), "process": number}
        return True

    for handler in logging.getLogger().handlers:
        if as_json:
            handler.addFilter(add_field)
        elif handler.formatter is not None:
            handler.setFormatter(_Numbered(handler.formatter, number))
