"""Mapping: which columns of a row become which columns of a message."""

from __future__ import annotations

import json
from collections.abc import Mapping as Dictionary
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError

if TYPE_CHECKING:
    from notifyq.spark.publish.datasets import Row

FIELDS = (
    "available_at", "dedup_key", "delay", "headers", "key", "max_attempts", "message", "priority",
    "queue", "type",
)  # fmt: skip


class BadValueError(ValueError):
    """A value that cannot be converted; the text of the error goes to the rejects."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """Which columns become what; the payload is a whole row, some columns, or one as `message`."""

    queue: str | None
    columns: tuple[tuple[str, str], ...] = ()
    payload: tuple[str, ...] | None = None

    def staged(self, row: Row) -> dict[str, Any]:
        """Return a row as it is staged; raise BadValueError if it cannot be."""
        found: dict[str, Any] = {"position": row.position, "queue": self.queue}
        for field, column in self.columns:
            value = _value(row, column)
            if field == "message":
                if value is None:
                    raise BadValueError(f"column {column!r} has no message")
                found[field] = _json(column, value)
            elif value is not None and value != "":
                found[field] = _convert(field, column, value)
        if found["queue"] is None:
            raise BadValueError("the row has no queue")
        if "message" not in found:
            found["message"] = self._payload(row)
        _check_texts(found)
        return found

    def _payload(self, row: Row) -> str:
        for column in self.payload or ():
            _value(row, column)
        try:
            return row.encode(self.payload)
        except ValueError as error:
            raise BadValueError(str(error)) from None


def _check_texts(found: Dictionary[str, Any]) -> None:
    """Raise BadValueError for a text that PostgreSQL refuses: it would end the COPY of all rows."""
    for field, value in found.items():
        if not isinstance(value, str):
            continue
        if "\0" in value:
            raise BadValueError(f"{field} has a NUL, which PostgreSQL does not store")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadValueError(f"{field} has half of a surrogate pair: not valid text") from None


def _value(row: Row, column: str) -> Any:
    if column not in row.values and not row.is_sparse:
        raise BadValueError(f"there is no column {column!r}")
    return row.values.get(column)


def mapping(
    queue: str | None, columns: Dictionary[str, str], payload: Sequence[str] | None
) -> Mapping:
    """Check which columns become what, and return the mapping."""
    for field in columns:
        if field not in FIELDS:
            raise ConfigurationError(
                f"a message has no {field!r} to map to; there are {', '.join(FIELDS)}"
            )
    if (queue is None) == ("queue" not in columns):
        raise ConfigurationError(
            "give the target exactly once: a queue or stream for all rows, or a column with its "
            "name"
        )
    if payload is not None and "message" in columns:
        raise ConfigurationError("give the payload as one column (message) or several, not both")
    if "delay" in columns and "available_at" in columns:
        raise ConfigurationError("delay and available_at exclude each other: map one of them")
    return Mapping(queue, tuple(columns.items()), None if payload is None else tuple(payload))


def _json(column: str, value: Any) -> str:
    """Return a text that is JSON unchanged, and any other value as JSON."""
    try:
        if isinstance(value, str):
            json.loads(value)
            return value
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise BadValueError(f"column {column!r} is not JSON: {error}") from None


def _convert(field: str, column: str, value: Any) -> Any:
    try:
        match field:
            case "priority" | "max_attempts":
                return _whole(value)
            case "delay":
                return float(value)
            case "available_at":
                return _instant(value)
            case "headers":
                text = _json(column, value)
                if not text.lstrip().startswith("{"):
                    raise ValueError("headers must be a JSON object")  # noqa: TRY301
                return text
            case _:
                return value if isinstance(value, str) else str(value)
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, BadValueError):
            raise
        raise BadValueError(f"column {column!r} cannot be {field}: {error}") from None


def _whole(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or (not isinstance(value, str) and number != value):
        raise ValueError(f"{value!r} is not a whole number")
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{number} is too large")
    return number


def _instant(value: Any) -> datetime:
    instant = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
