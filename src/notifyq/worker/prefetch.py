"""How many messages to fetch before a slot is free."""

from __future__ import annotations

import time

PATIENCE = 1.0
"""Seconds that a message may wait for a slot before other workers may have it."""
_WORK = 0.1
"""Seconds of work to prefetch: more than a claim takes, less than anybody would notice."""
_MOST = 1000
"""Most messages to prefetch, however fast they are: as many as one statement finishes."""
_WINDOW = 0.02
"""Least seconds that one measurement lasts."""


class Prefetch:
    """Measures how fast messages are handled, hence how many to claim before slots are free."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Prefetch nothing until the next measurement, as after messages waited for too long."""
        self._quantity = 0
        self._begin()

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._handled = 0
        self._spent = 0.0

    def handled(self, seconds: float) -> None:
        """Count a message whose handler ran for so long."""
        self._handled += 1
        self._spent += seconds

    def quantity(self) -> int:
        """How many messages the handlers finish in a moment; 0 if they are slow."""
        elapsed = time.monotonic() - self._began
        if elapsed < _WINDOW or (not self._handled and elapsed < PATIENCE):
            return self._quantity
        is_quick = self._spent <= _WORK * self._handled
        self._quantity = min(_MOST, int(_WORK * self._handled / elapsed)) if is_quick else 0
        self._begin()
        return self._quantity
