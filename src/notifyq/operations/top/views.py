"""The views of `top`: their rows and columns, and which columns fit into the terminal."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.cells import cell_len, set_cell_size

from notifyq.models.payload import without_envelope
from notifyq.operations.texts import size
from notifyq.operations.top.snapshot import Snapshot
from notifyq.operations.top.text import age, count, course, lasting, per_second
from notifyq.printable import first_line

Cell = Callable[[Snapshot, Any], str]
Order = Callable[[Snapshot, Any], Any]

_GAP = 2
"""Blanks between two columns."""
_READABLE = 12
"""Characters that a shortened text keeps."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column; `order` sorts its rows, and a column with a higher `rank` disappears earlier."""

    title: str
    cell: Cell
    order: Order | None = None
    rank: int = 0
    is_number: bool = True
    most: int = 60

    def show(self, seen: Snapshot, row: Any) -> str:
        """One line that a terminal can show: what a cell has may come from anybody."""
        return first_line(without_envelope(self.cell(seen, row)))


@dataclass(frozen=True, slots=True)
class View:
    """A table; its rows are sorted by the column `first` until the user chooses another one."""

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Snapshot], Sequence[Any]]
    key: Callable[[Any], str]
    """Identifies a row, and is what the filter searches."""
    empty: str
    first: int = 0
    is_descending: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the view of the database's health."""

    what: str
    subject: str
    value: str
    note: str


def text(title: str, name: str, rank: int = 0, most: int = 60) -> Column:
    """A column of texts, or of lists of texts, up to `most` wide."""

    def cell(_: Snapshot, row: Any) -> str:
        value = getattr(row, name)
        return value if isinstance(value, str) else ", ".join(value or ())

    return Column(title, cell, cell, rank, is_number=False, most=most)


def number(title: str, name: str, rank: int = 0, *, may_guess: bool = False) -> Column:
    """A column of numbers; `may_guess`: they are estimates unless the row is exact."""

    def order(_: Snapshot, row: Any) -> float:
        value: float = getattr(row, name)
        return value

    def cell(seen: Snapshot, row: Any) -> str:
        return count(order(seen, row), exact=not may_guess or row.is_exact)

    return Column(title, cell, order, rank)


def since(title: str, name: str, rank: int = 0) -> Column:
    """A column of ages."""

    def order(seen: Snapshot, row: Any) -> timedelta:
        at: datetime | None = getattr(row, name)
        return seen.now - (at or seen.now)

    return Column(title, lambda seen, row: age(seen.now, getattr(row, name)), order, rank)


def _rate(title: str, name: str, write: Callable[[Any], str], rank: int = 0) -> Column:
    def value(seen: Snapshot, row: Any) -> Any:
        return getattr(seen.rates[row.queue], name)

    def order(seen: Snapshot, row: Any) -> Any:
        return value(seen, row) is not None, value(seen, row)

    return Column(title, lambda seen, row: write(value(seen, row)), order, rank)


def _state(_seen: Snapshot, row: Any) -> str:
    found = ["paused"] if row.paused else ["no worker"] if row.is_unserved else []
    return ", ".join(found + ([f"{row.expired} expired"] if row.expired else []))


def _running(_seen: Snapshot, row: Any) -> str:
    return "/".join("-" if it is None else str(it) for it in (row.running, row.concurrency))


QUEUES = View(
    "Queues",
    (
        text("queue", "queue", most=28),
        number("waiting", "waiting", may_guess=True),
        number("locked", "locked"),
        since("oldest", "oldest_waiting_at"),
        _rate("rate", "finished", per_second),
        number("dead", "dead"),
        Column("state", _state, _state, 1, is_number=False, most=20),
        Column(
            "minute", lambda seen, it: course(seen.rates[it.queue].course), rank=5, is_number=False
        ),
        _rate("run95", "run_p95", lasting, 3),
        number("scheduled", "scheduled", 2, may_guess=True),
        number("parked", "parked", 4),
        _rate("wait95", "wait_p95", lasting, 4),
    ),
    lambda seen: seen.backlog,
    lambda it: it.queue,
    "there are no queues",
)

