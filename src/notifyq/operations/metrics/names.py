"""Values of labels, of which there are never more than so many.

Each value is a series that Prometheus keeps for weeks, and names of queues are anybody's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

OTHERS = "(others)"
"""Stands for every name beyond the first ones."""


class Names:
    """Hands out names as they are up to a number of them, first come, then `(others)`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __getitem__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHERS
        self._known.add(name)
        return name

    def pair(self, stream: str, subscriber: str) -> tuple[str, str]:
        """Bound a subscription as one name: many subscribers of a stream are as many series."""
        first, _, second = self[f"{stream}\n{subscriber}"].partition("\n")
        return first, second or first

    def add(self, names: Iterable[str]) -> None:
        """Have names known before others come."""
        for name in names:
            self[name]
