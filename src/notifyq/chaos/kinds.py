"""The kinds of messages of a run, shared by publishers and workers; each kind is a queue."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

# Variables of a worker's environment.
FOLDER = "NOTIFYQ_CHAOS_HISTORY"
"""The folder of the history."""
PROCESS = "NOTIFYQ_CHAOS_PROCESS"
"""The worker's name in the history."""

LOCK = 2.0
"""Seconds that the locks of most kinds last."""
SHORT_LOCK = 1.0
"""Seconds that locks last where the handler is slower."""

_LONGEST = {"quick": 5, "slow": 400, "flaky": 20, "reject": 5, "storm": 0, "steps": 300}
"""The longest time of a handler in milliseconds; handlers of other kinds outlive their lock."""
_PAST_THE_LOCK = int(SHORT_LOCK * 1500)
_TEXTS = ("", "plain", "Grüße", "夜の列車", '\\"quoted\\"', "🦉 owl", "line\nline\ttab")


def payload(chance: random.Random, kind: str) -> dict[str, Any]:
    """Make a message of a kind; no two are equal."""
    return {
        "key": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
        "milliseconds": chance.randint(0, _LONGEST[kind]) if kind in _LONGEST else _PAST_THE_LOCK,
        "fails": chance.randint(0, 2) if kind == "flaky" else 0,
        "text": chance.choice(_TEXTS) * chance.randint(1, 50),
        "number": chance.choice([0, -1, 2**53, 12345678901234567890, 0.1]),
    }
