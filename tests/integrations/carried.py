"""An app of Taskiq, for workers of its own: `taskiq worker integrations.carried:carrier`."""

from __future__ import annotations

import asyncio
import os

import asyncpg

from notifyq.contrib.taskiq import NotifyqBroker

carrier = NotifyqBroker()


@carrier.task("note")
async def note(number: int) -> None:
    """Write down which process has begun with a number, and that it came to the end."""
    connection = await asyncpg.connect(os.environ["NOTIFYQ_DSN"])
    await connection.execute("insert into begun values ($1, $2)", number, os.getpid())
    await asyncio.sleep(0.02)
    await connection.execute("insert into done values ($1)", number)
    await connection.close()
