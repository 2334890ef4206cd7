"""A message of a relay, and the transformation of the messages of a batch."""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from notifyq.models.message import decode
from notifyq.models.payload import encode

Item: TypeAlias = tuple[
    str, str, str, int, str | None, str | None, str | None, str | None, str | None, int | None
]
"""What the target receives: position, queue, and the columns of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMessage:
    """A message of a relay, which moves from `source` to `queue`.

    `message` is its JSON text. It is moved unchanged: decoding and encoding could change numbers.
    """

    id: int
    """The id at the source; the target assigns another one."""
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
        """Return a copy with other values; `payload` may be any value that JSON can hold."""
        if "payload" in changes:
            changes["message"] = encode(changes.pop("payload"))
        return replace(self, **changes)

    def item(self, position: str) -> Item:
        """Return what the target receives."""
        return (
            position,
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
"""Takes a message and returns one, a queue and a message, a list of these, or None."""


class RelayBatch(ABC):
    """Messages that are moved together."""

    def __init__(self, positions: list[str]) -> None:
        self.positions = positions
        self.made: dict[int, list[Item]] = {}
        """The results of the transformation, by index."""
        self.failed: dict[int, Exception] = {}
        """The errors of the transformation, by index."""

    def __len__(self) -> int:
        return len(self.positions)

    @abstractmethod
    def message(self, index: int) -> RelayMessage:
        """Return a message for the transformation."""

    def items(self) -> list[Item]:
        """Return what the target receives."""
        return [item for index in range(len(self)) for item in self.made[index]]


async def transform(function: Transform, batch: RelayBatch) -> None:
    """Call a function for each message of a batch."""
    if not inspect.iscoroutinefunction(function):
        # In a thread: the event loop must extend locks.
        await asyncio.to_thread(_transform_sync, function, batch)
        return
    for index, position in enumerate(batch.positions):
        try:
            batch.made[index] = _items(await function(batch.message(index)), position)
        except Exception as error:  # noqa: BLE001  code of the user; only this message fails
            _fail(batch, index, error)


def _transform_sync(function: Transform, batch: RelayBatch) -> None:
    for index, position in enumerate(batch.positions):
        try:
            batch.made[index] = _items(function(batch.message(index)), position)
        except Exception as error:  # noqa: BLE001  code of the user; only this message fails
            _fail(batch, index, error)


def _fail(batch: RelayBatch, index: int, error: Exception) -> None:
    batch.made[index] = []
    batch.failed[index] = error


def _items(made: Any, position: str) -> list[Item]:
    if made is None:
        return []
    if isinstance(made, RelayMessage):
        return [made.item(position)]
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], str):
        queue, message = made
        if isinstance(message, RelayMessage):
            return [message.replace(queue=queue).item(position)]
    if isinstance(made, Sequence) and not isinstance(made, str | bytes):
        found: list[Item] = []
        for number, one in enumerate(made):
            found += _items(one, f"{position}/{number}")
        return found
    raise TypeError(
        "a transformation returns None, a RelayMessage, (queue, RelayMessage), or a list of these, "
        f"not {made!r:.100}"
    )
