"""How many messages to fetch before a slot is free."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from notifyq.notify.wake import PATIENCE

if TYPE_CHECKING:
    pass


_AHEAD = 0.1
"""Seconds of work to have at hand: longer than a claim takes, shorter than anybody would notice."""


_MOST = 1000
"""Most messages at hand, however fast they are: as many as one statement finishes."""


_WINDOW = 0.02
"""Seconds that one measurement lasts at least."""


class Prefetch:
    """Counts handled messages and from that tells how many to claim ahead of free slots."""

    def __init__(self) -> None:
        self._ahead = 0
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._handled = 0
        self._spent = 0.0

    def handled(self, seconds: float) -> None:
        """Count a message whose handler ran for so long."""
        self._handled += 1
        self._spent += seconds

    def stumble(self) -> None:
        """Have nothing at hand until the next measurement: messages have waited for too long."""
        self._ahead = 0
        self._begin()

    def ahead(self) -> int:
        """How many messages the handlers will be through with in a moment; 0 if they are slow."""
        elapsed = time.monotonic() - self._began
        if elapsed < _WINDOW or (not self._handled and elapsed < PATIENCE):
            return self._ahead
        is_quick = self._spent <= _AHEAD * self._handled
        self._ahead = min(_MOST, int(_AHEAD * self._handled / elapsed)) if is_quick else 0
        self._begin()
        return self._ahead
