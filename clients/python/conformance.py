"""A worker for the conformance suite: its handler follows the payload."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

import notifyq


def end(payload: dict[str, Any]) -> Any:
    """End with the value or the error of the payload."""
    match payload:
        case {"value": value}:
            return value
        case {"error": error}:
            raise RuntimeError(error)
        case {"reason": reason}:
            raise notifyq.Reject(reason)
        case {"seconds": seconds}:
            raise notifyq.Retry(after=seconds)


async def wait(file: str) -> None:
    """Show that the handler has begun, and wait for the file."""
    Path(f"{file}.begun").touch()  # noqa: ASYNC240
    while not Path(file).exists():  # noqa: ASYNC110, ASYNC240 - it has no event
        await asyncio.sleep(0.05)


async def handle(payload: dict[str, Any], message: notifyq.Message, steps: notifyq.Steps) -> Any:
    """Follow the payload."""
    match payload:
        case {"do": "wait", "file": file}:
            await wait(file)
        case {"do": "publish", "queue": queue, "message": content}:
            await app.publish(queue, content)
        case {"do": "step", "name": name}:
            value = await steps.run(name, lambda: message.attempts)
            if message.attempts == 1:
                raise RuntimeError("only after the step")
            return value
        case {"do": "signal", "name": name}:
            return await steps.wait_for("answer", signal=name)
        case _:
            return end(payload)
    return None


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dsn", required=True, help="the database")
parser.add_argument("--queue", required=True, help="the queue to serve")
parser.add_argument("--poll", type=float, default=1.0, help="seconds between polls (default: 1)")
parser.add_argument("--grace", type=float, default=30.0, help="seconds for handlers (default: 30)")
options = parser.parse_args()
app = notifyq.App(options.dsn)
app.handler(options.queue)(handle)


async def work() -> None:
    """Serve the queue until SIGTERM."""
    worker = app.worker(poll=options.poll, grace=options.grace)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await app.work(worker)


asyncio.run(work())
