"""The app of the measured worker: its handler, of one queue or of many, does nothing."""

from __future__ import annotations

import os
import time
from typing import Any

import notifyq

app = notifyq.App()


async def handle(payload: dict[str, Any]) -> None:
    """Do nothing; print the start time of a message with a number."""
    begun = time.time()
    if (number := payload.get("n")) is not None:
        print("BENCH", os.getpid(), number, begun, flush=True)  # noqa: T201  bench reads this


for queue in ("bench", *os.environ.get("BENCH_QUEUES", "").split()):
    app.handler(queue)(handle)
