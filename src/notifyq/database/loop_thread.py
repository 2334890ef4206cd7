"""An event loop in a thread, for programs that do not await."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from notifyq.errors import ConfigurationError

R = TypeVar("R")

_LONGEST_END = 10.0
"""Seconds that open calls and connections get at the end."""


class LoopThread:
    """Runs calls on an event loop in a thread of its own, and blocks until they have ended.

    Any thread may call it. The thread starts at the first call, and again after a fork. It ends
    with this object or with the process.
    """

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._running: _Running | None = None
        self._end: weakref.finalize[..., LoopThread] | None = None

    def run(self, call: Coroutine[Any, Any, R]) -> R:
        """Run a call and return its result. An interrupted wait cancels the call.

        Raises ConfigurationError where an event loop runs: the wait would block it, and forever
        where the call needs that loop.
        """
        if asyncio._get_running_loop() is not None:  # noqa: SLF001  the other one raises for None
            call.close()
            raise ConfigurationError(
                "this call would block the event loop that runs here: await the call of the App, "
                "as in `await app.publish(…)`, or make this one in a thread with asyncio.to_thread"
            )
        try:
            future = self._begin(call)
        except BaseException:
            call.close()
            raise
        try:
            return future.result()
        except BaseException:  # KeyboardInterrupt, and whatever a signal handler raises
            future.cancel()
            raise

    def close(self) -> None:
        """End the thread, and with it what is open on its loop; the next call starts another."""
        with self._starting:
            end, self._running, self._end = self._end, None, None
        if end is not None:
            end()

    def _begin(self, call: Coroutine[Any, Any, R]) -> Future[R]:
        if self._running is not None and self._running.process != os.getpid():
            # The thread is the parent's, and another one of it may have held the lock.
            if self._end is not None:
                self._end.detach()
            self._starting, self._running = threading.Lock(), None
        with self._starting:
            if self._running is None:
                self._running = _Running()
                self._end = weakref.finalize(self, self._running.stop)
            # With the lock: after a close() the loop would take the call and never run it.
            return asyncio.run_coroutine_threadsafe(call, self._running.loop)


class _Running:
    def __init__(self) -> None:
        self.process = os.getpid()
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self.thread = threading.Thread(
            target=_run, args=(started,), name="notifyq-calls", daemon=True
        )
        self.thread.start()
        self.loop, self._stopped = started.result()

    def stop(self) -> None:
        if self.process == os.getpid() and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._stopped.set)
            self.thread.join(_LONGEST_END)


def _run(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    try:
        with asyncio.Runner() as runner:
            runner.run(_serve(started))
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)  # as when there are no more file descriptors


async def _serve(started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]) -> None:
    stopped = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stopped))
    await stopped.wait()
