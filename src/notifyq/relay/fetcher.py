"""Claims of a relay: as many messages as are small enough to be under way together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import asyncpg

from notifyq.database import sql
from notifyq.notify.poller import Poll
from notifyq.relay.batch import RelayBatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifyq.config import RelaySettings
    from notifyq.database.pool import Database

_FIRST = 100
"""Messages of the first claim; then twice as many each time, as long as they are small."""
_LARGEST = 8_000_000
"""Characters that a claim may bring, going by the one before."""


class RelayFetcher:
    """Claims batches for the relay of this name."""

    def __init__(
        self,
        source: Database,
        routes: Mapping[str, str],
        settings: RelaySettings,
        name: str,
        filter: str | None,
    ) -> None:
        # One session: it finds what the claim before has left there.
        self._claims = source.lane()
        self._routes = routes
        self._settings = settings
        self._name = name
        self._filter = filter
        self._quantity = min(_FIRST, settings.batch)

    def slow_down(self) -> None:
        """Begin again with few: nobody knows how many the target takes."""
        self._quantity = 1

    async def claim(self, *, is_last: bool) -> tuple[Poll, RelayBatch | None]:
        """Claim a batch, if there is one; `is_last` looks at everything."""
        since = time.monotonic()
        quantity = self._quantity
        lock_timeout = self._settings.lock_timeout
        try:
            [row] = await self._claims.fetch(
                sql.RELAY_CLAIM,
                list(self._routes),
                quantity,
                lock_timeout,
                self._name,
                self._filter,
                is_last,
            )
        except asyncpg.ProgramLimitExceededError:
            if quantity == 1:
                raise
            self._quantity = max(1, quantity // 8)  # more than fits into one answer
            return Poll(frozenset(), is_full=True, began=since), None
        if row["ids"] is None:
            return Poll(frozenset(), is_full=False, began=since), None
        flight = RelayBatch(row, self._routes, since, lock_timeout.total_seconds())
        mean = max(1, flight.size // len(flight))
        self._quantity = max(1, min(2 * quantity, self._settings.batch, _LARGEST // mean))
        return Poll(flight.queues, is_full=len(flight) == quantity, began=since), flight

    async def close(self) -> None:
        """Close the session."""
        await self._claims.close()
