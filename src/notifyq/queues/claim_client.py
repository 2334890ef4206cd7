"""A worker's side of a queue: claim messages and settle them under their lock tokens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.models.message import Message
from notifyq.models.outcome import Committed, Failed, Outcome, Rejected, Released, Success
from notifyq.queues.batch_completer import BatchCompleter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.queues.batch_completer import Answer, Settled


log = logging.getLogger("notifyq.inbox")


class ClaimClient:
    """Claims and settlements of one worker."""

    def __init__(self, database: Database, worker: str) -> None:
        self._database = database
        # Beside the pool: a claim is never kept waiting by finishes, and finds what the one before
        # has left in the session.
        self._claims = database.lane()
        self.worker = worker
        self._finishes = BatchCompleter(database)
        self._is_closed = False

    async def claim(
        self,
        queues: Sequence[str],
        quantity: int,
        *,
        lock_timeout: timedelta | None = None,
        filter: str | None = None,
        thorough: bool = False,
        max_attempts: Sequence[int | None] | None = None,
        filters: Sequence[str | None] | None = None,
    ) -> list[Message]:
        """Lock up to `quantity` messages as messages.claim() does; fewer are all there are."""
        limits = max_attempts if any(max_attempts or ()) else None
        rows = await self._claims.fetch(
            sql.CLAIM,
            queues,
            quantity,
            lock_timeout,
            self.worker,
            filter,
            thorough,
            limits,
            filters,
        )
        messages = []
        for row in rows:
            try:
                messages.append(Message.from_row(row, strict=True))
            except (ValueError, RecursionError) as error:
                # Headers can be as undecodable as payloads, and must no more harm the others.
                log.warning("message %d is rejected: %s", row["id"], error)
                reason = f"the headers cannot be decoded: {error}"
                await self._finishes.settle(row["id"], row["lock_token"], Rejected(reason))
        if len(messages) < len(rows):
            # Else fewer than were asked for would look like all there are.
            messages += await self.claim(
                queues,
                len(rows) - len(messages),
                lock_timeout=lock_timeout,
                filter=filter,
                thorough=thorough,
                max_attempts=max_attempts,
                filters=filters,
            )
        return messages

    def finish(
        self,
        message: Message,
        outcome: Success | Rejected | Failed | Released,
        settled: Settled,
    ) -> None:
        """Settle a message with others; `settled` gets what `settle` would return or raise."""
        if self._is_closed:  # a handler that would not end has ended after its worker
            settled(False)  # noqa: FBT003
        else:
            self._finishes.add(message.id, message.lock_token, outcome, settled)

    async def settle(self, message: Message, outcome: Outcome) -> Answer:
        """Write down how the handling of a message ended. False: its lock was lost."""
        if self._is_closed:
            return False
        if isinstance(outcome, Committed):
            return outcome.is_held
        return await self._finishes.settle(message.id, message.lock_token, outcome)

    async def release(self, messages: Iterable[Message]) -> set[int]:
        """Give up locks as if they had not been claimed; return the ids that were still held."""
        held = list(messages)
        rows = await self._database.persist(
            sql.RELEASE_MANY, [m.id for m in held], [m.lock_token for m in held]
        )
        return {row[0] for row in rows}

    async def close(self) -> None:
        """Give up the finishes that could not be written down yet, and take no more."""
        self._is_closed = True
        await self._finishes.close()
        await self._claims.close()

    async def is_archived(self, message: Message) -> bool:
        """Whether the message was finished under this very lock."""
        return await self._finishes.has_archived((message.id, message.lock_token))

    async def release_orphans(self, known: Sequence[int]) -> int:
        """Release what this worker locked without learning of it; return how many."""
        rows = await self._database.persist(sql.RELEASE_ORPHANS, self.worker, known)
        return int(rows[0][0])
