"""Checks of streams: who is behind, what is kept for whom, and whether forwards work."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq import sql
from notifyq.doctor.finding import fail, lasting, ok, warn

if TYPE_CHECKING:
    from notifyq.doctor.finding import Finding, Look

_LONG = timedelta(hours=1)
_MANY = 12
"""Tables of a stream: three or four are usual, and they grow before there are more."""


async def check_subscribers(look: Look) -> Finding:
    """Whether somebody does not read what it subscribes to, or is skipped."""
    skipped = await look.value(sql.SKIPPED)
    if skipped:
        return fail(
            f"events were skipped {skipped} times, of subscribers too far behind",
            "see `notifyq dead ls`; repair the subscriber, and raise max_lag or max_events",
        )
    row = await look.row(sql.FURTHEST_BEHIND)
    if row["lag"] is not None and row["lag"] > _LONG:
        return warn(
            f"subscriber {row['name']} is {lasting(row['lag'])} behind",
            "run it, or end it with messages.unsubscribe(): what it has not read is kept",
        )
    return ok("nobody subscribes" if row["lag"] is None else f"{lasting(row['lag'])} behind")


async def check_segments(look: Look) -> Finding:
    """Whether tables of events pile up that cannot be emptied."""
    row = await look.row(sql.SEGMENTS)
    if not row["count"]:
        return ok("there is no stream")
    if row["segments"] > _MANY:
        return warn(
            f"stream {row['stream']} keeps {row['segments']} tables of events",
            "its slowest subscriber, a long transaction or a long retention holds them",
        )
    return ok(f"{row['count']} streams with {row['bytes'] / 2**20:.0f} MB")


async def check_forwards(look: Look) -> Finding:
    """Whether events that should go into a queue get there."""
    row = await look.row(sql.FORWARDING)
    if row["failed"]:
        return fail(f"no forwarding for {row['failed']}", "repair that; it is tried each minute")
    return ok(f"{row['count']} subscriptions are forwarded into queues")


CHECKS = {
    "subscribers": check_subscribers,
    "segments": check_segments,
    "forwards": check_forwards,
}
