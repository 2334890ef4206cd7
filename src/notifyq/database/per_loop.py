"""Objects that belong to an event loop and to a process, such as connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """What is closed on the event loop that it belongs to."""

    async def close(self) -> None:
        """Close it; a second call does nothing."""


T = TypeVar("T", bound=Closable)

_inherited: list[object] = []
"""What a fork has copied. It is kept: closing a copy would unregister the parent's sockets."""


class PerLoop(Generic[T]):
    """One object for each event loop of each process, made when the loop first needs it.

    It is closed when `asyncio.run` or a runner ends the loop. A loop that is closed without that
    leaves it to the garbage collection. After a fork the child makes its own.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._process = os.getpid()
        self._made: dict[asyncio.AbstractEventLoop, tuple[T, object]] = {}

    def get(self) -> T:
        """The object of the running loop. Raises RuntimeError where none runs."""
        loop = asyncio.get_running_loop()
        self._leave_to_parent()
        if loop not in self._made:
            for other in list(self._made):  # loops of other threads come and go meanwhile
                if other.is_closed():
                    self._made.pop(other, None)
            made = self._make()
            self._made[loop] = made, _close_with_loop(made)
        return self._made[loop][0]

    def pop(self) -> T | None:
        """Forget the object of the running loop and return it; None if there is none."""
        self._leave_to_parent()
        made, _ = self._made.pop(asyncio.get_running_loop(), (None, None))
        return made

    def _leave_to_parent(self) -> None:
        if self._process != os.getpid():
            _inherited.append(self._made)
            self._made, self._process = {}, os.getpid()


def _close_with_loop(made: Closable) -> object:
    """Have it closed at the end of the running loop, while the returned object exists."""
    # A loop that ends finishes the asynchronous generators that were begun on it. It has no other
    # hook for this.
    begun = _open(made)
    with suppress(StopIteration):  # it stops at its `yield` without waiting
        begun.asend(None).send(None)
    return begun


async def _open(made: Closable) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await made.close()
