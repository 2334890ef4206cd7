"""How commands print: tables that fit the terminal, JSON lines, and values as people read them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from notifyq.cli.arguments import running
from notifyq.dsn import masked_in
from notifyq.models.payload import json_line, json_text, without_envelope
from notifyq.operations.texts import span
from notifyq.printable import first_line, printable

if TYPE_CHECKING:
    from notifyq.models.event import Event
    from notifyq.models.message import ArchivedMessage, Message

_UNLIMITED = 10**9
"""Width of a pipe or a file, where nothing is cut or folded."""
_MOST = 1000
"""Characters of a cell in a terminal; a payload may have millions."""
_MOST_PIPED = 10_000
_LEAST = 12
"""Columns of the terminal that a text keeps in a table that is too wide."""


class _Console(Console):
    """Prints texts as they are: brackets are not markup, and :dog: is not an animal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; on stderr, mask passwords that an error or an argument may quote."""
        if self.stderr:
            objects = tuple(masked_in(it, running) if isinstance(it, str) else it for it in objects)
        super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # handled in main, like any other


out = _Console(width=None if sys.stdout and sys.stdout.isatty() else _UNLIMITED)
err = _Console(stderr=True)


def waits(text: str) -> None:
    """Show a person that the command waits, and how to end it; a script needs no such line."""
    if err.is_terminal:
        err.print(printable(f"waiting {text}; Ctrl-C ends it"))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(json_text(value) + "\n")


def print_rows(
    rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str, spare: Sequence[str] = ()
) -> None:
    """Print rows as a table, or as JSON lines; a narrow table drops columns in `spare` first."""
    if as_json:
        for row in rows:
            print_json(dict(row))
        return
    if not rows:
        out.print(empty)
        return
    names = list(rows[0])
    print_table(
        names,
        [list(row.values()) for row in rows],
        numbers={
            column
            for column, value in enumerate(rows[0].values())
            if isinstance(value, int | float) and not isinstance(value, bool)
        },
        cut={column for column, name in enumerate(names) if name in {"details", "message"}},
        spare=[names.index(name) for name in spare],
    )


def print_table(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[int] = (),
    cut: Collection[int] = (),
    spare: Sequence[int] = (),
) -> None:
    """Print a table that fits the terminal; in a pipe it has all of each cell.

    Columns are given by index: `numbers` are aligned right and never folded. Texts in `cut` lose
    their end, other texts fold. If that is not enough, columns are left out and a line names them:
    first `spare`, then from the right, but never the first column nor one of `cut`.
    """
    most = _MOST_PIPED if out.width >= _UNLIMITED else _MOST
    cells = [[cell(value, most) for value in row] for row in rows]
    natural = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    least = [
        _least(name, [row[column] for row in cells], is_text=column not in numbers)
        for column, name in enumerate(names)
    ]
    shown, widths = _fitted(natural, least, cut, spare)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in shown:
        is_cut = column in cut
        table.add_column(
            names[column],
            justify="right" if column in numbers else "left",
            no_wrap=is_cut,
            overflow="ellipsis" if is_cut else "fold",
            width=widths[column],
        )
    for row in cells:
        table.add_row(*(row[column] for column in shown))
    out.print(table)
    if left := [name for column, name in enumerate(names) if column not in shown]:
        note(f"(not shown at this width: {', '.join(left)})")


def note(text: str) -> None:
    """Print a remark below a table, in lines that fit the terminal."""
    out.print(printable(text), soft_wrap=out.width >= _UNLIMITED)


def _least(name: str, cells: Iterable[str], *, is_text: bool) -> int:
    """The least width of a column: its head folds between words, a text anywhere."""
    width = max(map(cell_len, cells), default=0)
    head = max(map(cell_len, name.split()), default=0)
    return max(head, min(width, _LEAST) if is_text else width)


def _fitted(
    natural: Sequence[int], least: Sequence[int], cut: Collection[int], spare: Sequence[int]
) -> tuple[list[int], dict[int, int]]:
    """Which columns to show, and the width of each."""
    shown = list(range(len(natural)))
    kept = {0, *cut, *spare}
    for column in (*spare, *(it for it in reversed(shown) if it not in kept)):
        if _total(least[it] for it in shown) <= out.width:
            break
        shown.remove(column)
    room = out.width - _total(least[column] for column in shown)
    if room < 0:  # a terminal of a few columns
        share = max(1, (out.width - 2 * (len(shown) - 1)) // len(shown))
        return shown, dict.fromkeys(shown, share)
    widths = {}
    # The room is shared equally; what a column does not need goes to those that need more.
    by_need = sorted(shown, key=lambda column: natural[column] - least[column])
    for number, column in enumerate(by_need):
        more = min(natural[column] - least[column], room // (len(by_need) - number))
        widths[column] = least[column] + more
        room -= more
    return shown, widths


def _total(widths: Iterable[int]) -> int:
    """The width of a table whose columns have these widths, with two blanks between."""
    each = list(widths)
    return sum(each) + 2 * (len(each) - 1)


def cell(value: Any, most: int = _MOST) -> str:
    """Text of a value in a table: one line of at most `most` characters."""
    match value:
        case None:
            return ""
        case datetime():
            return when(value)
        case timedelta():
            return span(value)
        case bool():
            return "yes" if value else ""
        case dict() | list():
            return printable(json_text(value)[:most])
        case _:
            return first_line(without_envelope(str(value)), most)


def when(value: datetime, *, full: bool = False) -> str:
    """An instant in local time; without the date if that is today's, unless in full."""
    try:
        local = value.astimezone()
    except (OverflowError, ValueError):  # infinity, which asyncpg reads as the last instant
        return "never"
    if full:
        return local.strftime("%Y-%m-%d %H:%M:%S %z")
    is_today = local.date() == datetime.now().astimezone().date()
    return local.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def row_json(row: Message | ArchivedMessage | Event, **more: Any) -> str:
    """A message or an event as one line of JSON, payload and result as PostgreSQL has them."""
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return json_line(fields | more, "message", "result")


def pick(message: Message | ArchivedMessage, names: Iterable[str]) -> dict[str, Any]:
    """Some of a message's fields, as columns of a table."""
    return {name: getattr(message, name) for name in names}
