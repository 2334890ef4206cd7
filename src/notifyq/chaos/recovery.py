"""How soon work went on after a fault, read from the history."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.chaos.history import Call

_SETTLES = {"finish", "release", "retry"}


def recoveries(history: Sequence[Call]) -> list[float]:
    """Seconds until work went on, of each message that a victim held and of each outage.

    Of a victim: from the harm to the next execution of what it held. Of an outage: from when the
    server answers again to the first messages that a worker claims.
    """
    found = [call.fields["seconds"] for call in history if call.op == "recovered"]
    for fault in (call for call in history if call.op == "fault"):
        if victim := fault.fields.get("victim"):
            found += _taken_over(history, victim, fault.began)
        elif fault.fields.get("outage") and fault.ended is not None:
            found += _resumed(history, fault.ended)
    return found


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of the values does not exceed; None if there is none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _taken_over(history: Sequence[Call], victim: str, at: float) -> list[float]:
    held: set[int] = set()
    for call in history:
        if call.process != victim or call.ended is None or call.ended > at:
            continue
        if call.op == "claim" and call.outcome == "ok":
            held |= {message["id"] for message in call.fields.get("messages", ())}
        elif call.op in _SETTLES:
            held.discard(call.fields["id"])
    again: dict[int, float] = {}
    for call in history:
        if call.op == "execute" and call.began > at and call.process != victim:
            again.setdefault(call.fields["id"], call.began)
    return [again[number] - at for number in sorted(held & again.keys())]


def _resumed(history: Sequence[Call], at: float) -> list[float]:
    claims = [
        call.ended
        for call in history
        if call.op == "claim" and call.ended is not None and call.ended > at
        if call.fields.get("messages")
    ]
    return [min(claims) - at] if claims else []
