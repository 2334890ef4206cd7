"""Encrypts again, by the current key, what older keys have encrypted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from notifyq.database.encryption.envelopes import Keys
    from notifyq.database.pool import Calls

SEALED_COLUMNS: Final = "select c.* from notifyq.sealed_columns() as c"
SEALED_TEXTS: Final = "select notifyq.sealed_texts($1, $2, $3, $4, $5)::text"
REPLACE_SEALED: Final = "select notifyq.replace_sealed($1, $2, $3, $4::text::jsonb)"
_BLOCKS = 128
"""Blocks of 8 kB that are read at a time."""


@dataclass(frozen=True, slots=True)
class Step:
    """What has to be written of some blocks of a table."""

    column: tuple[str, str, str]
    """Schema, table and column."""
    read: int
    """How many texts with envelopes were read."""
    texts: list[dict[str, Any]]
    """Those with other keys: row, old and new."""


async def steps(calls: Calls, keys: Keys, queue: str | None) -> AsyncIterator[Step]:
    """Read all that has envelopes, of one queue or of all, in steps; nothing is written.

    Raises MissingKeyError for an envelope whose key is not known.
    """
    for column in await calls.fetch(SEALED_COLUMNS):
        block: int | None = 0
        while block is not None:
            found = json.loads(await calls.value(SEALED_TEXTS, *column, block, _BLOCKS))
            texts = [{**it, "new": _again(keys, it["old"], queue)} for it in found["texts"]]
            changed = [it for it in texts if it["new"] != it["old"]]
            yield Step((column[0], column[1], column[2]), len(texts), changed)
            block = found["next"]


async def write(calls: Calls, step: Step) -> int:
    """Write a step; return how many texts were replaced: the rows of others have changed since."""
    return int(await calls.value(REPLACE_SEALED, *step.column, json.dumps(step.texts)))


def _again(keys: Keys, text: str, queue: str | None) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return text  # it has a number that Python cannot hold
    again = keys.encrypted_again(value, queue)
    return text if again == value else json.dumps(again, ensure_ascii=False)
