"""The order in which the claims of a worker name its queues: a claim serves the first one first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from notifyq.models.message import Message

MOST_WEIGHT = 1000
"""The largest weight of a queue."""


class QueueOrder:
    """Queues that take turns at being the first, or have an order, or weights.

    With weights the first queue is the one that got the fewest messages for its weight. A queue
    that was empty gains no credit, so it cannot keep the others waiting afterwards.
    """

    def __init__(self, queues: Sequence[str] | Mapping[str, int], *, strict: bool = False) -> None:
        self._weights = dict(queues) if isinstance(queues, Mapping) else {}
        self._queues = list(queues)
        self._strict = strict
        for queue, count in Counter(self._queues).items():
            if count > 1:
                raise ConfigurationError(f"queue {queue!r} is given {count} times: give it once")
        for queue, weight in self._weights.items():
            if type(weight) is not int or not 1 <= weight <= MOST_WEIGHT:
                raise ConfigurationError(
                    f"the weight of queue {queue!r} is {weight!r}: "
                    f"give a whole number from 1 to {MOST_WEIGHT}"
                )
        if strict and self._weights:
            raise ConfigurationError(
                "strict queues have an order and no weights: leave out strict or the weights"
            )
        self._served = dict.fromkeys(self._weights, 0.0)
        self.is_kept = strict or bool(self._weights)
        """Whether the order matters, so that no claim may name the queues in another one."""

    @property
    def size(self) -> int:
        """How many queues there are."""
        return len(self._queues)

    def requests(self, quantity: int, *, is_loaded: bool) -> list[tuple[list[str], int | None]]:
        """The queues of the next poll, in order, and the most messages to ask of them, if any.

        Mostly all queues at once. Of queues with weights that were not empty just now each is first
        asked for its share: else a large claim would take everything from one of them.
        """
        if not self._weights:
            order = list(self._queues)
            if not self._strict:
                self._queues.append(self._queues.pop(0))
            return [(order, None)]
        order = sorted(self._queues, key=self._served.__getitem__)
        total = sum(self._weights.values())
        if not is_loaded or quantity < total:
            return [(order, None)]
        shares = [(queue, quantity * self._weights[queue] // total) for queue in order[1:]]
        first = quantity - sum(share for _, share in shares)
        each: list[tuple[list[str], int | None]] = [
            ([queue], share) for queue, share in [(order[0], first), *shares]
        ]
        return [*each, (order, None)]

    def record(self, claimed: list[Message]) -> None:
        """Count what one claim returned."""
        if not self._weights:
            return
        counts = Counter(message.queue for message in claimed)
        # Queues that have got less for their weight stood before these, and were empty.
        least = min(self._served[queue] for queue in counts)
        for queue, served in self._served.items():
            self._served[queue] = max(served, least)
        for queue, count in counts.items():
            self._served[queue] += count / self._weights[queue]
