"""Checks of streams and lakes: readers that fall behind keep data."""

import shlex
from datetime import timedelta

from notifyq.database import statements as sql
from notifyq.operations.doctor.finding import Context, Finding, fail, ok, warn
from notifyq.operations.texts import size, span

_LONG_LAG = timedelta(hours=1)
_LONG_SINCE_EXPORT = timedelta(days=2)
_MANY = 12
"""Segments of a stream: three or four are usual, and they grow before more are made."""


async def check_subscribers(context: Context) -> Finding:
    """Whether a subscriber is far behind, or was moved on because it was too far behind."""
    dead = await context.connection.fetch(sql.DEAD_LIST, None, 1000, 0, None)
    skipped = [row for row in dead if row["subscriber"] and row["event_id"] is None]
    if skipped:
        return fail(
            f"events of {skipped[0]['subscriber']} were skipped because it was too far behind",
            f"see `notifyq dead ls --queue {shlex.quote(skipped[0]['queue'])}`; repair the "
            "subscriber, and raise max_lag or max_events of the stream",
        )
    rows = await context.connection.fetch(sql.SUBSCRIPTION_INFO, None, None)
    if not rows:
        return ok("there are no subscribers")
    last = max(rows, key=lambda row: row["lag"])
    if last["lag"] > _LONG_LAG:
        return warn(
            f"{last['subscriber']} of stream {last['stream']} is {span(last['lag'])} behind",
            "start it, or end it, because the stream keeps all events that it has not read: "
            "`notifyq stream unsubscribe "
            f"{shlex.quote(last['stream'])} {shlex.quote(last['subscriber'])}`",
        )
    return ok(f"subscribers are at most {span(last['lag'])} behind")


async def check_segments(context: Context) -> Finding:
    """Whether segments pile up because something keeps their events."""
    rows = await context.connection.fetch(sql.STREAM_INFO, None)
    for row in rows:
        if row["segments"] > _MANY:
            return warn(
                f"stream {row['stream']} has {row['segments']} segments",
                "its slowest subscriber, a long transaction or a long retention keeps them",
            )
    return ok(f"{len(rows)} streams with {size(sum(row['bytes'] for row in rows))}")


async def check_forwards(context: Context) -> Finding:
    """Whether forwarded events arrive in their queue."""
    rows = await context.connection.fetch(sql.FORWARDS, None)
    for row in rows:
        if row["failed_at"]:
            return fail(
                f"{row['subscriber']} of stream {row['stream']} is not forwarded into queue "
                f"{row['queue']}: {row['last_error']}",
                "repair the cause; forwarding retries every minute",
            )
    return ok(f"{len(rows)} subscriptions are forwarded into queues")


async def check_lakes(context: Context) -> Finding:
    """Whether the archive is exported into each lake; until then its days are kept."""
    rows = await context.connection.fetch(sql.LAKES)
    for row in rows:
        forget = f"forget it with `select messages.forget_lake({row['id']})`: days are kept for it"
        if row["obstacle"]:
            return fail(
                f"nothing can be exported into {row['location']}: {row['obstacle']}",
                f"begin another lake, and {forget}",
            )
        if row["idle"] > _LONG_SINCE_EXPORT:
            return warn(
                f"nothing was exported into {row['location']} for {span(row['idle'])}",
                f"run `notifyq spark export --lake {shlex.quote(row['location'])}`, or {forget}",
            )
    return ok(f"{len(rows)} lakes")
