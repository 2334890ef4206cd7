"""A batch under way: what was claimed, what goes to the target, and how each message ends."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from notifyq.models.message import Status, decode
from notifyq.relay.message import RelayMessage

if TYPE_CHECKING:
    from collections.abc import Mapping

    import asyncpg

    from notifyq.relay.message import Item
    from notifyq.relay.target import Sent

_DROPPED = "left out by the transformation of the relay"


@dataclass(slots=True)
class Endings:
    """How the messages of a batch end, as the columns of one call; and those that do not."""

    ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    created: list[int] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    details: list[str | None] = field(default_factory=list)
    results: list[str | None] = field(default_factory=list)
    unsent: list[int] = field(default_factory=list)
    """Indexes of those that the target has neither received nor refused."""
    refused: list[tuple[int, str]] = field(default_factory=list)
    """Ids, and why."""
    dropped: int = 0


class RelayBatch:
    """One claimed batch. `since` is when its claim was sent."""

    def __init__(
        self, row: asyncpg.Record, routes: Mapping[str, str], since: float, seconds: float
    ) -> None:
        self._row = row
        self._routes = routes
        self.ids: list[int] = row["ids"]
        self.tokens: list[int] = row["tokens"]
        self.created: list[int] = row["created"]
        self.places = [f"{i}@{c}" for i, c in zip(self.ids, self.created, strict=True)]
        self.since = since
        self.age = float(row["age"] or 0)
        """Seconds that the oldest has waited for its claim."""
        self.seconds = seconds
        self.extend_at = since + seconds / 3
        self._made: dict[int, list[Item]] | None = None
        self.failed: dict[int, Exception] = {}
        """Those on which the transformation has failed, by index."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size(self) -> int:
        """Characters of all payloads."""
        return sum(map(len, self._row["messages"]))

    @property
    def queues(self) -> frozenset[str]:
        """Where the messages come from."""
        return frozenset(self._row["queues"])

    @property
    def source(self) -> str:
        """Where the messages come from, for people."""
        return ",".join(sorted(self.queues))

    def attempts(self, index: int) -> int:
        """How often a message has been claimed."""
        return int(self._row["attempts"][index])

    def message(self, index: int) -> RelayMessage:
        """Return a message as a transformation sees it."""
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

    def put(self, index: int, items: list[Item]) -> None:
        """Note what a transformation has made of a message."""
        if self._made is None:
            self._made = {}
        self._made[index] = items

    def fail(self, index: int, error: Exception) -> None:
        """Note that a transformation has failed on a message."""
        self.put(index, [])
        self.failed[index] = error

    def items(self) -> list[Item]:
        """Return what goes to the target."""
        if self._made is not None:
            return [item for index in range(len(self)) for item in self._made[index]]
        row = self._row
        return list(
            zip(
                self.places,
                [self._routes[queue] for queue in row["queues"]],
                *(row[name] for name in _COLUMNS),
                strict=True,
            )
        )

    def endings(self, sent: Sent) -> Endings:
        """Return how each message ends after this has been sent; failed ones are left out."""
        found = Endings()
        for index in range(len(self)):
            if index in self.failed:
                continue
            status, details, result = self._ending(index, sent, found)
            if status is None:
                found.unsent.append(index)
                continue
            found.ids.append(self.ids[index])
            found.tokens.append(self.tokens[index])
            found.created.append(self.created[index])
            found.statuses.append(status)
            found.details.append(details)
            found.results.append(result)
        return found

    def _ending(
        self, index: int, sent: Sent, found: Endings
    ) -> tuple[str | None, str | None, str | None]:
        if self._made is None:
            pairs = [(self.places[index], self._routes[self._row["queues"][index]])]
        else:
            pairs = [(item[0], item[1]) for item in self._made[index]]
        if not pairs:
            found.dropped += 1
            return Status.SUCCESS, _DROPPED, None
        for place, _ in pairs:
            if (reason := sent.refused.get(place)) is not None:
                found.refused.append((self.ids[index], reason))
                return Status.REJECTED, f"the target of the relay refuses it: {reason}", None
        if any(place not in sent.ids for place, _ in pairs):
            return None, None, None
        results = [
            f'{{"queue": {_quoted(queue)}, "id": {sent.ids[place]}}}' for place, queue in pairs
        ]
        return Status.SUCCESS, None, results[0] if len(results) == 1 else f"[{','.join(results)}]"

    def took(self) -> float:
        """Seconds since the claim."""
        return time.monotonic() - self.since


_COLUMNS = (
    "messages", "priorities", "types", "headers", "keys", "dedup_keys", "dedup_scopes",
    "max_attempts",
)  # fmt: skip


def _quoted(name: str, _known: dict[str, str] = {}) -> str:  # noqa: B006  it is a memory
    if name not in _known:
        _known[name] = json.dumps(name)
    return _known[name]
