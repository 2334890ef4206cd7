"""Processes for handlers that a thread could not stop: killing the process stops the handler."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.connection import wait
from operator import attrgetter
from typing import Any

from notifyq.execution.around import django_connections
from notifyq.execution.call import HandlerCall
from notifyq.execution.capture import Capture, Records, capturing
from notifyq.handlers.handler import Handler
from notifyq.models.message import Message
from notifyq.models.outcome import Failed, Outcome, Rejected
from notifyq.telemetry.tracing import continued

_SPAWN = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1
_EXITS_WITHIN = 5.0
"""Seconds in which a process that was killed or has crashed is gone."""


class ProcessCrashedError(Exception):
    """The process of a handler ended before the handler returned."""


class Processes:
    """Runs each handler in a process, which is kept for the next message.

    A process whose handler neither returned nor raised is discarded; the others stay.
    """

    def __init__(self) -> None:
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()

    async def run(
        self,
        where: tuple[str, str],
        message: Message,
        began: Callable[[], None],
        carried: dict[str, str],
        capture: Capture | None = None,
    ) -> tuple[Outcome, Records | None]:
        """Handle a message; cancelling kills the process. `began` is called once it has started."""
        if self._idle:
            child = self._idle.pop()
        else:
            child = _Child(where)
            self._children.add(child)
        try:
            await child.ready
            began()
            ended: tuple[Outcome, Records | None] = await child.call(
                handle, where, message, carried, capture
            )
        except BrokenProcessPool:
            # Before the process is discarded, as the executor's thread may notice its end first.
            code = await asyncio.to_thread(child.exit_code)
            self._discard(child)
            raise ProcessCrashedError(
                f"the process of the handler crashed: {_describe(code)}"
            ) from None
        except BaseException:
            self._discard(child)
            raise
        self._idle.append(child)
        return ended

    def close(self) -> None:
        """Kill all of them."""
        for child in list(self._children):
            self._discard(child)
        self._idle.clear()

    def _discard(self, child: _Child) -> None:
        self._children.discard(child)
        child.kill()


class _Child:
    """One process, with an executor of its own."""

    def __init__(self, where: tuple[str, str]) -> None:
        self._executor = ProcessPoolExecutor(1, mp_context=_SPAWN, initializer=_begin)
        self.ready = asyncio.wrap_future(self._executor.submit(_prepare, where[0]))
        # A process id could belong to another process by the time it is killed.
        (self._process,) = self._executor._processes.values()  # noqa: SLF001  public in 3.14 only

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.wrap_future(self._executor.submit(function, *args))

    def kill(self) -> None:
        with contextlib.suppress(ValueError):  # it is closed already
            self._process.kill()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def exit_code(self) -> int | None:
        with contextlib.suppress(ValueError, AssertionError):
            self._process.join(_EXITS_WITHIN)
            if self._process.exitcode is None:
                self._executor.shutdown(wait=True)
            return self._process.exitcode
        return None


def _describe(code: int | None) -> str:
    if code is None:
        return "its exit code is not known"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-code).name}"
    return f"its exit code is {code}"


# The functions below run in the process.


def _begin() -> None:
    """End this process with the worker, which alone stops the handler and takes its outcome."""
    # A terminal sends Ctrl-C to all processes; the worker decides about its handlers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        # This also works while the handler keeps the thread below from running.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="notifyq-parent", daemon=True).start()


def _prepare(module: str) -> None:
    """Import the module before the time of the handler is counted."""
    # If this fails, each message fails with the reason.
    with contextlib.suppress(BaseException):
        importlib.import_module(module)


def handle(
    where: tuple[str, str], message: Message, carried: dict[str, str], capture: Capture | None
) -> tuple[Outcome, Records | None]:
    """Handle a message; return how that ended, and what was logged."""
    if capture is None:
        return _handle(where, message, carried), None
    with capturing(capture.level):
        records = capture.begin()
        return _handle(where, message, carried), records


def _handle(where: tuple[str, str], message: Message, carried: dict[str, str]) -> Outcome:
    """Validate the payload and call the handler; return how that ended."""
    handler = _find(where)
    call = HandlerCall(handler, message)
    payload = call.payload()
    if isinstance(payload, Rejected | Failed):
        return _portable(payload)
    slots = {"payload": payload, "message": message}
    names = {name: slots[slot] for name, slot in handler.names}
    try:
        with continued(carried), django_connections():
            result = handler.function(*(slots[slot] for slot in handler.takes), **names)
    except BaseException as error:  # noqa: BLE001  the user's code may raise anything
        return _portable(call.raised(error))
    return _portable(call.success(result))


def _portable(outcome: Outcome) -> Outcome:
    """The outcome without the exception, which may not be picklable."""
    if isinstance(outcome, Failed) and outcome.error is not None:
        return replace(outcome, error=replace(outcome.error, exception=None))
    return outcome


def _find(where: tuple[str, str]) -> Handler[Any]:
    module, name = where
    found = attrgetter(name)(importlib.import_module(module))
    if not isinstance(found, Handler):
        raise TypeError(f"{module}.{name} is not a handler but {found!r}")
    return found
