"""A message on its way from one database to another, and what a transformation makes of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from notifyq.models.message import decode
from notifyq.models.payload import encode

Item: TypeAlias = tuple[
    str, str, str, int, str | None, str | None, str | None, str | None, str | None, int | None
]
"""What the target receives: place, queue, and the columns of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMessage:
    """A message on its way; `queue` is where it goes, `source` where it comes from.

    `message` is its JSON text, which goes over as it is: decoded and encoded, numbers might change.
    """

    id: int
    """That of the source; the target gives it another one."""
    source: str
    queue: str
    message: str
    headers: dict[str, Any]
    type: str | None = None
    priority: int = 0
    key: str | None = None
    dedup_key: str | None = None
    dedup_scope: str | None = None
    max_attempts: int | None = None
    attempts: int = 1
    """How often a relay has claimed it."""

    def payload(self) -> Any:
        """Decode the message."""
        return decode(self.message)

    def replace(self, **changes: Any) -> RelayMessage:
        """Return it with other values; `payload` may be anything that JSON can hold."""
        if "payload" in changes:
            changes["message"] = encode(changes.pop("payload"))
        return replace(self, **changes)

    def item(self, place: str) -> Item:
        """Return what the target receives."""
        return (
            place,
            self.queue,
            self.message,
            self.priority,
            self.type,
            encode(self.headers),
            self.key,
            self.dedup_key,
            self.dedup_scope,
            self.max_attempts,
        )


One: TypeAlias = RelayMessage | tuple[str, RelayMessage]
Transformed: TypeAlias = One | Sequence[One] | None
Transform: TypeAlias = Callable[[RelayMessage], Transformed | Awaitable[Transformed]]
"""Takes a message and returns it, another one, a queue and a message, several of these, or None."""


def columns(items: list[Item]) -> list[list[Any]]:
    """Items as the columns of one call."""
    return [list(column) for column in zip(*items, strict=True)] or [[] for _ in range(10)]
