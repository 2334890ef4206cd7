"""What handlers are run with, beside the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from notifyq.threads import Threads

if TYPE_CHECKING:
    from notifyq.transactions import Transactions


@dataclass(slots=True, kw_only=True)
class Tools:
    """What handlers of a worker are run with; one that only a few need may be missing."""

    threads: Threads = field(default_factory=Threads)
    transactions: Transactions | None = None

    @property
    def stuck(self) -> int:
        """How many slots are held by what runs on although nobody waits for it any more."""
        return self.threads.stuck

    async def close(self) -> None:
        """End what is idle, and leave the rest to itself."""
        self.threads.close()
        if self.transactions is not None:
            await self.transactions.close()
