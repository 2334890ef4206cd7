"""The output of `notifyq top --once`: text or JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from notifyq.operations.masks import Masks, redacted
from notifyq.operations.top.snapshot import Snapshot
from notifyq.operations.top.text import status_line, summary
from notifyq.operations.top.views import HEALTH, VIEWS, chosen, cut, fitting
from notifyq.printable import printable


def as_text(seen: Snapshot, width: int) -> str:
    """All views except health, which is only one line."""
    lines = [summary(seen), printable(status_line(seen))]
    for view in VIEWS:
        rows = chosen(view, seen)
        if view is HEALTH or not rows:
            continue
        columns = fitting(view, seen, rows, width)
        cells = [[it.title for it, _ in columns]]
        cells += [[cut(it.show(seen, row), size) for it, size in columns] for row in rows]
        lines += ["", view.name.upper()]
        lines += [
            "  ".join(
                text.rjust(size) if column.is_number else text.ljust(size)
                for text, (column, size) in zip(line, columns, strict=True)
            ).rstrip()
            for line in cells
        ]
    return "\n".join(lines)


def as_json(seen: Snapshot, masks: Masks) -> dict[str, Any]:
    """All numbers by name."""
    return {
        "at": seen.now,
        "queues": [{**asdict(it), "rate": asdict(seen.rates[it.queue])} for it in seen.backlog],
        "rate": asdict(seen.total),
        "workers": [asdict(it) for it in seen.workers],
        "dead": [
            {**asdict(it), "fingerprint": redacted(it.fingerprint, masks, None)}
            for it in seen.groups
        ],
        "streams": [asdict(it) for it in seen.lags],
        "holders": [asdict(it) for it in seen.holders],
        "cron": [asdict(it) for it in seen.cron],
        "health": [asdict(it) for it in seen.health.figures] if seen.health is not None else [],
        "refused": seen.refused,
    }
