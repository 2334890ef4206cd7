"""The findings of `notifyq doctor`, which are kept for a while because they take long."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from notifyq.errors import NotifyqError
from notifyq.operations.dashboard.view import Dashboard
from notifyq.operations.doctor import Finding, Level, examine

_KEEP = 30.0
_LONGEST = 20.0


@dataclass(frozen=True, slots=True)
class Checked:
    """Findings, and when they were made."""

    at: datetime
    findings: Sequence[tuple[str, Finding]]
    is_complete: bool = True


async def checked(dashboard: Dashboard, wait: float = _LONGEST) -> Checked | None:
    """The findings of the last half minute, or older ones if the checks take longer than `wait`.

    None if the checks failed or never ran.
    """

    async def run() -> Checked:
        found: list[tuple[str, Finding]] = []
        try:
            async with asyncio.timeout(_LONGEST):
                async for name, finding in examine(dashboard.database.dsn, "the dashboard"):
                    found.append((name, finding))
        except TimeoutError:
            return Checked(datetime.now(UTC), found, is_complete=False)
        return Checked(datetime.now(UTC), found)

    try:
        async with asyncio.timeout(wait):
            dashboard.checked = await dashboard.cache.get("checks", _KEEP, run)
    except NotifyqError:
        return None
    except TimeoutError:
        pass  # the checks continue for the next caller
    found: Checked | None = dashboard.checked
    return found


def state(found: Checked | None) -> tuple[str, str]:
    """A summary of the findings, and the kind of its badge."""
    if found is None:
        return "not checked yet", "quiet"
    counts = Counter(finding.level for _, finding in found.findings)
    if counts[Level.FAIL]:
        return f"{counts[Level.FAIL]} failing", "bad"
    if counts[Level.WARN]:
        return f"{counts[Level.WARN]} warnings" if counts[Level.WARN] > 1 else "1 warning", "warn"
    return "ok", "good"
