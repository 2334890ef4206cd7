"""Follow dead messages: retry once what a crash has cost, log the rest for a person.

python dead_letters.py

It begins with what dies from now on. For a watch that goes on where it stopped, without a line of
Python: notifyq dead watch --state dead.json --exec COMMAND
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from notifyq import App, Status

if TYPE_CHECKING:
    from notifyq import ArchivedMessage

log = logging.getLogger("dead_letters")
app = App()
last_chances: set[int] = set()
"""The ids under which dead messages were published again."""


async def treat(message: ArchivedMessage) -> None:
    """Treat one dead message."""
    if message.status == Status.LOCK_EXPIRED and message.id not in last_chances:
        last_chances.update(await app.archive.dead_retry([message.id]))
        log.info("message %d of %s is published again", message.id, message.queue)
    else:
        log.warning("%s: %d %s: %s", message.queue, message.id, message.status, message.details)


async def follow() -> None:
    """Treat every message that dies from now on."""
    # Woken by the bell on dead_message; read by snapshot, so that none is missed or comes twice.
    async for dead, _seen in app.dead_letters().batches():
        for message in dead:
            await treat(message)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(follow())
