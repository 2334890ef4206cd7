"""What has become of a batch, written down at the source."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.relay.events import RelayMoved, RelayRefused
from notifyq.telemetry.tracebacks import clean, describe, in_line, report

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from notifyq.database.pool import Database
    from notifyq.relay.batch import Endings, RelayBatch
    from notifyq.relay.target import Sent
    from notifyq.telemetry import Sink


log = logging.getLogger("notifyq.relay")


class Settlement:
    """Finishes, retries and releases at the source, and counts.

    `names` are those of the target and the source; `attempts` is how often a transformation may
    fail on a message.
    """

    def __init__(
        self,
        source: Database,
        names: tuple[str, str],
        attempts: int,
        counts: Counter[str],
        sink: Sink,
    ) -> None:
        self._source = source
        self._names = names
        self._attempts = attempts
        self._counts = counts
        self._sink = sink

    async def settle(self, flight: RelayBatch, sent: Sent) -> None:
        """Write down how each message of a batch ended, or that it goes back."""
        endings = flight.endings(sent)
        held = 0
        if endings.ids:
            # One that the target has surely got; what it had before has an older receipt.
            place = next(reversed(sent.ids), None)
            held = len(
                await self._source.persist(
                    sql.RELAY_FINISH,
                    *self._names,
                    place,
                    endings.ids,
                    endings.tokens,
                    endings.created,
                    endings.statuses,
                    endings.details,
                    endings.results,
                )
            )
        if flight.failed:
            await self._retry(flight)
        if endings.unsent:
            await self.release(flight, endings.unsent)
        for message_id, reason in endings.refused:
            self._sink(RelayRefused(source=flight.source, message_id=message_id, reason=reason))
        self._count(flight, sent, endings, lost=len(endings.ids) - held)

    async def release(self, flight: RelayBatch, indexes: Iterable[int]) -> None:
        """Put messages of a batch back, as if they had not been claimed."""
        chosen = list(indexes)
        rows = await self._source.persist(
            sql.RELEASE_MANY,
            [flight.ids[index] for index in chosen],
            [flight.tokens[index] for index in chosen],
        )
        self._counts["released"] += len(rows)

    async def _retry(self, flight: RelayBatch) -> None:
        errors = list(flight.failed.values())
        told = [report(error) for error in errors]
        for index, error in zip(flight.failed, told, strict=True):
            log.warning(
                "queue %r: the transformation failed on message %d in attempt %d of %d: %s",
                flight.source, flight.ids[index], flight.attempts(index), self._attempts,
                in_line(f"{error.type}: {error.text}"),
            )  # fmt: skip
        await self._source.persist(
            sql.RETRY_MANY,
            [flight.ids[index] for index in flight.failed],
            [flight.tokens[index] for index in flight.failed],
            None,
            [clean(f"the transformation of the relay failed: {describe(it)}") for it in errors],
            None,
            [it.type for it in told],
            [it.text for it in told],
            [it.traceback for it in told],
            [flight.attempts(index) >= self._attempts for index in flight.failed],
        )

    def _count(self, flight: RelayBatch, sent: Sent, endings: Endings, *, lost: int) -> None:
        numbers = {
            "known": sent.known,
            "merged": sent.merged,
            "dropped": endings.dropped,
            "failed": len(flight.failed),
            "refused": len(endings.refused),
            "lost": lost,
        }
        moved = len(endings.ids) - endings.dropped - len(endings.refused)
        self._counts.update(numbers, moved=moved)
        if endings.ids or flight.failed:
            took = flight.took()
            self._sink(
                RelayMoved(
                    source=flight.source,
                    quantity=moved,
                    lag=flight.age + took,
                    took=took,
                    **numbers,
                )
            )
