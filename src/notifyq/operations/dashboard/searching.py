"""Reads the conditions of a search from a form or an address."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import asyncpg
from starlette.exceptions import HTTPException

from notifyq.errors import DatabaseError
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.failures import explain, sentence
from notifyq.operations.dashboard.view import View
from notifyq.operations.masks import Masks
from notifyq.operations.monitor import ConditionError, Conditions, Position, json_path

NAMES = tuple(it.name for it in fields(Conditions) if it.name != "fingerprint")
"""The fields of a search form; its field `like` is a message with the wanted fingerprint."""

_MEMBER = re.compile(r'\.\s*("(?:[^"\\]|\\.)*"|[^\W\d]\w*)(?!\s*\()')
_ANY_MEMBER = re.compile(r"\.\s*\*|\.\s*keyvalue\s*\(")


async def conditions_of(view: View, given: Mapping[str, str]) -> Conditions:
    """Read the conditions; 400 for an invalid one."""
    values: dict[str, Any] = {
        name: text for name in NAMES if (text := given.get(name, "").strip()) and text != "any"
    }
    for name in ("since", "until"):
        if name in values:
            values[name] = instant(values[name], name)
    if "payload" in values:
        try:
            values["payload"] = json_path(values["payload"])
        except ConditionError as error:
            raise HTTPException(400, f"payload: {error}") from None
        check_path(values["payload"], view.masks)
    found = Conditions(**values)
    if like := given.get("like", "").strip():
        found = replace(found, fingerprint=await fingerprint_of(view, view.integer(like, "like")))
    return found


def problem_of(error: HTTPException | DatabaseError | asyncpg.DataError) -> tuple[int, str]:
    """The status and the text for a wrong search."""
    if isinstance(error, HTTPException):
        return error.status_code, sentence(error.detail)
    status, _, text = explain(error)
    return status, text


async def fingerprint_of(view: View, message_id: int) -> str:
    """The fingerprint of the error of a message.

    Addresses contain the message, because a fingerprint may be long and contain masked values.
    """
    rows = await view.database.fetch(statements.FINGERPRINT, message_id)
    if not rows:
        raise HTTPException(
            404, f"message {message_id}, whose error was wanted, does not exist any more"
        )
    return str(rows[0][0])


def instant(text: str, name: str = "instant") -> datetime:
    """Read an ISO 8601 instant; without an offset it is in UTC."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise HTTPException(400, f"{name} is not an instant like 2027-01-31T12:00") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def position_of(given: str) -> Position | None:
    """Read where a list continues."""
    try:
        return Position.parse(given) if given else None
    except ValueError:
        raise HTTPException(400, "position is invalid") from None


def check_path(path: str, masks: Masks) -> None:
    """Refuse to search masked values: many searches would reveal them."""
    if masks.are_none:
        return
    names = [
        name[1:-1].lower() if name.startswith('"') else name.lower()
        for name in _MEMBER.findall(path)
    ]
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', path)
    if (
        masks.all_payloads
        or _ANY_MEMBER.search(bare)
        or "\\" in path
        or any(masks.hides(tuple(names[first:last]))
               for last in range(1, len(names) + 1) for first in range(last))
    ):  # fmt: skip
        raise HTTPException(403, "payloads cannot be searched by values that this dashboard hides")
