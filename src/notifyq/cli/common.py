"""What the commands share: which database, how to run, how to print."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer
from pydantic_core import to_json
from rich.console import Console
from rich.table import Table

from notifyq.config import DatabaseSettings, dsn_from_environment
from notifyq.database import Database
from notifyq.embedded import development
from notifyq.errors import ConfigurationError
from notifyq.model import ArchivedMessage, Message

T = TypeVar("T")

# Into a pipe or a file nothing is cut off at the width of a terminal that isn't there.
_WIDE = 240
out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)
err = Console(stderr=True, highlight=False, soft_wrap=True)

DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="DSN",
        help="Database; else NOTIFYQ_DSN, else the server of `notifyq server start`.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
QueueOption = Annotated[str | None, typer.Option("--queue", "-q", help="Only this queue.")]


def resolve_dsn(dsn: str | None) -> str:
    """The DSN of the option, the environment, or the development server if it runs."""
    given = dsn or dsn_from_environment()
    if given is not None:
        return given
    server = development()
    if server.running is not None:
        return server.dsn
    raise ConfigurationError(
        "no database: give --dsn, set NOTIFYQ_DSN, or run `notifyq server start`"
    )


def open_database(dsn: str | None, **settings: Any) -> Database:
    """The database of a command, to be used in `async with`."""
    # A person waits in front of a command: an answer soon beats one after five minutes.
    settings.setdefault("retry_for", timedelta(seconds=10))
    return Database(resolve_dsn(dsn), settings=DatabaseSettings.load(**settings))


def run(command: Coroutine[Any, Any, T]) -> T:
    """Run a command to its end."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover  there is a wheel where the tests run
        return asyncio.run(command)
    return uvloop.run(command)


def duration(text: str) -> timedelta:
    """Read `30`, `30s`, `5m`, `1h30m`, `2d`, `250ms`."""
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)\s*", text)
    if not parts or "".join(re.split(r"\s", text)) != "".join(n + u for n, u in parts):
        raise typer.BadParameter(f"{text!r} is not a duration like 30s, 5m, 1h30m or 2d")
    return timedelta(seconds=sum(float(number) * units[unit] for number, unit in parts))


def instant(text: str) -> datetime:
    """Read an ISO 8601 instant; without an offset it is in local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not an instant like 2027-01-31T12:00") from error


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    sys.stdout.write(to_json(value, timedelta_mode="float", fallback=str).decode() + "\n")


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Print rows as a table, or as JSON lines."""
    if as_json:
        for row in rows:
            print_json(dict(row))
        return
    if not rows:
        out.print(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        is_number = isinstance(rows[0][name], int | float) and not isinstance(rows[0][name], bool)
        table.add_column(name, justify="right" if is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    out.print(table)


def cell(value: Any) -> str:
    """Text of a value in a table."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, timedelta):
        return span(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    text = str(value).partition("\n")[0]
    # Payloads and errors come from anywhere: brackets are not markup, escapes not for the terminal.
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return printable.replace("[", r"\[")


def span(value: timedelta) -> str:
    """A duration as people read it: 12 ms, 3.4 s, 5 min, 2.0 h, 30 d."""
    seconds = value.total_seconds()
    for limit, unit, size in (
        (1, "ms", 0.001),
        (120, "s", 1),
        (7200, "min", 60),
        (172800, "h", 3600),
    ):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 86400:.3g} d"


def message_fields(message: Message | ArchivedMessage) -> dict[str, Any]:
    """A message for printing: payload and result as data, where they can be decoded."""
    fields = {name: getattr(message, name) for name in message.__dataclass_fields__}
    for name in ("message", "result"):
        if isinstance(fields.get(name), str):
            try:
                fields[name] = json.loads(fields[name])
            except (ValueError, RecursionError):
                continue
    return fields


def pick(message: Message | ArchivedMessage, names: Iterable[str]) -> dict[str, Any]:
    """Some of a message's fields, as columns of a table."""
    return {name: getattr(message, name) for name in names}
