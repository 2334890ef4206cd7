"""A table of another queue: what of it waits, and what a row of it is as a message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from notifyq.models.payload import encode

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What one queue of the source has."""

    queue: str
    waiting: int
    scheduled: int
    running: int
    """Being worked on at this moment: it is left where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A row of the source as a message; its queue is still that of the source."""

    id: int
    place: str
    """Which one it is there: an id may be given again after a truncate, hence more than that."""
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
        """JSON text that messages.receive() takes, for this queue of the destination."""
        rest = encode(
            {
                "place": self.place,
                "queue": queue,
                "type": self.type,
                "priority": self.priority,
                "available_at": self.available_at,
                "headers": self.headers,
                "dedup_key": self.dedup_key,
                "key": self.key,
            }
        )
        # Not decoded and encoded again: numbers would lose digits.
        return f'{rest[:-1]},"message":{self.message}}}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the source. What is SQL here speaks of its row as `t`."""

    system: str
    name: str
    """As regclass writes it: quoted where it must be."""
    id: str
    payload: str
    """The column of the payload."""
    kind: str
    """What the payload is read as."""
    queue: str
    due: str
    """The instant from which on a row may be worked on; null: at once."""
    waits: str
    """Whether it may be moved: it waits, or is not due yet."""
    runs: str
    """Whether it is being worked on."""
    begun: str
    """When the row was made, or null."""
    item: Callable[[int, str, dict[str, Any], Any], Item]
    """Make an item of id, place, the columns but the payload, and the payload."""

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
    def look(self) -> str:
        """Read rows behind an id, of some queues, but for some ids."""
        return f"""
            select t.{self.id} as id,
              concat_ws('@', t.{self.id}, extract(epoch from {self.begun})) as place,
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
        """The same, locked; what others have locked is passed over."""
        return f"{self.look} for update of t skip locked"

    @property
    def remove(self) -> str:
        """Remove rows that were moved."""
        return f"delete from {self.name} as t where t.{self.id} = any ($1)"


def short(columns: dict[str, Any], *names: str) -> dict[str, Any]:
    """Some of the columns, but those that are null."""
    return {name: columns[name] for name in names if columns.get(name) is not None}


def name_of_table(name: str, found: str | None, system: str) -> str:
    """The name of a table that was looked for; it must be there."""
    from notifyq.errors import ConfigurationError

    if found is None:
        raise ConfigurationError(
            f"there is no table {name} of {system} in this database: name it with --table, "
            "or give the DSN of its database"
        )
    return found
