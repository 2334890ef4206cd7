"""Calling a transformation for each message of a batch."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from notifyq.relay.message import RelayMessage

if TYPE_CHECKING:
    from notifyq.relay.message import Item, Transform


class Cargo(Protocol):
    """A batch of messages on their way, and what is made of each."""

    places: list[str]

    def __len__(self) -> int: ...

    def message(self, index: int) -> RelayMessage:
        """Return a message as a transformation sees it."""

    def put(self, index: int, items: list[Item]) -> None:
        """Note what a transformation has made of a message."""

    def fail(self, index: int, error: Exception) -> None:
        """Note that a transformation has failed on a message."""


async def transform(function: Transform, flight: Cargo) -> None:
    """Have a function decide what becomes of each message of a batch."""
    if inspect.iscoroutinefunction(function):
        for place in range(len(flight)):
            try:
                made = await function(flight.message(place))
                flight.put(place, _items(made, flight.places[place]))
            except Exception as error:  # noqa: BLE001  it is the function's, and costs its message
                flight.fail(place, error)
    else:
        # Beside the loop, which has locks to extend.
        await asyncio.to_thread(_transform_all, function, flight)


def _transform_all(function: Transform, flight: Cargo) -> None:
    for place in range(len(flight)):
        try:
            flight.put(place, _items(function(flight.message(place)), flight.places[place]))
        except Exception as error:  # noqa: BLE001  it is the function's, and costs its message
            flight.fail(place, error)


def _items(made: Any, place: str) -> list[Item]:
    if made is None:
        return []
    if isinstance(made, RelayMessage):
        return [made.item(place)]
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], str):
        queue, message = made
        if isinstance(message, RelayMessage):
            return [message.replace(queue=queue).item(place)]
    if isinstance(made, Sequence) and not isinstance(made, str | bytes):
        found: list[Item] = []
        for number, one in enumerate(made):
            found += _items(one, f"{place}/{number}")
        return found
    raise TypeError(
        "a transformation returns None, a RelayMessage, (queue, RelayMessage), or a list of these, "
        f"not {made!r:.100}"
    )
