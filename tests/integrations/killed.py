"""Imports that kill themselves, each one step later than the one before.

`killed.py SYSTEM SOURCE HERE`, where the system is installed in the source.

The first one that comes to its end is the last; then this prints how many steps there were, and how
many messages were published into the source meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from typing import Any

from integrations.sources import fill
from notifyq.database.pool import Database, connect
from notifyq.importing import SYSTEMS, Transfer, transfer

SYSTEM, SOURCE, HERE = sys.argv[1:]
transfer._MOST = 2


class Mortal(Transfer):
    """Has a step before and behind each thing that it does; between them are both commits."""

    def __init__(self, *args: Any, last: int) -> None:
        super().__init__(*args)
        self._steps = last

    def _step(self) -> None:
        self._steps -= 1
        if self._steps == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    async def _take(self, *args: Any) -> Any:
        self._step()
        taken = await super()._take(*args)
        self._step()
        return taken

    async def _receive(self, *args: Any) -> Any:
        received = await super()._receive(*args)
        self._step()
        return received

    async def _remove(self, *args: Any) -> Any:
        await super()._remove(*args)
        self._step()


async def run(last: int) -> None:
    """Import everything, or as much as there are steps."""
    reader = await connect(SOURCE)
    async with Database(HERE) as database:
        mortal = Mortal(reader, database, await SYSTEMS[SYSTEM](reader, None), last=last)
        await mortal.run(await mortal.census())
    await reader.close()


def main() -> None:
    """Let one after the other die."""
    sent = 0
    for last in itertools.count(1):
        # Two batches, the second one not full.
        asyncio.run(fill(SYSTEM, SOURCE, range(sent, sent + 3)))
        sent += 3
        child = os.fork()
        if child == 0:
            asyncio.run(run(last))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(last, sent)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


main()
