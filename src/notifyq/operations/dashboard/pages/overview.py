"""The overview: how it goes, at a glance, and how it went."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from notifyq.models.message import Status
from notifyq.operations import monitor
from notifyq.operations.dashboard import statements
from notifyq.operations.dashboard.charts import Chart, Series, steps
from notifyq.operations.dashboard.checks import checked, state
from notifyq.operations.dashboard.figures import behind, lags, totals
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.templating import number, percent, short, span

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View
    from notifyq.operations.monitor import Point, Throughput

section = Section("overview", "Overview", key="o")

RANGES = {
    "15m": (timedelta(minutes=15), timedelta(seconds=10)),
    "1h": (timedelta(hours=1), timedelta(seconds=30)),
    "6h": (timedelta(hours=6), timedelta(minutes=5)),
    "24h": (timedelta(hours=24), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
"""How far back one may look, each with the time that a step of the charts has."""

_LABELS = {status: status.value.replace("_", " ") for status in Status}


@section.page("/", "overview")
async def overview(view: View) -> Response:
    """Tiles and charts."""
    chosen = view.query("range", "1h")
    chosen = chosen if chosen in RANGES else "1h"
    queue = view.query("queue") or None
    cache, database = view.desk.cache, view.database
    rows = await cache.get(("backlog", queue), 1, lambda: monitor.backlog(database, queue))
    subscribers = await cache.get("lags", 2, lambda: lags(database))
    names = await cache.get("names", 5, lambda: database.fetch(statements.QUEUE_LIST, None))
    past = await read_past(view, chosen, queue)
    findings = await checked(view.desk, wait=1)
    return view.render(
        "overview.html",
        title="Overview",
        chosen=chosen,
        ranges=list(RANGES),
        queue=queue,
        queues=[row["name"] for row in names],
        figures=totals(rows) | behind(subscribers),
        past=past,
        health=state(findings),
    )


async def read_past(view: View, chosen: str, queue: str | None) -> dict[str, Any]:
    """What was finished in a range, with its charts."""
    length, step = RANGES[chosen]

    async def ask() -> tuple[datetime, Throughput]:
        until = datetime.now(UTC)
        found = await monitor.throughput(
            view.database, since=until - length, until=until, step=step, queue=queue
        )
        return until, found

    # The last step of a long range hardly moves: it need not be read every few seconds.
    seconds = min(60.0, max(2.0, step.total_seconds() / 10))
    until, found = await view.desk.cache.get(("past", chosen, queue), seconds, ask)
    starts = steps(until - length, until, step)
    whole = [point for point in found.points if point.status is None]
    finished = sum(point.finished for point in whole)
    dead = sum(
        point.finished for point in found.points if point.status not in {None, Status.SUCCESS}
    )
    return {
        "charts": [
            _throughput(found.points, starts, step, finished, dead),
            _times("wait", "Time waited", whole, starts, step),
            _times("run", "Time run", whole, starts, step),
        ],
        "finished": finished,
        "rate": percent(dead / finished) if finished else percent(None),
        "rate_kind": "bad" if dead * 10 > finished else "warn" if dead * 100 > finished else "",
        "per_second": number(round(finished / length.total_seconds(), 2)),
        "read_from_at": found.read_from_at,
        "step": span(step),
    }


def _throughput(
    points: tuple[Point, ...],
    starts: tuple[datetime, ...],
    step: timedelta,
    finished: int,
    dead: int,
) -> Chart:
    counts: dict[tuple[Status | None, datetime], int] = {
        (point.status, point.bucket_at): point.finished for point in points
    }
    return Chart(
        name="throughput",
        title="Finished",
        says=f"{number(finished)} messages finished, {number(dead)} of them dead; by {span(step)}.",
        starts=starts,
        step=step,
        series=tuple(
            Series(status.value, _LABELS[status], values)
            for status in Status
            if any(values := tuple(counts.get((status, start), 0) for start in starts))
        ),
        write=short,
        is_stacked=True,
    )


def _times(
    kind: str, title: str, whole: list[Point], starts: tuple[datetime, ...], step: timedelta
) -> Chart:
    by_start = {point.bucket_at: point for point in whole}

    def values(name: str) -> tuple[float | None, ...]:
        found = (getattr(by_start.get(start), f"{kind}_{name}", None) for start in starts)
        return tuple(None if it is None else max(it.total_seconds(), 1e-6) for it in found)

    series = tuple(Series(name, name, values(name)) for name in ("p50", "p95", "p99"))
    most = max((it for it in series[1].values if it), default=None)
    return Chart(
        name=kind,
        title=title,
        says=f"At worst 95 of 100 {'waited' if kind == 'wait' else 'ran'} up to {span(most)}."
        if most
        else "No messages.",
        starts=starts,
        step=step,
        series=series,
        write=span,
    )
