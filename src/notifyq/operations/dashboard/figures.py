"""The figures that all pages show live: cheap, as they are read every few seconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from notifyq.operations import monitor
from notifyq.operations.dashboard.templating import NONE, short, span

if TYPE_CHECKING:
    from notifyq.database.pool import Database
    from notifyq.operations.monitor import Backlog, Lag

BEHIND = timedelta(minutes=1)
"""A subscriber whose oldest unread event is older than this is behind."""

# Beyond these it is told in colour; in between it may well be as it should.
_LONG_WAIT = timedelta(minutes=5)


async def look(database: Database) -> dict[str, Any]:
    """Read them, as the texts that pages show."""
    rows = await monitor.backlog(database)
    return {"figures": totals(rows) | behind(await lags(database))}


async def lags(database: Database) -> list[Lag]:
    """How far behind subscribers are: of their events only the oldest is looked at."""
    return await monitor.lags(database, most=1)


def totals(rows: list[Backlog]) -> dict[str, str]:
    """What waits in all these queues together."""
    sign = "" if all(row.is_exact for row in rows) else "≈ "
    oldest = min((it.oldest_waiting_at for it in rows if it.oldest_waiting_at), default=None)
    waited = None if oldest is None else max(datetime.now(UTC) - oldest, timedelta())
    return {
        "waiting": sign + short(sum(row.waiting for row in rows)),
        "scheduled": sign + short(sum(row.scheduled for row in rows)),
        "running": short(sum(row.locked - row.expired for row in rows)),
        "expired": short(sum(row.expired for row in rows)),
        "dead": short(sum(row.dead for row in rows)),
        "paused": short(sum(row.paused for row in rows)),
        "oldest": NONE if waited is None else span(_coarse(waited)),
        "oldest_kind": "warn" if waited is not None and waited > _LONG_WAIT else "",
    }


def behind(rows: list[Lag]) -> dict[str, str]:
    """How many subscribers are late, of how many."""
    late = sum(1 for row in rows if row.lag > BEHIND)
    return {"behind": f"{late} of {len(rows)}" if rows else NONE}


def _coarse(value: timedelta) -> timedelta:
    """A time that grows in steps: a figure that changes each second is no news."""
    seconds = value.total_seconds()
    if seconds < 10:
        return timedelta(seconds=round(seconds, 1))
    return timedelta(seconds=round(seconds) if seconds < 120 else round(seconds / 60) * 60)
