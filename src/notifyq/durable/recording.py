"""Records the steps of all calls of a worker: those that end together in one statement."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from notifyq.database import statements as sql
from notifyq.database.batching import Batcher, Item

if TYPE_CHECKING:
    import asyncpg

    from notifyq.database.pool import Database

    Key = tuple[int, int, str]


@dataclass(slots=True)
class _Step(Item["asyncpg.Record | None"]):
    id: int
    lock_token: int
    name: str
    value: str
    failed: bool

    @property
    def key(self) -> Key:
        return self.id, self.lock_token, self.name


class Recording:
    """The record of steps in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._steps = Batcher(self._send, otherwise=None)

    def add(
        self, lock: tuple[int, int], name: str, value: str, *, failed: bool
    ) -> asyncio.Future[asyncpg.Record | None]:
        """Record a step of a locked message; None: its row is locked now, or the lock was lost."""
        answered = asyncio.get_running_loop().create_future()
        self._steps.add(_Step(answered, *lock, name, value, failed))
        return answered

    async def close(self) -> None:
        """Abandon what is not recorded yet."""
        await self._steps.close()

    async def _send(self, steps: list[_Step]) -> Mapping[Key, asyncpg.Record]:
        rows = await self._database.persist(
            sql.RECORD_STEPS,
            [it.id for it in steps],
            [it.lock_token for it in steps],
            [it.name for it in steps],
            [it.value for it in steps],
            [it.failed for it in steps],
        )
        return {steps[row["number"] - 1].key: row for row in rows}
