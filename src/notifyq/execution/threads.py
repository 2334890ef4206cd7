"""Threads for sync handlers: started as needed, kept for reuse, never in the way of an exit."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Threads:
    """Run functions in daemon threads.

    A thread cannot be stopped from outside. Where the caller has given up waiting, the function
    runs on, and `stuck` counts it until it ends; the process can exit without it, which threads of
    `concurrent.futures` would not allow.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._running: set[asyncio.Future[Any]] = set()
        self._given_up: set[asyncio.Future[Any]] = set()
        self._idle = 0
        self._is_closed = False

    @property
    def busy(self) -> int:
        """How many functions run, those that nobody waits for included."""
        return len(self._running)

    @property
    def stuck(self) -> int:
        """How many functions run on although nobody waits for them any more."""
        return len(self._given_up)

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function in a thread, with the context variables of the caller."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()

        def call() -> None:
            try:
                result = context.run(function, *args)
            except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
                _report(loop, self._ended, future, None, error)
            else:
                _report(loop, self._ended, future, result, None)

        if self._idle == 0:
            threading.Thread(target=self._serve, name="notifyq-handler", daemon=True).start()
        else:
            self._idle -= 1
        self._running.add(future)
        self._calls.put(call)
        try:
            return await future
        finally:
            # Cancelled, it may yet have ended before this task came to know of it.
            if future.cancelled() and future in self._running:
                self._given_up.add(future)

    def close(self) -> None:
        """Let the idle threads end, and the busy ones when they become idle."""
        self._is_closed = True
        for _ in range(self._idle):
            self._calls.put(None)
        self._idle = 0

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _ended(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._running.discard(future)
        self._given_up.discard(future)
        if self._is_closed:
            self._calls.put(None)
        else:
            self._idle += 1
        if future.done():  # given up: nobody waits for it
            return
        if isinstance(error, StopIteration | GeneratorExit):
            # A future cannot hand it on: it would end the coroutines that wait.
            told = RuntimeError(f"the handler raised {type(error).__name__}")
            told.__cause__ = error
            future.set_exception(told)
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _report(loop: asyncio.AbstractEventLoop, ended: Callable[..., None], *args: Any) -> None:
    try:
        loop.call_soon_threadsafe(ended, *args)
    except RuntimeError:  # the loop is closed: the process is ending
        return
