"""The overview: the live values, and charts of the last hours."""

from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from notifyq.operations import monitor
from notifyq.operations.charts import Chart, finished_chart, steps, times_chart
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.checks import checked, state
from notifyq.operations.dashboard.live import behind, lags, totals
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.monitor import Point, Throughput
from notifyq.operations.texts import number, percent, span

section = Section("overview", "Overview", key="o")

RANGES = {
    "15m": (timedelta(minutes=15), timedelta(seconds=10)),
    "1h": (timedelta(hours=1), timedelta(seconds=30)),
    "6h": (timedelta(hours=6), timedelta(minutes=5)),
    "24h": (timedelta(hours=24), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
"""The ranges of the charts, each with its time step."""


@section.page("/", "overview")
async def overview(view: View) -> Response:
    """Tiles and charts."""
    chosen = view.query("range", "1h")
    chosen = chosen if chosen in RANGES else "1h"
    queue = view.query("queue") or None
    cache, database = view.dashboard.cache, view.database
    part = view.parts.read
    backlog = cache.get(("backlog", queue), 1, lambda: monitor.backlog(database, queue))
    rows = await part("backlog", backlog, [])
    subscribers = await part("lags", cache.get("lags", 2, lambda: lags(database)), [])
    listed = cache.get("names", 5, lambda: database.fetch(statements.QUEUE_LIST, None))
    names = await part("names", listed, [])
    past = await part("past", _past(view, chosen, queue), None)
    view.parts.check()
    return view.render(
        "overview.html",
        title="Overview",
        chosen=chosen,
        ranges=list(RANGES),
        queue=queue,
        queues=[row["name"] for row in names],
        figures=totals(rows) | behind(subscribers),
        past=past,
        health=state(await checked(view.dashboard, wait=1)),
    )


async def _past(view: View, chosen: str, queue: str | None) -> dict[str, Any]:
    """The messages that were finished in a range, with charts."""
    length, step = RANGES[chosen]

    async def read() -> tuple[datetime, Throughput]:
        until = datetime.now(UTC)
        found = await monitor.throughput(
            view.database, since=until - length, until=until, step=step, queue=queue
        )
        return until, found

    # Long steps change slowly and need not be read every few seconds.
    seconds = min(60.0, max(2.0, step.total_seconds() / 10))
    until, found = await view.dashboard.cache.get(("past", chosen, queue), seconds, read)
    starts = steps(until - length, until, step)
    whole = [point for point in found.points if point.status is None]
    finished = sum(point.finished for point in whole)
    dead = sum(point.dead for point in whole)
    counts = {(point.status, point.bucket_at): point.finished for point in found.points}
    text = (
        f"{number(finished)} messages finished, {number(dead)} of them dead; each step is "
        f"{span(step)}."
    )
    return {
        "charts": [
            finished_chart("Finished", text, starts, step, counts),
            _times("wait", whole, starts, step),
            _times("run", whole, starts, step),
        ],
        "rate": percent(dead / finished if finished else None),
        "rate_kind": "bad" if dead * 10 > finished else "warn" if dead * 100 > finished else "",
        "per_second": number(round(finished / length.total_seconds(), 2)),
        "read_from_at": found.read_from_at,
    }


def _times(kind: str, whole: list[Point], starts: tuple[datetime, ...], step: timedelta) -> Chart:
    found = {
        name: {point.bucket_at: getattr(point, f"{kind}_{name}") for point in whole}
        for name in ("p50", "p95", "p99")
    }
    most = max((it for it in found["p95"].values() if it is not None), default=None)
    text = "No messages."
    if most is not None:
        text = f"The highest 95th percentile of a step is {span(most)}."
    return times_chart(kind, text, starts, step, found)
