"""Checks of streams: who is behind, what is kept for whom, and whether forwards work."""

from __future__ import annotations

import shlex
from datetime import timedelta
from typing import TYPE_CHECKING

from notifyq.database import sql
from notifyq.operations.doctor.finding import fail, lasting, ok, warn

if TYPE_CHECKING:
    from notifyq.operations.doctor.finding import Finding, Look

_LONG = timedelta(hours=1)
_MANY = 12
"""Tables of a stream: three or four are usual, and they grow before there are more."""


async def check_subscribers(look: Look) -> Finding:
    """Whether somebody does not read what it subscribes to, or is skipped."""
    dead = await look.connection.fetch(sql.DEAD_LIST, None, 1000, 0, None)
    skipped = [row for row in dead if row["subscriber"] and row["event_id"] is None]
    if skipped:
        return fail(
            f"events of {skipped[0]['subscriber']} were skipped, as it was too far behind",
            f"see `notifyq dead ls --queue {shlex.quote(skipped[0]['queue'])}`; repair the "
            "subscriber, and raise max_lag or max_events of the stream",
        )
    rows = await look.connection.fetch(sql.SUBSCRIPTION_INFO, None, None)
    if not rows:
        return ok("nobody subscribes")
    last = max(rows, key=lambda row: row["lag"])
    if last["lag"] > _LONG:
        return warn(
            f"{last['subscriber']} of stream {last['stream']} is {lasting(last['lag'])} behind",
            "run it, or end it, as what it has not read is kept: `notifyq stream unsubscribe "
            f"{shlex.quote(last['stream'])} {shlex.quote(last['subscriber'])}`",
        )
    return ok(f"{lasting(last['lag'])} behind at most")


async def check_segments(look: Look) -> Finding:
    """Whether tables of events pile up that cannot be emptied."""
    rows = await look.connection.fetch(sql.STREAM_INFO, None)
    for row in rows:
        if row["segments"] > _MANY:
            return warn(
                f"stream {row['stream']} keeps {row['segments']} tables of events",
                "its slowest subscriber, a long transaction or a long retention holds them",
            )
    return ok(f"{len(rows)} streams with {sum(row['bytes'] for row in rows) / 2**20:.0f} MB")


async def check_forwards(look: Look) -> Finding:
    """Whether events that should go into a queue get there."""
    rows = await look.connection.fetch(sql.FORWARDS, None)
    for row in rows:
        if row["failed_at"]:
            return fail(
                f"{row['subscriber']} of stream {row['stream']} is not forwarded into queue "
                f"{row['queue']}: {row['last_error']}",
                "repair that: it is tried again each minute",
            )
    return ok(f"{len(rows)} subscriptions are forwarded into queues")


CHECKS = {
    "subscribers": check_subscribers,
    "segments": check_segments,
    "forwards": check_forwards,
}
