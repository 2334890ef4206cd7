"""Signals that end a process: each unwinds it as Ctrl-C does, so that all is cleaned up."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[list[int]]:
    """Take the first SIGTERM or SIGHUP as a SIGINT; give the list that it is added to.

    The default would end the process at once and leave its folders and servers behind. What is
    ignored, as by nohup, or handled otherwise stays so. Further ones do not disturb the cleaning
    up: a terminal that is closed, and some service managers, send both.
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
