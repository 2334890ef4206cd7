"""The changes that `top` can make, each with its row in the audit."""

import socket
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from notifyq.database import statements as sql
from notifyq.database.pool import Database
from notifyq.operations import monitor
from notifyq.operations.masks import Masks
from notifyq.operations.monitor import Act, Conditions, clock, login, step

MOST_RETRIED = 1000
"""Dead messages that one confirmation retries at most."""


def _acting(
    database: Database, action: str, subject: object
) -> AbstractAsyncContextManager[monitor.Action]:
    return monitor.acting(
        database, action, subject, actor=login(), origin=f"top on {socket.gethostname()}"
    )


async def pause(database: Database, queue: str, *, resume: bool) -> str:
    """Pause or resume a queue; return a notice."""
    action, statement = (
        ("queue.resume", sql.RESUME_QUEUE) if resume else ("queue.pause", sql.PAUSE_QUEUE)
    )
    async with _acting(database, action, queue) as act:
        changed = await act.value(statement, queue)
        act.note(changed=changed)
    state = "resumed" if resume else "paused"
    return f"{queue} is {state}" if changed else f"{queue} was {state} already"


async def retry_queue(database: Database, queue: str) -> str:
    """Retry dead messages of a queue, the oldest first; return a notice."""
    async with _acting(database, "dead.retry", queue) as act:
        done = await act.value(sql.REDRIVE, queue, None, None, None, MOST_RETRIED, None)
        act.note(done=done)
    return f"retried {done} dead messages of {queue}"


async def retry_group(database: Database, fingerprint: str, masks: Masks) -> str:
    """Retry dead messages with that fingerprint; return a notice."""
    done, position = 0, None
    conditions = Conditions(state="dead", fingerprint=fingerprint, until=await clock(database))
    details = monitor.audited_conditions({"fingerprint": fingerprint}, masks)
    while done < MOST_RETRIED:
        async with _acting(database, "dead.retry", "those found") as act:
            one = await step(
                act.connection,
                Act.RETRY,
                conditions,
                quantity=MOST_RETRIED - done,
                position=position,
            )
            act.note(**details, found=one.found, done=one.done)
        done, position = done + one.done, one.position
        if position is None:
            return f"retried {done} dead messages"
    return f"retried {done} dead messages; there are more"


async def retry(database: Database, ids: Sequence[int]) -> str:
    """Retry these dead messages; return a notice with the new ids."""
    async with _acting(database, "dead.retry", ", ".join(map(str, ids))) as act:
        new = [row[0] for row in await act.fetch(sql.DEAD_RETRY, list(ids))]
        act.note(**{"as": new})
    return f"retried as {', '.join(map(str, new))}" if new else "it was retried already"
