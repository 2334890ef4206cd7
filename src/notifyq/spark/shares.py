"""Shares: work of uneven size is put together into tasks of about the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")


def together(sized: Sequence[tuple[int, T]], most: int) -> Iterator[list[T]]:
    """Give groups whose sizes are `most` in sum, if not one alone is larger."""
    group: list[T] = []
    gathered = 0
    for size, item in sized:
        if group and gathered + size > most:
            yield group
            group, gathered = [], 0
        group.append(item)
        gathered += size
    if group:
        yield group
