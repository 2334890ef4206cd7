"""The claim client of a worker: claim messages, and settle them under their lock tokens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from notifyq.database import statements as sql
from notifyq.models.message import Message
from notifyq.models.outcome import (
    Committed,
    Failed,
    Outcome,
    Rejected,
    Released,
    Success,
    Suspended,
)
from notifyq.queues.batch_completer import BatchCompleter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from notifyq.database.pool import Database
    from notifyq.queues.batch_completer import Answer, OnSettled


log = logging.getLogger("notifyq.inbox")


class ClaimClient:
    """Claims and settlements of one worker."""

    def __init__(self, database: Database, worker: str) -> None:
        self._database = database
        # Beside the pool: a claim does not wait for finishes, and uses what the claim before it has
        # left in the session.
        self._claims = database.dedicated()
        self.worker = worker
        self._completer = BatchCompleter(database)
        self._is_closed = False

    async def claim(
        self,
        queues: Sequence[str],
        quantity: int,
        *,
        lock_duration: timedelta | None = None,
        filter: str | None = None,
        full_scan: bool = False,
        max_attempts: Sequence[int | None] | None = None,
        filters: Sequence[str | None] | None = None,
    ) -> list[Message]:
        """Lock up to `quantity` messages as messages.claim() does; fewer are all there are."""
        limits = max_attempts if any(max_attempts or ()) else None
        rows = await self._claims.fetch(
            sql.CLAIM,
            queues,
            quantity,
            lock_duration,
            self.worker,
            filter,
            full_scan,
            limits,
            filters,
        )
        messages = []
        for row in rows:
            try:
                messages.append(Message.from_row(row, strict=True))
            except (ValueError, RecursionError) as error:
                # Headers that cannot be decoded must not harm the other messages.
                log.warning("message %d is rejected: %s", row["id"], error)
                reason = f"the headers cannot be decoded: {error}"
                await self._completer.settle(row["id"], row["lock_token"], Rejected(reason))
        if len(messages) < len(rows):
            # Otherwise fewer than `quantity` would mean that there are no more.
            messages += await self.claim(
                queues,
                len(rows) - len(messages),
                lock_duration=lock_duration,
                filter=filter,
                full_scan=full_scan,
                max_attempts=max_attempts,
                filters=filters,
            )
        return messages

    def finish(
        self,
        message: Message,
        outcome: Success | Rejected | Failed | Released,
        on_settled: OnSettled,
    ) -> None:
        """Settle a message with others; `on_settled` gets what `settle` returns or raises."""
        if self._is_closed:  # the handler has ended after its worker
            on_settled(False)  # noqa: FBT003
        else:
            self._completer.add(message.id, message.lock_token, outcome, on_settled)

    async def settle(self, message: Message, outcome: Outcome) -> Answer:
        """Record how the handling of a message ended. False: its lock was lost."""
        if self._is_closed:
            return False
        if isinstance(outcome, Committed):
            return outcome.is_held
        if isinstance(outcome, Suspended):
            return True
        return await self._completer.settle(message.id, message.lock_token, outcome)

    async def release(self, messages: Iterable[Message]) -> set[int]:
        """Release messages as if they had not been claimed; return the ids still held."""
        held = list(messages)
        rows = await self._database.persist(
            sql.RELEASE_MANY, [m.id for m in held], [m.lock_token for m in held]
        )
        return {row[0] for row in rows}

    async def close(self) -> None:
        """Abandon settlements that are not written yet, and accept no more."""
        self._is_closed = True
        await self._completer.close()
        await self._claims.close()

    async def is_archived(self, message: Message) -> bool:
        """Whether the message was finished under this lock token."""
        return await self._completer.has_archived((message.id, message.lock_token))

    async def release_orphans(self, known: Sequence[int]) -> int:
        """Release messages that are locked for this worker and not `known`; return how many."""
        rows = await self._database.persist(sql.RELEASE_ORPHANS, self.worker, known)
        return int(rows[0][0])
