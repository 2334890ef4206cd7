"""A table of another queue system: which rows wait, and how a row becomes a message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from notifyq.models.payload import encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """Counts of one queue of the source."""

    queue: str
    waiting: int
    scheduled: int
    running: int
    """Messages that are being handled now; they stay at the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A row of the source as a message; `queue` is the name at the source."""

    id: int
    position: str
    """Identifies the row: id and creation time, as ids start again after a truncate."""
    queue: str
    message: str
    """The payload as JSON text."""
    type: str | None = None
    priority: int = 0
    available_at: str | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    dedup_key: str | None = None
    key: str | None = None

    def sent(self, queue: str) -> str:
        """The JSON text for messages.receive(), with the queue at the destination."""
        names = "position", "type", "priority", "available_at", "headers", "dedup_key", "key"
        rest = encode({"queue": queue, **{name: getattr(self, name) for name in names}})
        # Decoding and encoding the message would lose digits of numbers.
        return f'{rest[:-1]},"message":{self.message}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the source. In the SQL of the fields `t` is its row."""

    system: str
    name: str
    """As regclass writes it, with quotes where needed."""
    id: str
    payload: str
    """The name of the payload column."""
    kind: str
    """The type that the payload is cast to."""
    queue: str
    due: str
    """When a row is due; null: at once."""
    waits: str
    """Whether a row may be moved: it waits or is not due yet."""
    runs: str
    """Whether a row is being handled."""
    begun: str
    """When a row was created, or null."""
    item: Callable[[int, str, dict[str, Any], Any], Item]
    """Makes an item of id, position, columns without payload, and payload."""

    @property
    def census(self) -> str:
        """Count the rows of each queue."""
        return f"""
            select q.queue,
              count(*) filter (where q.waits and not q.is_early) as waiting,
              count(*) filter (where q.waits and q.is_early) as scheduled,
              count(*) filter (where q.runs) as running
            from (
              select ({self.queue})::text as queue, {self.waits} as waits, {self.runs} as runs,
                coalesce({self.due} > clock_timestamp(), false) as is_early
              from {self.name} as t
            ) as q
            where q.waits or q.runs
            group by q.queue
            order by q.queue
        """

    @property
    def read(self) -> str:
        """Read rows after an id, of some queues, except some ids."""
        return f"""
            select t.{self.id} as id,
              concat_ws('@', t.{self.id}, extract(epoch from {self.begun})) as position,
              to_jsonb(t) - '{self.payload}' as row, t.{self.payload}::{self.kind} as payload
            from {self.name} as t
            where {self.waits}
              and t.{self.id} > $1
              and ({self.queue})::text = any ($2)
              and t.{self.id} <> all ($3)
            order by t.{self.id}
        """

    @property
    def lock(self) -> str:
        """Read and lock rows; skip those that others have locked."""
        return f"{self.read} for update of t skip locked"

    @property
    def remove(self) -> str:
        """Delete rows that were moved."""
        return f"delete from {self.name} as t where t.{self.id} = any ($1)"
