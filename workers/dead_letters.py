"""Follow dead messages: retry once those that a crash has cost, log the others for a person.

python dead_letters.py

It begins with messages that fail from now on. A watch that continues where it stopped needs no
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


async def handle(message: ArchivedMessage) -> None:
    """Retry or log one dead message."""
    if message.status == Status.LOCK_EXPIRED and message.id not in last_chances:
        last_chances.update(await app.archive.dead_retry([message.id]))
        log.info("message %d of %s is published again", message.id, message.queue)
    else:
        log.warning("%s: %d %s: %s", message.queue, message.id, message.status, message.details)


async def follow() -> None:
    """Handle every message that fails from now on."""
    # Woken by notifications on dead_message; reads by snapshot: none is missed or comes twice.
    async for dead, _seen in app.dead_letters().batches():
        for message in dead:
            await handle(message)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(follow())
