"""A table that is filled anew every other second and keeps its place meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.widgets import DataTable

from notifyq.operations.top.layout import chosen, cut, fitting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.operations.top.snapshot import Snapshot
    from notifyq.operations.top.views import Column, View

MOST = 500
"""Rows that are shown at once; a filter finds the others."""


class Table(DataTable[Text]):
    """Rows of a view under a cursor that stays with its row, whatever comes and goes."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", cell_padding=1)
        self.shown: list[Any] = []
        self.wanted = ""
        self.sorted_by: int | None = None
        self.flip = False
        self._layout: list[tuple[str, int]] = []

    @property
    def current(self) -> Any:
        """The row under the cursor; None in an empty table."""
        return self.shown[self.cursor_row] if 0 <= self.cursor_row < len(self.shown) else None

    def show(self, view: View, seen: Snapshot) -> int:
        """Fill the table; return how many rows match the filter."""
        before = self.current
        rows = chosen(view, seen, wanted=self.wanted, sort=self.sorted_by, flip=self.flip)
        found, rows = len(rows), rows[:MOST]
        columns = fitting(view, seen, rows, self.app.size.width)
        top = self.scroll_offset.y
        with self.app.batch_update():
            self._lay_out(view, columns)
            for row in rows:
                self.add_row(*(_cell(column, width, seen, row) for column, width in columns))
            self.shown = rows
            keys = [view.key(it) for it in rows]
            key = None if before is None else view.key(before)
            if key in keys:
                self.move_cursor(row=keys.index(key), scroll=False, animate=False)
                self.scroll_to(y=top, animate=False)
        return found

    def next_sort(self, view: View) -> None:
        """Sort by the next column that can be sorted by."""
        able = [place for place, it in enumerate(view.columns) if it.order is not None]
        now = view.first if self.sorted_by is None else self.sorted_by
        self.sorted_by = next((place for place in able if place > now), able[0])
        self.flip = False

    def _lay_out(self, view: View, columns: Sequence[tuple[Column, int]]) -> None:
        place = view.first if self.sorted_by is None else self.sorted_by
        layout = [
            (
                f"{it.title}{_mark(it, self.flip)}"
                if view.columns.index(it) == place
                else it.title,
                width,
            )
            for it, width in columns
        ]
        if layout == self._layout:
            self.clear()
            return
        self._layout = layout
        self.clear(columns=True)
        for (column, _), (title, width) in zip(columns, layout, strict=True):
            self.add_column(Text(title, justify=_side(column)), width=width)


def _mark(column: Column, flip: bool) -> str:  # noqa: FBT001
    return "▾" if column.is_number != flip else "▴"


def _side(column: Column) -> Any:
    return "right" if column.is_number else "left"


def _cell(column: Column, width: int, seen: Snapshot, row: Any) -> Text:
    return Text(cut(column.cell(seen, row), width), justify=_side(column), no_wrap=True)
