"""Handlers that run in processes of their own, which import this module."""

import ctypes
import logging
import os
import re
import signal
import time
from pathlib import Path

from notifyq import App, Message, Reject, Retry

app = App()


@app.handler("squares", executor="process")
def square(number: int, message: Message) -> tuple[int, int]:
    if number < 0:
        raise Reject("negative")
    if number == 0:
        raise Retry("zero")
    if number == 13:
        raise ValueError("thirteen")
    return number * number, os.getpid()


@app.handler("traced", executor="process")
def traced(_text: str) -> str:
    from opentelemetry import trace

    return f"{trace.get_current_span().get_span_context().span_id:016x}"


@app.handler("deaths", executor="process")
def die(how: str) -> str:
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segfault":
        ctypes.string_at(0)
    return how


@app.handler("endless", executor="process", timeout=1)
def endless(path: str) -> None:
    """Compute for years without letting any other thread run."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    re.match(r"(a+)+$", "a" * 60 + "b")


@app.handler("sleepers", executor="process")
def sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


@app.handler("talk", executor="process")
def talk(name: str) -> None:
    logging.getLogger("shop").info("in a process: %s", name)
    if name == "b":
        raise ValueError("b")
