"""What can be changed from `top`: each in a transaction that ends with its row in the audit."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations import monitor
from notifyq.operations.monitor import Act, Conditions, clock, login, step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

    from notifyq.database.pool import Database
    from notifyq.operations.masks import Masks

RETRIED = 1000
"""Dead messages that one answer publishes again, at most."""


def _acting(
    database: Database, action: str, subject: object
) -> AbstractAsyncContextManager[monitor.Action]:
    return monitor.acting(
        database, action, subject, actor=login(), origin=f"top on {socket.gethostname()}"
    )


async def pause(database: Database, queue: str, *, resume: bool) -> str:
    """Pause a queue, or resume it; say which it is now."""
    action, statement = (
        ("queue.resume", sql.RESUME_QUEUE) if resume else ("queue.pause", sql.PAUSE_QUEUE)
    )
    async with _acting(database, action, queue) as act:
        is_new = await act.connection.fetchval(statement, queue)
        act.details["changed"] = is_new
    state = "goes on" if resume else "is paused"
    return f"{queue} {state}" if is_new else f"{queue} {state}: it was so already"


async def retry_queue(database: Database, queue: str) -> str:
    """Publish the dead messages of a queue again, the oldest first; say how many."""
    async with _acting(database, "dead.retry", queue) as act:
        done = await act.connection.fetchval(sql.REDRIVE, queue, None, None, None, RETRIED, None)
        act.details["done"] = done
    return f"{done} dead messages of {queue} are published again"


async def retry_group(database: Database, fingerprint: str, masks: Masks) -> str:
    """Publish dead messages with that fingerprint again; say how many."""
    done, place = 0, None
    conditions = Conditions(state="dead", fingerprint=fingerprint, until=await clock(database))
    said = monitor.masked_details({"fingerprint": fingerprint}, masks)
    while done < RETRIED:
        async with _acting(database, "dead.retry", "those found") as act:
            took = await step(
                act.connection, Act.RETRY, conditions, quantity=RETRIED - done, place=place
            )
            act.note(**said, found=took.found, done=took.done)
        done, place = done + took.done, took.place
        if place is None:
            return f"{done} dead messages are published again"
    return f"{done} dead messages are published again, and there are more"


async def retry(database: Database, ids: Sequence[int]) -> str:
    """Publish these dead messages again; say as which."""
    async with _acting(database, "dead.retry", ", ".join(map(str, ids))) as act:
        new = [row[0] for row in await act.connection.fetch(sql.DEAD_RETRY, list(ids))]
        act.details["as"] = new
    return f"published again as {', '.join(map(str, new))}" if new else "it was retried already"
