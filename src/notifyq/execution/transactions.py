"""Transactions of handlers: what a handler writes and the end of its message are one commit."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.database.retry import retrying
from notifyq.models.message import Message, newest
from notifyq.models.outcome import Rejected, Success

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from notifyq.database.pool import AnyConnection, Database

    Finish = tuple[Message, Success | Rejected]

log = logging.getLogger("notifyq.worker")


class Transactions:
    """Connections for transactional handlers beside the pool: as many as may run at a time.

    So a handler never waits for one that another handler has, nor a claim for a handler.
    """

    def __init__(self, database: Database, size: int) -> None:
        self._lane = database.lane(size)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AnyConnection]:
        """Begin a transaction; it is committed at the end of the block, unless that raises."""
        async with AsyncExitStack() as stack:
            connection = await self._borrow(stack)
            await stack.enter_async_context(connection.transaction())
            await connection.fetch(sql.TRANSACTION)
            yield connection

    @staticmethod
    async def finish(connection: AnyConnection, finishes: Sequence[Finish]) -> set[int]:
        """Finish messages inside the transaction; return the ids whose lock was still held."""
        keys = [(message.id, message.lock_token) for message, _ in finishes]
        outcomes = [outcome for _, outcome in finishes]
        rows = await connection.fetch(
            sql.FINISH_MANY,
            [message_id for message_id, _ in keys],
            [token for _, token in keys],
            [outcome.status for outcome in outcomes],
            [outcome.reason if isinstance(outcome, Rejected) else None for outcome in outcomes],
            [outcome.result if isinstance(outcome, Success) else None for outcome in outcomes],
        )
        return {message_id for message_id, _ in newest(keys, rows)}

    async def close(self) -> None:
        """Close the connections; transactions that are open get a few seconds."""
        await self._lane.close()

    async def _borrow(self, stack: AsyncExitStack) -> AnyConnection:
        # The attempt at the message does not begin before there is a server to work with.
        async for attempt in retrying("a transaction", log, self._lane.settings.retry_for):
            with attempt:
                return await stack.enter_async_context(self._lane.connection())
        raise AssertionError  # tenacity returns or raises; this line tells the type checker
