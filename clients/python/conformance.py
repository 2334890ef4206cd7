"""A worker for the conformance suite: its handler does what the message tells it."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import Any

import notifyq


async def handle(told: dict[str, Any], message: notifyq.Message, steps: notifyq.Steps) -> Any:
    """Do what the message tells."""
    match told:
        case {"do": "return", "value": value}:
            return value
        case {"do": "fail", "error": error}:
            raise RuntimeError(error)
        case {"do": "reject", "reason": reason}:
            raise notifyq.Reject(reason)
        case {"do": "retry", "seconds": seconds}:
            raise notifyq.Retry(after=seconds)
        case {"do": "wait", "file": file}:
            Path(f"{file}.begun").touch()
            while not Path(file).exists():
                await asyncio.sleep(0.05)
        case {"do": "publish", "queue": queue, "message": payload}:
            await app.publish(queue, payload)
        case {"do": "step", "name": name}:
            value = await steps.run(name, lambda: message.attempts)
            if message.attempts == 1:
                raise RuntimeError("only after the step")
            return value
        case {"do": "signal", "name": name}:
            return await steps.wait_for("answer", signal=name)
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
