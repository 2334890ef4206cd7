"""Signals that end a process: they raise KeyboardInterrupt, so that it cleans up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[list[int]]:
    """Handle the first SIGTERM or SIGHUP as SIGINT; yield the list of received signals.

    By default they end the process at once and leave its folders and servers behind. A signal that
    is ignored, as by nohup, or has another handler is left alone. Further signals do not interrupt
    the cleanup: a closed terminal and some service managers send both.
    """
    received: list[int] = []

    def unwind(number: int, _: object) -> None:
        received.append(number)
        if len(received) == 1:
            signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    numbers = [it for it in _ENDING if signal.getsignal(it) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, unwind)
    try:
        yield received
    finally:
        for number in numbers:
            if signal.getsignal(number) is unwind:
                signal.signal(number, signal.SIG_DFL)
