"""The app whose worker is measured: a handler that does nothing."""

from __future__ import annotations

import os
import time
from typing import Any

import notifyq

app = notifyq.App()


@app.handler("bench")
async def handle(payload: dict[str, Any]) -> None:
    """Do nothing, but say when it began if that is asked for."""
    begun = time.time()
    if (number := payload.get("n")) is not None:
        print("BENCH", os.getpid(), number, begun, flush=True)  # noqa: T201  bench reads this
