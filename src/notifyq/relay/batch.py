"""A batch that a relay has claimed from queues, and how its messages end at the source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import asyncpg

from notifyq.models.message import Status, decode
from notifyq.models.payload import is_sealed
from notifyq.relay.message import RelayBatch, RelayMessage

if TYPE_CHECKING:
    from notifyq.relay.message import Item
    from notifyq.relay.target import Sent

_DROPPED = "left out by the transformation of the relay"
_COLUMNS = (
    "messages", "priorities", "types", "headers", "keys", "dedup_keys", "dedup_scopes",
    "max_attempts",
)  # fmt: skip


@dataclass(slots=True)
class Endings:
    """How the messages of a batch end."""

    settled: list[tuple[int, int, int, str, str | None, str | None]] = field(default_factory=list)
    """Id, lock token, creation, status, details and result of each message that ends."""
    unsent: list[int] = field(default_factory=list)
    """Indexes of messages that the target has neither received nor refused."""
    refused: list[tuple[int, str]] = field(default_factory=list)
    """Ids and reasons of messages that the target refused."""
    dropped: int = 0


class QueueBatch(RelayBatch):
    """One claimed batch; `since` is when its claim was sent, `seconds` how long its locks last."""

    def __init__(
        self, row: asyncpg.Record, routes: Mapping[str, str], since: float, seconds: float
    ) -> None:
        self._row = row
        self._routes = routes
        self.ids: list[int] = row["ids"]
        self.tokens: list[int] = row["tokens"]
        super().__init__([f"{i}@{c}" for i, c in zip(self.ids, row["created"], strict=True)])
        self.since = since
        self.seconds = seconds
        self.extend_at = since + seconds / 3
        self.age = float(row["age"] or 0)
        """Seconds from when the oldest message was available to the claim."""
        self.queues = frozenset(row["queues"])
        self.source = ",".join(sorted(self.queues))

    @property
    def size(self) -> int:
        """Characters of all payloads."""
        return sum(map(len, self._row["messages"]))

    def attempts(self, index: int) -> int:
        """How often a message has been claimed."""
        return int(self._row["attempts"][index])

    def is_sealed(self, index: int) -> bool:
        """Whether a message is encrypted; a relay has no keys and passes it on as it is."""
        return is_sealed(self._row["messages"][index])

    def message(self, index: int) -> RelayMessage:
        """Return a message for the transformation."""
        row = self._row
        return RelayMessage(
            id=row["ids"][index],
            source=row["queues"][index],
            queue=self._routes[row["queues"][index]],
            message=row["messages"][index],
            headers=decode(row["headers"][index]),
            type=row["types"][index],
            priority=row["priorities"][index],
            key=row["keys"][index],
            dedup_key=row["dedup_keys"][index],
            dedup_scope=row["dedup_scopes"][index],
            max_attempts=row["max_attempts"][index],
            attempts=row["attempts"][index],
        )

    def items(self) -> list[Item]:
        """Return what the target receives; without a transformation, the columns of the claim."""
        if self.made:
            return super().items()
        queues = [self._routes[queue] for queue in self._row["queues"]]
        columns = (self._row[name] for name in _COLUMNS)
        return list(zip(self.positions, queues, *columns, strict=True))

    def endings(self, sent: Sent) -> Endings:
        """Return how the messages end after the batch was sent, except those that failed."""
        found = Endings()
        for index in range(len(self)):
            if index not in self.failed:
                self._end(index, sent, found)
        return found

    def stopped(self, sent: Sent) -> dict[str, Exception]:
        """Return the queues of the source from which the target refuses messages, and why."""
        return {
            self._row["queues"][index]: sent.stopped[queue]
            for index in range(len(self))
            for _, queue in self._pairs(index)
            if queue in sent.stopped
        }

    def _pairs(self, index: int) -> list[tuple[str, str]]:
        """Return the position and the queue of what the target receives for a message."""
        if self.made:
            return [(item[0], item[1]) for item in self.made[index]]
        return [(self.positions[index], self._routes[self._row["queues"][index]])]

    def _end(self, index: int, sent: Sent, found: Endings) -> None:
        pairs = self._pairs(index)
        status, details, result = Status.SUCCESS, None, None
        reasons = [sent.refused[position] for position, _ in pairs if position in sent.refused]
        if not pairs:
            found.dropped += 1
            details = _DROPPED
        elif reasons:
            found.refused.append((self.ids[index], reasons[0]))
            status = Status.REJECTED
            details = f"the target of the relay refuses it: {reasons[0]}"
        elif any(position not in sent.ids for position, _ in pairs):
            found.unsent.append(index)
            return
        else:
            results = [
                f'{{"queue": {_quoted(queue)}, "id": {sent.ids[position]}}}'
                for position, queue in pairs
            ]
            result = results[0] if len(results) == 1 else f"[{','.join(results)}]"
        row = self._row
        if self.is_sealed(index):
            details = result = None  # plain text is refused there
        found.settled.append(
            (
                row["ids"][index],
                row["tokens"][index],
                row["created"][index],
                status,
                details,
                result,
            )
        )


@cache
def _quoted(name: str) -> str:
    return json.dumps(name)
