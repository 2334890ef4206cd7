"""Messages that fail, each with its own key in an ordered queue: settled messages a second.

`python bench/failing.py DSN [MESSAGES [RUNS]]`, with the schema in the database, prints the median
rate for each outcome.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import TYPE_CHECKING

from notifyq import App, Policy, Reject
from notifyq.telemetry import MessageFinished

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from notifyq.telemetry import TelemetryEvent


async def seconds(dsn: str, way: str, messages: int) -> float:
    """Fill a queue, let one worker settle all messages, and return the seconds."""
    app, queue = App(dsn), f"failing_{way}"
    seen: set[str] = set()

    async def success(_payload: str) -> None: ...

    async def dead(_payload: str) -> None:
        raise ValueError("always fails")

    async def rejected(_payload: str) -> None:
        raise Reject("always rejected")

    async def again(payload: str) -> None:
        if payload not in seen:
            seen.add(payload)
            raise ValueError("fails once")

    ways: dict[str, Callable[[str], Awaitable[None]]] = {
        "success": success, "dead": dead, "rejected": rejected, "again": again
    }  # fmt: skip
    attempts = 2 if way == "again" else 1
    left = messages * attempts
    done = asyncio.Event()

    def count(event: TelemetryEvent) -> None:
        nonlocal left
        left -= isinstance(event, MessageFinished)
        if not left:
            done.set()

    app.handler(queue, max_attempts=attempts, backoff=0, policy=Policy(ordered=True))(ways[way])
    async with app:
        await app.create_queues([queue])
        await app.publish_many(queue, [f"k{n}" for n in range(messages)], key=lambda text: text)
        worker = app.worker(queues=[queue], concurrency=100, telemetry=count)
        began = time.monotonic()
        running = asyncio.create_task(worker.run())
        await done.wait()
        took = time.monotonic() - began
        worker.stop()
        await running
        await app.admin.drop_queue(queue, force=True)
    return took


def main() -> None:
    """Measure the outcomes in turn."""
    dsn, messages, runs = sys.argv[1], *map(int, (*sys.argv[2:], "5000", "3")[:2])
    rates: dict[str, list[float]] = {}
    for _ in range(runs):
        for way in ("success", "dead", "rejected", "again"):
            took = asyncio.run(seconds(dsn, way, messages))
            rates.setdefault(way, []).append(messages / took)
    for way, found in rates.items():
        sys.stdout.write(f"{way:9} {statistics.median(found):8.0f} messages/s\n")


if __name__ == "__main__":
    main()