WORKERS = View(
    "Workers",
    (
        text("worker", "name", most=30),
        text("state", "state"),
        Column("running", _running, lambda _, it: it.running or 0),
        number("locked", "held"),
        number("expired", "expired", 1),
        since("seen", "seen_at", 1),
        since("up", "started_at", 3),
        Column(
            "serves",
            lambda _, it: ", ".join((*it.queues, *it.streams)),
            lambda _, it: it.queues,
            2,
            is_number=False,
            most=40,
        ),
        text("version", "version", 4),
    ),
    lambda seen: seen.workers,
    lambda it: it.name,
    "there are no workers",
)

DEAD = View(
    "Dead",
    (
        number("dead", "dead"),
        Column("last", lambda seen, it: age(seen.now, it.last_at), lambda _, it: it.last_at),
        text("queue", "queues", most=20),
        text("ended", "statuses", 2, 14),
        Column(
            "error",
            lambda _, it: it.sample or it.fingerprint or "(no text)",
            lambda _, it: it.fingerprint or "",
            is_number=False,
            most=200,
        ),
    ),
    lambda seen: seen.groups,
    lambda it: it.fingerprint or "(no text)",
    "no dead messages within 24 hours",
    is_descending=True,
)

STREAMS = View(
    "Streams",
    (
        text("stream", "stream", most=24),
        text("subscriber", "subscriber", most=24),
        Column("lag", lambda _, it: lasting(it.lag), lambda _, it: it.lag),
        number("pending", "pending"),
        number("retries", "retries", 1),
        since("seen", "last_seen_at", 3),
    ),
    lambda seen: seen.lags,
    lambda it: f"{it.stream}/{it.subscriber}",
    "there are no subscribers",
)


def _health(seen: Snapshot) -> list[Line]:
    lines = [
        Line(
            f"xmin: {it.cause}",
            f"pid {it.pid} {it.application or ''}" if it.pid else it.name,
            count(it.xmin_age or 0),
            it.advice,
        )
        for it in seen.holders
    ]
    lines += [
        Line(
            it.entry,
            it.schedule,
            it.last_status or ("not yet run" if it.is_active else "off"),
            f"{it.failed} failed: {it.last_message}" if it.failed else "",
        )
        for it in seen.cron
    ]
    figures = seen.health.figures if seen.health is not None else ()
    # Many numbers of tables are zero, which nobody needs to see.
    return lines + [
        Line(it.name, it.subject, _value(it.value, it.unit), "")
        for it in figures
        if it.value or not it.subject
    ]


def _value(value: float, unit: str) -> str:
    match unit:
        case "bytes":
            return size(value)
        case "seconds":
            return lasting(timedelta(seconds=value))
        case "ratio":
            return f"{value:.0%}"
        case _:
            return f"{count(value)} {unit}"


HEALTH = View(
    "Health",
    (
        text("figure", "what", most=30),
        text("of", "subject", most=30),
        Column("value", lambda _, it: it.value),
        text("note", "note", 1, 80),
    ),
    _health,
    lambda it: f"{it.what} {it.subject}",
    "",
    first=-1,
)

VIEWS = (QUEUES, WORKERS, DEAD, STREAMS, HEALTH)


def chosen(
    view: View, seen: Snapshot, *, wanted: str = "", sort: int | None = None, flip: bool = False
) -> list[Any]:
    """The rows of a view that match the filter, in their order."""
    rows = [it for it in view.rows(seen) if wanted.casefold() in view.key(it).casefold()]
    index = view.first if sort is None else sort
    if index < 0 or (order := view.columns[index].order) is None:
        return rows
    # The largest numbers come first, and texts in alphabetical order.
    is_descending = view.is_descending if sort is None else view.columns[index].is_number
    return sorted(rows, key=lambda it: order(seen, it), reverse=is_descending != flip)


def fitting(
    view: View, seen: Snapshot, rows: Iterable[Any], width: int
) -> list[tuple[Column, int]]:
    """The columns that fit into a width, each with its own width."""
    listed = list(rows)
    widths = {
        column.title: min(
            max([len(column.title) + 1, *(cell_len(column.show(seen, it)) for it in listed)]),
            column.most,
        )
        for column in view.columns
    }
    left = list(view.columns)
    while (over := sum(widths[it.title] + _GAP for it in left) - width) > 0:
        # First the longest text is shortened, then the column with the highest rank disappears.
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
    """A text that is at most that wide."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)) + "…"
