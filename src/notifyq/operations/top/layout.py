"""Which rows of a view are shown, in which order, and in how many columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifyq.operations.top.snapshot import Snapshot
    from notifyq.operations.top.views import Column, View

_GAP = 2
"""Blanks between two columns."""
_READABLE = 12
"""Characters of a text that are left when there is little room."""


def chosen(
    view: View, seen: Snapshot, *, wanted: str = "", sort: int | None = None, flip: bool = False
) -> list[Any]:
    """The rows of a view that match the filter, in their order."""
    rows = [it for it in view.rows(seen) if wanted.casefold() in view.key(it).casefold()]
    place = view.first if sort is None else sort
    if place < 0 or (order := view.columns[place].order) is None:
        return rows
    # Of figures the largest are of interest, of names the first.
    is_descending = view.is_descending if sort is None else view.columns[place].is_number
    return sorted(rows, key=lambda it: order(seen, it), reverse=is_descending != flip)


def fitting(
    view: View, seen: Snapshot, rows: Iterable[Any], width: int
) -> list[tuple[Column, int]]:
    """The columns that a terminal has room for, each with its width; the others make room."""
    listed = list(rows)
    widths = {
        column.title: min(
            max([len(column.title) + 1, *(len(column.cell(seen, it)) for it in listed)]),
            column.most,
        )
        for column in view.columns
    }
    left = list(view.columns)
    while (over := sum(widths[it.title] + _GAP for it in left) - width) > 0:
        # Long texts give way first, down to a readable rest; then columns, the least ones.
        long = max(left, key=lambda it: 0 if it.is_number else widths[it.title])
        room = widths[long.title] - _READABLE
        least = max(left, key=lambda it: (it.rank, left.index(it)))
        if not long.is_number and room > 0 and (room >= over or least.rank == 0):
            widths[long.title] -= min(room, over)
        elif len(left) > 1:
            left.remove(least if least.rank > 0 else left[-1])
        else:
            widths[left[0].title] = max(1, width - _GAP)
            break
    return [(it, widths[it.title]) for it in left]


def cut(text: str, width: int) -> str:
    """A text that is no longer than that."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"
