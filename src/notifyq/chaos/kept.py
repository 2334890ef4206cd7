"""A history that is kept with what the database held at its end, so that it can be judged again."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from notifyq.chaos.checker import check
from notifyq.chaos.final import Final, Row
from notifyq.chaos.history import HistoryError, read

if TYPE_CHECKING:
    from pathlib import Path

    from notifyq.chaos.checker import Verdict

_FINAL = "final.json"
_MOST = 20
"""Findings that are told one by one."""


def keep(final: Final, folder: Path) -> None:
    """Write the end of the database beside the history in `folder`."""
    (folder / _FINAL).write_text(json.dumps(asdict(final)), encoding="utf-8")


def judge(folder: Path) -> Verdict:
    """Judge the history in `folder`; raises HistoryError where it is not a whole one."""
    try:
        kept = json.loads((folder / _FINAL).read_text(encoding="utf-8"))
        final = Final(
            live=[Row(**row) for row in kept["live"]],
            archive=[Row(**row) for row in kept["archive"]],
            max_attempts=kept["max_attempts"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HistoryError(f"{folder} has no history that came to its end: {error}") from error
    return check(read(folder), final)


def findings(verdict: Verdict) -> list[str]:
    """Say which promises were broken, of very many only how many."""
    texts = [f"{it.invariant}: {it.message}" for it in verdict.violations]
    more = len(texts) - _MOST
    return [*texts[:_MOST], f"and {more} more"] if more > 0 else texts
