"""What `notifyq doctor` finds, looked at now and then: its checks are too many for each page."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from notifyq.errors import NotifyqError
from notifyq.operations.doctor import Finding, Level, examine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from notifyq.operations.dashboard.view import Desk

_KEEP = 30.0
_LONGEST = 20.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found, and when."""

    at: datetime
    findings: Sequence[tuple[str, Finding]]
    is_complete: bool = True

    def worst(self) -> Level:
        """How bad the worst is."""
        levels = {finding.level for _, finding in self.findings}
        return next((it for it in (Level.FAIL, Level.WARN) if it in levels), Level.OK)


async def checked(desk: Desk, wait: float = _LONGEST) -> Checked | None:
    """What the checks found within half a minute, or before if they take longer than `wait`.

    None where they could not be made, or never were.
    """

    async def look() -> Checked:
        found: list[tuple[str, Finding]] = []
        try:
            async with asyncio.timeout(_LONGEST):
                async for name, finding in examine(desk.database.dsn, "the dashboard"):
                    found.append((name, finding))
        except TimeoutError:
            return Checked(datetime.now(UTC), found, is_complete=False)
        return Checked(datetime.now(UTC), found)

    try:
        async with asyncio.timeout(wait):
            desk.checked = await desk.cache.get("checks", _KEEP, look)
    except NotifyqError:
        return None
    except TimeoutError:
        pass  # they go on, and whoever asks next has them
    found: Checked | None = desk.checked
    return found


def state(found: Checked | None) -> tuple[str, str]:
    """How it is in a word, and the kind of badge that says it."""
    if found is None:
        return "not checked yet", "quiet"
    counts = dict.fromkeys(Level, 0)
    for _, finding in found.findings:
        counts[finding.level] += 1
    if counts[Level.FAIL]:
        return f"{counts[Level.FAIL]} failing", "bad"
    if counts[Level.WARN]:
        return f"{counts[Level.WARN]} to look at", "warn"
    return "well", "good"
