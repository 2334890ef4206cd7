"""Processes for handlers that a thread could not stop: one for each, killed to stop it."""

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
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing.connection import wait
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from notifyq.execution.call import HandlerCall
from notifyq.execution.runtime import ProcessDiedError
from notifyq.handlers.handler import Handler
from notifyq.models.message import Message
from notifyq.models.outcome import Failed, Outcome, Rejected
from notifyq.telemetry.tracing import continued

if TYPE_CHECKING:
    from collections.abc import Callable

_SPAWN = multiprocessing.get_context("spawn")
_PR_SET_PDEATHSIG = 1
_EXITS_WITHIN = 5.0
"""Seconds in which a process that was killed or has died is gone."""


class Processes:
    """Run handlers in processes of their own, which are kept for the next message.

    One that a handler has left in any way but by returning or raising is thrown away, alone.
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
    ) -> Outcome:
        """Handle a message; cancelled, the process is killed. `began` is called when it is up."""
        if self._idle:
            child = self._idle.pop()
        else:
            child = _Child(where)
            self._children.add(child)
        try:
            await child.ready
            began()
            outcome: Outcome = await child.call(handle, where, message, carried)
        except BrokenProcessPool:
            # Before it is thrown away: the executor's thread may be first to hear of the end.
            code = await asyncio.to_thread(child.exit_code)
            self._throw_away(child)
            raise ProcessDiedError(f"the process of the handler died: {_told(code)}") from None
        except BaseException:
            self._throw_away(child)
            raise
        self._idle.append(child)
        return outcome

    def close(self) -> None:
        """Kill all of them."""
        for child in list(self._children):
            self._throw_away(child)
        self._idle.clear()

    def _throw_away(self, child: _Child) -> None:
        self._children.discard(child)
        child.kill()


class _Child:
    """One process, and the executor that has no other."""

    def __init__(self, where: tuple[str, str]) -> None:
        self._executor = ProcessPoolExecutor(1, mp_context=_SPAWN, initializer=_begin)
        self.ready = asyncio.wrap_future(self._executor.submit(_prepare, where[0]))
        # Its number alone may be another's by the time that it is killed.
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


def _told(code: int | None) -> str:
    if code is None:
        return "its exit code is not known"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-code).name}"
    return f"its exit code is {code}"


# What follows runs in the process.


def _begin() -> None:
    """Tie this process to the worker: without it nobody would stop the handler, or take its end."""
    # Keys go to all processes of a terminal; the worker decides what becomes of its handlers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    if sys.platform == "linux":
        # Also where the handler keeps the thread below from running.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="notifyq-parent", daemon=True).start()


def _prepare(module: str) -> None:
    """Import what takes its time before that of the handler is counted."""
    # If that fails, so does each message, and says why.
    with contextlib.suppress(BaseException):
        importlib.import_module(module)


def handle(where: tuple[str, str], message: Message, carried: dict[str, str]) -> Outcome:
    """Validate the payload, call the handler, and tell how that ended."""
    handler = _find(where)
    execution = HandlerCall(handler, message)
    payload = execution.payload()
    if isinstance(payload, Rejected | Failed):
        return _portable(payload)
    slots = {"payload": payload, "message": message}
    names = {name: slots[slot] for name, slot in handler.names}
    try:
        with continued(carried):
            result = handler.function(*(slots[slot] for slot in handler.takes), **names)
    except BaseException as error:  # noqa: BLE001  the user's code may raise anything
        return _portable(execution.raised(error))
    return _portable(execution.success(result))


def _portable(outcome: Outcome) -> Outcome:
    """The outcome without the error itself, which may be one that cannot be pickled."""
    if isinstance(outcome, Failed) and outcome.error is not None:
        return replace(outcome, error=replace(outcome.error, exception=None))
    return outcome


def _find(where: tuple[str, str]) -> Handler[Any]:
    module, name = where
    found = attrgetter(name)(importlib.import_module(module))
    if not isinstance(found, Handler):
        raise TypeError(f"{module}.{name} is no handler, but {found!r}")
    return found
