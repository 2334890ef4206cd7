"""The time in which the target takes nothing."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

from notifyq.relay.events import RelayResumed, RelayStalled
from notifyq.relay.target import PASSING

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.relay.target import Target
    from notifyq.telemetry import Sink

_PROBE, _LONGEST_PROBE = 0.2, 5.0
"""Seconds between two looks for the target: the first pause, and the longest."""


class Backpressure:
    """Looks for a target that was down or full, until it answers."""

    def __init__(self, target: Target, sink: Sink, *, on_end: Callable[[], object]) -> None:
        self._target = target
        self._sink = sink
        self._on_end = on_end
        self.is_on = False

    async def last(self, reason: str) -> None:
        """Last until the target answers. Raises what it says, if that is not that it is away."""
        self.is_on = True
        self._sink(RelayStalled(reason=reason))
        since = time.monotonic()
        pause = _PROBE
        while True:
            # Jitter: many relays may wait for one server.
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311
            try:
                await self._target.check()
            except PASSING:
                pause = min(2 * pause, _LONGEST_PROBE)
            else:
                break
        self.is_on = False
        self._sink(RelayResumed(seconds=time.monotonic() - since))
        self._on_end()
