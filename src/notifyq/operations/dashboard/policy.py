"""The form with the policy of a queue: the texts of its fields, and what was changed in them."""

import json
from collections.abc import Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any

from notifyq.config import parse_duration
from notifyq.models.message import readable
from notifyq.queues.options import Option, options
from notifyq.queues.policy import Policy

_GROUPS = ("Attempts", "Limits", "Keys", "Other", "Payload")
FIELDS = sorted(options(Policy), key=lambda it: _GROUPS.index(it.group))
GROUPS = [(title, list(fields)) for title, fields in groupby(FIELDS, key=lambda it: it.group)]


def values(queue: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the form for a queue, a row of notifyq.queue_list()."""
    return {field.name: _text(field, queue[field.name]) for field in FIELDS}


def read(
    form: Mapping[str, str], queue: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that a form changes, and the errors in it, both by the name of a field."""
    was = values(queue)
    changes: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for field in FIELDS:
        # A browser omits an unticked box; any other field that is missing stays as it is.
        text = form.get(field.name, "" if field.kind == "flag" else was[field.name]).strip()
        text = text.replace("\r\n", "\n")  # as browsers end the lines of a text
        if text == was[field.name]:
            continue
        try:
            changes[field.name] = _value(field, text)
        except ValueError as error:
            wrong[field.name] = str(error)
    return changes, wrong


def duration(value: timedelta) -> str:
    """A duration as forms take it: 1h30m, 250ms."""
    left = round(value.total_seconds() * 1000)
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _text(field: Option, value: Any) -> str:
    match field.kind:
        case "flag":
            return "yes" if value else ""
        case _ if value is None:
            return ""
        case "duration":
            return duration(value)
        case "schema":
            read = readable(value)
            return read if isinstance(read, str) else json.dumps(read, indent=2, ensure_ascii=False)
        case _:
            return str(value)


def _value(field: Option, text: str) -> Any:
    if field.none and not text:
        return field.none_value
    match field.kind:
        case "flag":
            return text == "yes"
        case "duration":
            return parse_duration(text)
        case "number":
            if not (text.isascii() and text.isdigit() and int(text) < 2**31):
                raise ValueError(f"{text[:40]!r} is not a whole number")
            if field.none and not int(text):
                raise ValueError(f"leave it empty for {field.none}")
            return int(text)
        case "schema":
            return _schema(text)
        case _:
            return text


def _schema(text: str) -> object:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError("a JSON Schema is an object")  # noqa: TRY004  as for all typed values
    return read
