"""What becomes of the events of a batch, and how that is written down with its end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.database import sql

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq.database.pool import AnyConnection
    from notifyq.models.event import Event
    from notifyq.models.outcome import Failed
    from notifyq.streams.subscription import Batch

Again = dict[int, tuple[timedelta, str]]
"""Ids of events, and for each after what time it comes again and why."""
_BASE, _MOST = 2.0, 300.0
"""Seconds of the backoff where a subscriber has none for an error, and its bound."""


@dataclass(slots=True)
class BatchResult:
    """What becomes of the events of a batch; those that it does not name have succeeded."""

    retried: Again = field(default_factory=dict)
    """They come again in a later batch."""
    failed: dict[int, str] = field(default_factory=dict)
    """They are archived, for this reason."""
    again: Again = field(default_factory=dict)
    """They are handled once more before the batch is finished."""
    is_released: bool = False
    """Whether the batch was broken off."""

    def next(self, event: Event) -> Event:
        """The event as it is handled the next time."""
        if event.id not in self.again:
            return event
        return replace(event, retries=event.attempts, reason=self.again[event.id][1])

    async def write(self, connection: AnyConnection, batch: Batch) -> None:
        """Write down what is retried and what has failed, in the transaction that is open."""
        if retried := self.retried:
            delays = [delay for delay, _ in retried.values()]
            reasons = [reason for _, reason in retried.values()]
            await connection.fetch(sql.RETRY_EVENTS, batch.id, list(retried), delays, reasons)
        if failed := self.failed:
            await connection.fetch(sql.FAIL_EVENTS, batch.id, list(failed), list(failed.values()))


def delay_of(event: Event, failed: Failed) -> timedelta:
    """When an event comes again that has failed."""
    if failed.after is not None:
        return failed.after
    seconds = min(_MOST, _BASE * 2.0 ** min(event.attempts - 1, 20))
    return timedelta(seconds=seconds * random.uniform(0.5, 1))  # noqa: S311  nothing secret


def chains_of(events: list[Event], *, by_key: bool) -> Iterator[list[Event]]:
    """Events that must be handled one after the other; those without a key are of one key."""
    if not by_key:
        yield from ([event] for event in events)
        return
    chains: dict[str | None, list[Event]] = {}
    for event in events:
        chains.setdefault(event.key, []).append(event)
    yield from chains.values()
