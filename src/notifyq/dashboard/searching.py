"""What pages that look for messages share: conditions out of a form."""

from __future__ import annotations

import json
import re
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException

from notifyq.dashboard import statements
from notifyq.monitor import Conditions, Place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from notifyq.dashboard.view import View
    from notifyq.masks import Masks

NAMES = tuple(it.name for it in fields(Conditions) if it.name != "fingerprint")
"""The fields of a search form; `like` beside them is a message whose fingerprint is meant."""

_EQUALS = re.compile(r"([^\s=<>!$@?()\[\]\"']+)\s*=\s*(.+)", re.DOTALL)
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
        said["payload"] = payload_path(said["payload"])
        check_path(said["payload"], view.masks)
    found = Conditions(**said)
    if like := given.get("like", "").strip():
        found = replace(found, fingerprint=await fingerprint_of(view, view.integer(like, "like")))
    return found


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


def payload_path(text: str) -> str:
    """The JSON path of a condition: as it is, or for `user.id = 7`, also with a text to the right.

    Names are quoted, so that they may be any; a value is JSON, else a text.
    """
    found = _EQUALS.fullmatch(text)
    if found is None or text.lstrip().startswith(("$", "exists", "strict", "lax")):
        return text
    path = ".".join(json.dumps(name) for name in found[1].split("."))
    value = found[2].lstrip("=").strip()
    try:
        decoded = json.loads(value)
        value = value if not isinstance(decoded, list | dict) else json.dumps(value)
    except ValueError:
        value = json.dumps(value)
    return f"$.{path} == {value}"


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
