"""Answers that are kept for a moment: many pages that ask the same ask the database once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

_MOST = 100


@dataclass(slots=True)
class _Kept:
    answer: asyncio.Task[Any]
    until: float


class Cache:
    """Keeps answers by their question; whoever asks meanwhile waits for the same one."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Kept] = {}

    async def get(self, key: Hashable, seconds: float, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The answer to a question, not older than this."""
        kept = self._kept.get(key)
        if kept is None or (kept.answer.done() and kept.until < time.monotonic()):
            # A task of its own: the one who asked first may leave, others still wait.
            kept = _Kept(asyncio.ensure_future(_run(ask)), time.monotonic() + seconds)
            self._kept.pop(key, None)
            self._kept[key] = kept
            if len(self._kept) > _MOST:
                self._kept.pop(next(iter(self._kept)))
        try:
            return await asyncio.shield(kept.answer)
        except Exception:
            # What failed is asked again the next time.
            if self._kept.get(key) is kept:
                del self._kept[key]
            raise

    def forget(self) -> None:
        """Ask for everything anew: something was changed."""
        self._kept = {key: it for key, it in self._kept.items() if not it.answer.done()}


async def _run(ask: Callable[[], Awaitable[Any]]) -> Any:
    return await ask()
