"""The views of `top`: which rows they have, in which columns, and what is left out when narrow."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from notifyq.operations.top.text import age, count, course, lasting, per_second, printable, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from notifyq.operations.top.snapshot import Snapshot

    Cell = Callable[[Snapshot, Any], str]
    Order = Callable[[Snapshot, Any], Any]

_NEVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Column:
    """One column; `order` is what its rows are sorted by, `rank` how early it makes room."""

    title: str
    cell: Cell
    order: Order | None = None
    rank: int = 0
    is_number: bool = True
    most: int = 60


def figure(title: str, cell: Cell, order: Order | None = None, rank: int = 0) -> Column:
    """A column of numbers."""
    return Column(title, cell, order, rank)


def words(
    title: str, cell: Cell, order: Order | None = None, rank: int = 0, most: int = 60
) -> Column:
    """A column of texts, up to `most` wide."""
    return Column(title, cell, order, rank, is_number=False, most=most)


@dataclass(frozen=True, slots=True)
class View:
    """One table; rows are sorted by the column `first` until somebody wants another one."""

    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Snapshot], Sequence[Any]]
    key: Callable[[Any], str]
    """What tells a row from all others, and what a filter looks at."""
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


def _rate(seen: Snapshot, row: Any) -> Any:
    return seen.rates[row.queue]


def _state(_seen: Snapshot, row: Any) -> str:
    said = ["paused"] if row.paused else []
    said += [f"{row.expired} expired"] if row.expired else []
    return ", ".join(said)


QUEUES = View(
    "Queues",
    (
        words("queue", lambda _, it: it.queue, lambda _, it: it.queue, 0, 28),
        figure(
            "waiting",
            lambda _, it: count(it.waiting, exact=it.is_exact),
            lambda _, it: it.waiting,
        ),
        figure("running", lambda _, it: count(it.locked), lambda _, it: it.locked),
        figure(
            "oldest",
            lambda seen, it: age(seen.now, it.oldest_waiting_at),
            lambda seen, it: seen.now - (it.oldest_waiting_at or seen.now),
        ),
        figure(
            "rate",
            lambda seen, it: per_second(_rate(seen, it).finished),
            lambda seen, it: _rate(seen, it).finished,
        ),
        figure("dead", lambda _, it: count(it.dead), lambda _, it: it.dead),
        words("state", _state, _state, 1, 20),
        words("minute", lambda seen, it: course(_rate(seen, it).course), None, 5),
        figure(
            "run95",
            lambda seen, it: lasting(_rate(seen, it).run_p95),
            lambda seen, it: _rate(seen, it).run_p95 or timedelta(),
            3,
        ),
        figure(
            "later",
            lambda _, it: count(it.scheduled, exact=it.is_exact),
            lambda _, it: it.scheduled,
            2,
        ),
        figure(
            "wait95",
            lambda seen, it: lasting(_rate(seen, it).wait_p95),
            lambda seen, it: _rate(seen, it).wait_p95 or timedelta(),
            4,
        ),
    ),
    lambda seen: seen.backlog,
    lambda it: it.queue,
    "there is no queue",
)

WORKERS = View(
    "Workers",
    (
        words("worker", lambda _, it: printable(it.name), lambda _, it: it.name, 0, 30),
        words("state", lambda _, it: it.state, lambda _, it: it.state, 0),
        figure(
            "running",
            lambda _, it: f"{_or_dash(it.running)}/{_or_dash(it.concurrency)}",
            lambda _, it: it.running or 0,
        ),
        figure("held", lambda _, it: count(it.held), lambda _, it: it.held),
        figure("expired", lambda _, it: count(it.expired), lambda _, it: it.expired, 1),
        figure(
            "seen",
            lambda seen, it: age(seen.now, it.seen_at),
            lambda seen, it: seen.now - (it.seen_at or seen.now),
            1,
        ),
        figure(
            "up",
            lambda seen, it: age(seen.now, it.started_at),
            lambda seen, it: seen.now - (it.started_at or seen.now),
            3,
        ),
        words(
            "serves",
            lambda _, it: printable(", ".join((*it.queues, *it.streams))),
            lambda _, it: it.queues,
            2,
            40,
        ),
        words("version", lambda _, it: it.version or "", lambda _, it: it.version or "", 4),
    ),
    lambda seen: seen.workers,
    lambda it: it.name,
    "no worker is here",
)

DEAD = View(
    "Dead",
    (
        figure("dead", lambda _, it: count(it.dead), lambda _, it: it.dead),
        figure(
            "last",
            lambda seen, it: age(seen.now, it.last_at),
            lambda _, it: it.last_at,
        ),
        words(
            "queue",
            lambda _, it: printable(", ".join(it.queues)),
            lambda _, it: it.queues,
            0,
            20,
        ),
        words("ended", lambda _, it: ", ".join(it.statuses), None, 2, 14),
        words(
            "error",
            lambda _, it: printable(it.sample or it.fingerprint or "(no text)"),
            lambda _, it: it.fingerprint or "",
            0,
            200,
        ),
    ),
    lambda seen: seen.groups,
    lambda it: it.fingerprint or "(no text)",
    "nothing has died within a day",
    is_descending=True,
)

STREAMS = View(
    "Streams",
    (
        words("stream", lambda _, it: it.stream, lambda _, it: it.stream, 0, 24),
        words("subscriber", lambda _, it: it.subscriber, lambda _, it: it.subscriber, 0, 24),
        figure("lag", lambda _, it: lasting(it.lag), lambda _, it: it.lag),
        figure("pending", lambda _, it: count(it.pending), lambda _, it: it.pending),
        figure("again", lambda _, it: count(it.retries), lambda _, it: it.retries, 1),
        figure(
            "seen",
            lambda seen, it: age(seen.now, it.last_seen_at),
            lambda _, it: it.last_seen_at or _NEVER,
            3,
        ),
    ),
    lambda seen: seen.lags,
    lambda it: f"{it.stream}/{it.subscriber}",
    "nobody subscribes to a stream",
)


def _health(seen: Snapshot) -> list[Line]:
    lines = [
        Line(
            f"xmin: {it.cause}",
            printable(f"pid {it.pid} {it.application or ''}" if it.pid else it.name),
            count(it.xmin_age or 0),
            printable(it.advice),
        )
        for it in seen.holders
    ]
    lines += [
        Line(
            it.entry,
            it.schedule,
            it.last_status or ("not yet run" if it.is_active else "off"),
            f"{it.failed} failed: {printable(it.last_message)}" if it.failed else "",
        )
        for it in seen.cron
    ]
    figures = seen.health.figures if seen.health is not None else ()
    # Of each table many are nought, which nobody looks for.
    return lines + [
        Line(it.name, it.subject, _value(it.value, it.unit), "")
        for it in figures
        if it.value or not it.subject
    ]


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return size(value)
    if unit == "seconds":
        return lasting(timedelta(seconds=value))
    return f"{value:.0%}" if unit == "ratio" else f"{count(value)} {unit}"


HEALTH = View(
    "Health",
    (
        words("figure", lambda _, it: it.what, lambda _, it: it.what, 0, 30),
        words("of", lambda _, it: it.subject, lambda _, it: it.subject, 0, 30),
        figure("value", lambda _, it: it.value, None),
        words("note", lambda _, it: it.note, None, 1, 80),
    ),
    _health,
    lambda it: f"{it.what} {it.subject}",
    "",
    first=-1,
)

VIEWS = (QUEUES, WORKERS, DEAD, STREAMS, HEALTH)


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
