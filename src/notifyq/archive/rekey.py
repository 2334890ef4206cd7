"""Encrypts again, by the current key, what older keys have encrypted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from notifyq.database.pool import Calls
    from notifyq.encryption import Keys

SEALED_ROWS: Final = "select notifyq.sealed_rows($1, $2::text::jsonb, $3)::text"
REPLACE_SEALED: Final = "select notifyq.replace_sealed($1, $2::text::jsonb)"
PLACES: Final = (
    "message", "archive", "attempt", "step", "step_archive", "end_wait", "signal", "output",
)  # fmt: skip
"""What has envelopes. A message that is archived meanwhile is found in the archive after it."""
_STEP = 500
"""Rows that are read at a time."""


@dataclass(frozen=True, slots=True)
class Step:
    """Rows that were read, and what has to be written."""

    place: str
    read: int
    rows: list[dict[str, Any]]
    """The rows with envelopes of other keys: key, old and new texts."""


async def steps(calls: Calls, keys: Keys, queue: str | None) -> AsyncIterator[Step]:
    """Read all rows with envelopes, of one queue or of all, in steps; nothing is written.

    Raises MissingKeyError for an envelope whose key is not known.
    """
    for place in PLACES:
        position: Any = None
        while True:
            given = None if position is None else json.dumps(position)
            found = json.loads(await calls.value(SEALED_ROWS, place, given, _STEP))
            rows = [{**row, "new": _again(keys, row["old"], queue)} for row in found["rows"]]
            changed = [row for row in rows if row["new"] != row["old"]]
            yield Step(place, found["read"], changed)
            position = found["next"]
            if position is None:
                break


async def write(calls: Calls, step: Step) -> int:
    """Write a step; return how many rows were replaced: others have changed since."""
    return int(await calls.value(REPLACE_SEALED, step.place, json.dumps(step.rows)))


def _again(keys: Keys, texts: dict[str, str | None], queue: str | None) -> dict[str, str | None]:
    return {name: _text(keys, text, queue) for name, text in texts.items()}


def _text(keys: Keys, text: str | None, queue: str | None) -> str | None:
    if text is None or "$encrypted" not in text:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text  # an error that only mentions it
    again = keys.encrypted_again(value, queue)
    return text if again == value else json.dumps(again, ensure_ascii=False)
