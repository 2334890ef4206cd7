"""How soon work continued after a fault, and how long messages waited, read from the history."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from notifyq.chaos.history import Call


def recoveries(history: Sequence[Call]) -> list[float]:
    """Seconds until work continued, for each message that a victim held and for each outage.

    A victim's messages: from the start of the fault to their next execution. An outage: from the
    server's first answer to the first messages that a worker claims.
    """
    found: list[float] = []
    for fault in (call for call in history if call.op == "fault"):
        if victim := fault.fields.get("victim"):
            found += _taken_over(history, victim, fault.began)
        elif fault.fields.get("outage") and (at := fault.ended) is not None:
            claims = [c.ended - at for c in history if c.messages and c.ended is not None]
            found += sorted(it for it in claims if it > 0)[:1]
    return found


def waits(history: Iterable[Call], since: float, until: float = float("inf")) -> list[float]:
    """Seconds from each acknowledgement in this time to the first claim of the message."""
    claimed: dict[int, float] = {}
    published: dict[int, float] = {}
    for call in history:
        if call.ended is None or call.outcome != "ok":
            continue
        for message in call.messages:
            claimed.setdefault(message["id"], call.ended)
        if call.op == "publish" and since <= call.ended < until:
            published[call.fields["id"]] = call.ended
    return [max(0.0, claimed[it] - published[it]) for it in published.keys() & claimed.keys()]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that this share of the values does not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _taken_over(history: Sequence[Call], victim: str, at: float) -> list[float]:
    held: set[int] = set()
    for call in history:
        if call.process != victim or call.ended is None or call.ended > at:
            continue
        held |= {message["id"] for message in call.messages}
        if call.op in {"finish", "release", "retry"}:
            held.discard(call.fields["id"])
    again: dict[int, float] = {}
    for call in history:
        if call.op == "execute" and call.began > at and call.process != victim:
            again.setdefault(call.fields["id"], call.began)
    return [again[number] - at for number in sorted(held & again.keys())]
