"""The form with the policy of a queue: what its fields say, and what was changed in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from notifyq.config import parse_duration
from notifyq.models.message import readable
from notifyq.queues.admin import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Field:
    """One part of the policy."""

    name: str
    label: str
    kind: str
    """`duration`, `number`, `flag` or `choice`; empty for none: `limit` (a number), `term` (a
    duration), `type` or `schema`."""
    hint: str = ""
    choices: tuple[str, ...] = ()


GROUPS: tuple[tuple[str, tuple[Field, ...]], ...] = (
    (
        "Attempts",
        (
            Field("lock_timeout", "Lock", "duration", "how long a claim holds a message"),
            Field("max_attempts", "Attempts", "number", "claims that a message may use up"),
            Field("backoff", "Backoff", "duration", "before the second attempt; it doubles"),
            Field("backoff_max", "Longest backoff", "duration"),
        ),
    ),
    (
        "Limits",
        (
            Field("concurrency", "At a time", "limit", "locked at once; empty: no limit"),
            Field("rate", "Rate", "limit", "handed out in each period"),
            Field("rate_period", "Period", "duration"),
            Field("rate_burst", "Burst", "limit", "at once; empty: a tenth of a second's worth"),
            Field("capacity", "Capacity", "limit", "most that wait or are scheduled"),
            Field("overflow", "Beyond it", "choice", "", ("reject", "drop_oldest")),
            Field("max_bytes", "Largest message", "number", "bytes, as JSON text"),
        ),
    ),
    (
        "Keys",
        (
            Field("key_concurrency", "At a time, of a key", "limit"),
            Field("key_rate", "Rate of a key", "limit"),
            Field("key_rate_period", "Its period", "duration"),
            Field("key_rate_burst", "Its burst", "limit"),
            Field("ordered", "In order by key", "flag"),
            Field("fair", "Equal shares for keys", "flag"),
        ),
    ),
    (
        "Other",
        (
            Field("bell", "Bell", "choice", "", ("auto", "always", "off")),
            Field("retention", "Kept in the archive", "duration"),
            Field("retention_dead", "Dead ones kept", "term", "empty: as long as the others"),
            Field("durable", "Survives a crash of the server", "flag"),
        ),
    ),
    (
        "Payload",
        (
            Field("payload_type", "SQL type", "type", "as integer or public.order; empty: any"),
            Field("payload_schema", "JSON Schema", "schema", "an object; empty: any JSON"),
        ),
    ),
)
FIELDS = tuple(field for _, fields in GROUPS for field in fields)


def values(queue: Mapping[str, Any]) -> dict[str, str]:
    """What the form says of a queue, a row of notifyq.queue_list()."""
    return {field.name: _text(field, queue[field.name]) for field in FIELDS}


def read(
    form: Mapping[str, str], queue: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What a form changes about a queue, and what is wrong with it, both by the name of a field."""
    was = values(queue)
    changes: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field in FIELDS:
        # A box that is not ticked is not sent; any other field that is not there is left alone.
        said = form.get(field.name, "" if field.kind == "flag" else was[field.name]).strip()
        said = said.replace("\r\n", "\n")  # as browsers send the lines of a text
        if said == was[field.name]:
            continue
        try:
            changes[field.name] = _value(field, said)
        except ValueError as error:
            wrong[field.name] = str(error)
    return changes, wrong


def arguments(changes: Mapping[str, Any]) -> tuple[object, ...]:
    """The changes as the function takes them."""
    return Policy(**changes).args()


def duration(value: timedelta) -> str:
    """A duration as forms take it: 1h30m, 250ms."""
    left = round(value.total_seconds() * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _text(field: Field, value: Any) -> str:
    match field.kind:
        case "flag":
            return "yes" if value else ""
        case _ if value is None:
            return ""
        case "duration" | "term":
            return duration(value)
        case "schema":
            read = readable(value)
            return read if isinstance(read, str) else json.dumps(read, indent=2, ensure_ascii=False)
        case _:
            return str(value)


def _value(field: Field, said: str) -> Any:
    match field.kind:
        case "flag":
            return said == "yes"
        case "choice":
            return said
        case "duration":
            return parse_duration(said)
        case "number":
            return _number(said)
        case _:
            # Of these an empty field is none, which the function has a value for.
            none, parse = _OPTIONAL[field.kind]
            return parse(said) if said else none


def _number(said: str) -> int:
    if not (said.isascii() and said.isdigit() and int(said) < 2**31):
        raise ValueError(f"{said[:40]!r} is not a whole number")
    return int(said)


def _limit(said: str) -> int:
    if not (limit := _number(said)):
        raise ValueError("leave it empty for no limit")
    return limit


def _schema(said: str) -> object:
    try:
        read = json.loads(said)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError("a JSON Schema is an object")  # noqa: TRY004  as for all that is typed
    return read


_OPTIONAL: dict[str, tuple[object, Callable[[str], object]]] = {
    "limit": (0, _limit),
    "term": (timedelta(0), parse_duration),
    "type": ("-", str),
    "schema": (True, _schema),
}
