"""The options of the data source; the DSN is never shown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from pathlib import Path

from notifyq.config import from_environment
from notifyq.errors import ConfigurationError

TABLES = ("archive", "dead", "events", "messages")
TIMES = {"archive": "archived_at", "dead": "archived_at", "events": "created_at"}
"""The columns of the options `since` and `until`."""
_SHARED = ("columns", "dsn", "dsn_file", "partitions", "queue", "stream", "table")
_SPAN = ("since", "until")
_FOLLOWING = (*_SHARED, "failOnDataLoss", "from", "maxRowsPerBatch")
_ROWS = 100_000
"""Rows of a micro-batch by default: it takes a second or two, and little memory."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read. Its repr has no DSN: plans and errors may show it."""

    dsn: str = field(repr=False)
    table: str = "archive"
    queue: str | None = None
    stream: str | None = None
    columns: tuple[str, ...] | None = None
    partitions: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    start: str = "start"
    rows: int = _ROWS
    is_strict: bool = True


def address(options: Mapping[str, str]) -> str:
    """Return the DSN: option `dsn`, the file of option `dsn_file`, or NOTIFYQ_DSN of the driver."""
    if found := options.get("dsn"):
        return found
    if path := options.get("dsn_file"):
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigurationError(
                f"option dsn_file: {path} cannot be read: {error.strerror}"
            ) from None
    if found := from_environment("NOTIFYQ_DSN"):
        return found
    raise ConfigurationError(
        "no database: set option dsn or dsn_file, or NOTIFYQ_DSN before Spark starts"
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a batch read."""
    return _read(options, (*_SHARED, *_SPAN))


def described(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of either kind of read: Spark gets the schema before it chooses one."""
    return _read(options, (*_FOLLOWING, *_SPAN))


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a streaming read."""
    found = _read(options, _FOLLOWING)
    if found.table == "messages":
        raise ConfigurationError(
            "live messages change and cannot be read as a stream: read the archive, or a stream"
        )
    strict = options.get("failOnDataLoss", "true").lower()
    if strict not in {"true", "false"}:
        raise ConfigurationError(f"option failOnDataLoss: {strict!r} is neither true nor false")
    start = options.get("from", "start")
    if start not in {"start", "now"} and "/" not in start:
        raise ConfigurationError(
            f"option from: {start!r} is not start, now, or a result of current_position()"
        )
    rows = number("maxRowsPerBatch", options.get("maxRowsPerBatch"), most=10**9)
    return replace(found, start=start, rows=rows or _ROWS, is_strict=strict == "true")


def _read(options: Mapping[str, str], known: tuple[str, ...]) -> ReadOptions:
    lower = {name.lower() for name in known}
    for name in options:
        if name.lower() not in lower:
            raise unknown("this read of the data source notifyq has no option", name, known)
    table = options.get("table", "events" if "stream" in options else "archive")
    if table not in TABLES:
        raise ConfigurationError(f"option table: {table!r} is not one of {', '.join(TABLES)}")
    stream = options.get("stream")
    if (table == "events") != (stream is not None):
        raise ConfigurationError("option stream is required for table events, and only there")
    queue = options.get("queue")
    if queue is not None and stream is not None:
        raise ConfigurationError("option queue: events belong to streams, not to queues")
    since, until = span(options)
    if table not in TIMES and (since or until):
        raise ConfigurationError(f"options since and until: only for {', '.join(TIMES)}")
    return ReadOptions(
        dsn=address(options),
        table=table,
        queue=queue,
        stream=stream,
        columns=names(options.get("columns")),
        partitions=number("partitions", options.get("partitions")),
        since=since,
        until=until,
    )


def unknown(what: str, name: str, known: tuple[str, ...]) -> ConfigurationError:
    """Return the error of an unknown name, with a similar one if there is one."""
    names = {it.lower(): it for it in known}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f": did you mean {names[close[0]]!r}?" if close else f"; there are {', '.join(known)}"
    return ConfigurationError(f"{what} {name!r}{hint}")


def names(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a list; None: it is not given."""
    return tuple(name.strip() for name in text.split(",")) if text else None


def span(options: Mapping[str, str]) -> tuple[datetime | None, datetime | None]:
    """Return the first instant of a read, and the one before which it ends; None: no bound."""
    since, until = _instant(options, "since"), _instant(options, "until")
    if since and until and since >= until:
        raise ConfigurationError(f"option until: {options['until']!r} is not after since")
    return since, until


def _instant(options: Mapping[str, str], name: str) -> datetime | None:
    if (text := options.get(name)) is None:
        return None
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    with suppress(ValueError, OverflowError):
        if (found := datetime.fromisoformat(text)).tzinfo is not None:
            return found.astimezone(UTC)
    raise ConfigurationError(
        f"option {name}: {text!r} is not a day like 2027-01-31 or an instant like 2027-01-31T12:00Z"
    )


def number(name: str, text: str | None, most: int = 100_000) -> int | None:
    """Return the number of an option; None: it is not given."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise ConfigurationError(f"option {name}: {text!r} is not a number from 1 to {most}")
    return int(text)
