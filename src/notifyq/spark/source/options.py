"""The options of the data source, checked, and the address of the database, which nobody sees."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from notifyq.config import from_environment
from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLES = ("archive", "dead", "events", "messages")
_KNOWN = ("columns", "dsn", "dsn_file", "partitions", "queue", "stream", "table")
_FOLLOWING = (*_KNOWN, "failOnDataLoss", "from", "maxRowsPerBatch")
_ROWS = 100_000
"""Of a micro-batch, where nothing is said: done in a second or two, in little memory."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read asks for. Its text has no address: plans and errors may show it."""

    dsn: str = field(repr=False)
    table: str = "archive"
    queue: str | None = None
    stream: str | None = None
    columns: tuple[str, ...] | None = None
    partitions: int | None = None
    start: str = "start"
    rows: int = _ROWS
    is_strict: bool = True


def address(options: Mapping[str, str]) -> str:
    """Give the DSN: of option `dsn`, of the file `dsn_file`, or of NOTIFYQ_DSN where Spark runs."""
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
        "no database: give option dsn or dsn_file, or set NOTIFYQ_DSN before Spark starts"
    )


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read of what is there."""
    return _read(options, _KNOWN)


def described(options: Mapping[str, str]) -> ReadOptions:
    """Check what both kinds of reads have: Spark asks for columns before it says which it is."""
    return _read(options, _FOLLOWING)


def stream_options(options: Mapping[str, str]) -> ReadOptions:
    """Check the options of a read of what comes."""
    found = _read(options, _FOLLOWING)
    if found.table == "messages":
        raise ConfigurationError(
            "live messages come and go and cannot be followed: follow the archive, or a stream"
        )
    strict = options.get("failOnDataLoss", "true").lower()
    if strict not in {"true", "false"}:
        raise ConfigurationError(f"option failOnDataLoss: {strict!r} is neither true nor false")
    start = options.get("from", "start")
    if start not in {"start", "now"} and "/" not in start:
        raise ConfigurationError(
            f"option from: {start!r} is neither start nor now, nor what current_position() gave"
        )
    rows = _number("maxRowsPerBatch", options.get("maxRowsPerBatch"), most=10**9)
    return replace(found, start=start, rows=rows or _ROWS, is_strict=strict == "true")


def _read(options: Mapping[str, str], known: tuple[str, ...]) -> ReadOptions:
    _check_names(options, known)
    table = options.get("table", "events" if "stream" in options else "archive")
    if table not in TABLES:
        raise ConfigurationError(f"option table: {table!r} is none of {', '.join(TABLES)}")
    stream = options.get("stream")
    if (table == "events") != (stream is not None):
        raise ConfigurationError("option stream names the stream of table events, and of no other")
    queue = options.get("queue")
    if queue is not None and stream is not None:
        raise ConfigurationError("option queue: events are in streams")
    columns = options.get("columns")
    return ReadOptions(
        dsn=address(options),
        table=table,
        queue=queue,
        stream=stream,
        columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
        partitions=_number("partitions", options.get("partitions")),
    )


def _check_names(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    lower = {name.lower() for name in known}
    for name in options:
        if name.lower() not in lower:
            close = difflib.get_close_matches(name.lower(), lower, n=1)
            hint = f": did you mean {close[0]!r}?" if close else f"; it has {', '.join(known)}"
            raise ConfigurationError(f"the data source notifyq has no option {name!r} here{hint}")


def _number(name: str, text: str | None, most: int = 100_000) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise ConfigurationError(f"option {name}: {text!r} is no number from 1 to {most}")
    return int(text)
