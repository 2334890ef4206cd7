"""Imports that kill themselves, each one step later than the one before.

`killed.py SYSTEM SOURCE HERE`, where the system is installed in the source.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from integrations.sources import fill
from notifyq.database.pool import Database, connect
from notifyq.importing import SYSTEMS, Transfer, transfer
from support.dying import die_at_each_step, step

SYSTEM, SOURCE, HERE = sys.argv[1:]
# Two batches, the second one not full.
transfer._MOST = 2


class Mortal(Transfer):
    """Has a step before and behind each thing that it does; between them are both commits."""

    async def _take(self, *args: Any) -> Any:
        step()
        taken = await super()._take(*args)
        step()
        return taken

    async def _receive(self, *args: Any) -> Any:
        received = await super()._receive(*args)
        step()
        return received

    async def _remove(self, *args: Any) -> Any:
        await super()._remove(*args)
        step()


async def run() -> None:
    """Import everything, or as much as there are steps."""
    reader = await connect(SOURCE)
    async with Database(HERE) as database:
        mortal = Mortal(reader, database, await SYSTEMS[SYSTEM](reader, None))
        await mortal.run(await mortal.census())
    await reader.close()


die_at_each_step(partial(fill, SYSTEM, SOURCE), run)
