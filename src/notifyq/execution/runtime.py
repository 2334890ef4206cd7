"""What handlers are run with, beside the event loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from notifyq.execution.threads import Threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from notifyq.execution.transactions import Transactions
    from notifyq.models.message import Message
    from notifyq.models.outcome import Outcome


class ProcessDiedError(Exception):
    """The process of a handler died before the handler returned."""


class EndedError(Exception):
    """Passes an outcome on that is known already."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Running(Protocol):
    """What runs handlers in processes."""

    async def run(
        self,
        where: tuple[str, str],
        message: Message,
        began: Callable[[], None],
        carried: dict[str, str],
    ) -> Outcome:
        """Handle a message by the handler with this module and name.

        `carried` is the trace context of the span around it; empty, if there is none.
        """

    def close(self) -> None:
        """Kill the processes."""


@dataclass(slots=True, kw_only=True)
class Runtime:
    """What handlers of a worker are run with; one that only a few need may be missing."""

    threads: Threads = field(default_factory=Threads)
    transactions: Transactions | None = None
    processes: Running | None = None

    @property
    def stuck(self) -> int:
        """How many slots are held by what runs on although nobody waits for it any more."""
        return self.threads.stuck

    async def close(self) -> None:
        """End what is idle, and leave the rest to itself."""
        self.threads.close()
        if self.processes is not None:
            self.processes.close()
        if self.transactions is not None:
            await self.transactions.close()
