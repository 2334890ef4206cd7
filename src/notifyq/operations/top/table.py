"""A table that is filled again regularly while its cursor stays on the same row."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text
from textual.widgets import DataTable

from notifyq.operations.top.snapshot import Snapshot
from notifyq.operations.top.views import Column, View, chosen, cut, fitting

MOST = 500
"""Rows that are shown at once; a filter finds the others."""


class Table(DataTable[Text]):
    """The rows of a view, with filter and order."""

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
                self.add_row(
                    *(
                        Text(cut(it.show(seen, row), width), justify=_side(it), no_wrap=True)
                        for it, width in columns
                    )
                )
            self.shown = rows
            keys = [view.key(it) for it in rows]
            key = None if before is None else view.key(before)
            if key in keys:
                self.move_cursor(row=keys.index(key), scroll=False, animate=False)
                self.scroll_to(y=top, animate=False)
        return found

    def next_sort(self, view: View) -> None:
        """Sort by the next column that has an order."""
        sortable = [index for index, it in enumerate(view.columns) if it.order is not None]
        now = view.first if self.sorted_by is None else self.sorted_by
        self.sorted_by = next((index for index in sortable if index > now), sortable[0])
        self.flip = False

    def _lay_out(self, view: View, columns: Sequence[tuple[Column, int]]) -> None:
        index = view.first if self.sorted_by is None else self.sorted_by
        layout = []
        for it, width in columns:
            is_sorted = view.columns.index(it) == index
            mark = "▾" if it.is_number != self.flip else "▴"
            layout.append((f"{it.title}{mark}" if is_sorted else it.title, width))
        if layout == self._layout:
            self.clear()
            return
        self._layout = layout
        self.clear(columns=True)
        for (column, _), (title, width) in zip(columns, layout, strict=True):
            self.add_column(Text(title, justify=_side(column)), width=width)


def _side(column: Column) -> Any:
    return "right" if column.is_number else "left"
