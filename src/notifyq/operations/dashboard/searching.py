"""What pages that look for messages share: conditions out of a form."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import asyncpg
from starlette.exceptions import HTTPException

from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.failures import explain
from notifyq.operations.monitor import ConditionError, Conditions, Place, json_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifyq.errors import DatabaseError
    from notifyq.operations.dashboard.view import View
    from notifyq.operations.masks import Masks

NAMES = tuple(it.name for it in fields(Conditions) if it.name != "fingerprint")
"""The fields of a search form; `like` beside them is a message whose fingerprint is meant."""

_MEMBER = re.compile(r'\.\s*("(?:[^"\\]|\\.)*"|[^\W\d]\w*)(?!\s*\()')
_ANY_MEMBER = re.compile(r"\.\s*\*|\.\s*keyvalue\s*\(")


async def conditions_of(view: View, given: Mapping[str, str]) -> Conditions:
    """Read the fields of a form or an address; 400 for what cannot be meant."""
    said: dict[str, Any] = {
        name: text for name in NAMES if (text := given.get(name, "").strip()) and text != "any"
    }
    for name in ("since", "until"):
        if name in said:
            said[name] = instant(said[name], name)
    if "payload" in said:
        try:
            said["payload"] = json_path(said["payload"])
        except ConditionError as error:
            raise HTTPException(400, f"payload: {error}") from None
        check_path(said["payload"], view.masks)
    found = Conditions(**said)
    if like := given.get("like", "").strip():
        found = replace(found, fingerprint=await fingerprint_of(view, view.integer(like, "like")))
    return found


def problem_of(error: HTTPException | DatabaseError | asyncpg.DataError) -> tuple[int, str]:
    """What is wrong with a search that a person typed: a status, and a text beside the form."""
    if isinstance(error, HTTPException):
        text = error.detail
        return error.status_code, f"{text[:1].upper()}{text[1:]}."
    status, _, text = explain(error)
    return status, text


async def fingerprint_of(view: View, message_id: int) -> str:
    """The fingerprint of the error of a message, which stands for it in addresses.

    The fingerprint itself may be long, and hold what is to be hidden.
    """
    rows = await view.database.fetch(statements.FINGERPRINT, message_id)
    if not rows:
        raise HTTPException(404, f"message {message_id}, whose error was meant, is gone")
    return str(rows[0][0])


def instant(text: str, name: str = "instant") -> datetime:
    """Read an ISO 8601 instant; one without an offset, as forms give it, is in UTC."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise HTTPException(400, f"{name} is not an instant like 2027-01-31T12:00") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def place_of(view: View, given: str) -> Place | None:
    """Read where a list goes on."""
    try:
        return Place.parse(given) if given else None
    except ValueError:
        raise HTTPException(400, "place is not one of ours") from None


def check_path(path: str, masks: Masks) -> None:
    """Refuse to search by what is hidden: who may ask for it often enough would know it."""
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
        raise HTTPException(403, "payloads cannot be searched by what this dashboard hides")
