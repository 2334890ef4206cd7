"""Groups: messages that are published together, and a callback that runs when all have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from notifyq.results import Handle


@dataclass(frozen=True, slots=True)
class Group:
    """What `App.publish_group` has published: the messages, in order, and their callback."""

    messages: list[Handle[Any]]
    """In the order of the payloads."""
    callback: Handle[Any]
    """What runs when all of them have ended."""
