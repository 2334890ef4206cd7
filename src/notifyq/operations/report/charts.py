"""The charts of a report, each with its description in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from notifyq.operations.charts import Bars, Chart, Series, steps
from notifyq.operations.report.data import STATUSES, Group, Report
from notifyq.operations.texts import NONE, clean, cut, number, percent, short, span

_MOST_BARS = 8
_QUANTILES = ("p50", "p95", "p99")


def when(value: datetime | None) -> str:
    """An instant in UTC, to the minute."""
    return NONE if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M")


def change(value: float | None) -> str:
    """A growth: +12 %, -5 %, 3.4 times; "new" without earlier messages."""
    if value is None:
        return "new"
    return f"{value + 1:.3g} times" if value >= 1 else f"{value * 100:+.3g} %"


def per_step(report: Report) -> str:
    """The length of a time step: hour, 3 hours, day."""
    hours = report.step // timedelta(hours=1)
    name = {1: "hour", 24: "day", 168: "week"}.get(hours)
    return name or (f"{hours} hours" if hours < 24 else f"{hours // 24} days")


def slowest(report: Report) -> list[Group]:
    """The queues by the 95th percentiles of wait time and run time together, the slowest first."""

    def total(group: Group) -> timedelta:
        return sum((it for it in (group.wait["p95"], group.run["p95"]) if it), timedelta())

    known = [group for group in report.queues if group.run["p95"] is not None]
    return sorted(known, key=total, reverse=True)


def charts(report: Report) -> dict[str, Chart | Bars]:
    """The charts by their names; none of an empty report."""
    if report.is_empty:
        return {}
    found: list[Chart | Bars] = [
        _throughput(report), _times(report, "wait"), _times(report, "run"), _failures(report),
        _slowest(report), _rate(report), _growth(report),
    ]  # fmt: skip
    return {chart.name: chart for chart in found}


def _series(
    report: Report,
    groups: Sequence[Group],
    value: Callable[[Group], float | None],
    name: str,
    label: str = "",
) -> Series:
    """A value of each time step, also of those without messages."""
    by_start = {group.at: group for group in groups}
    found = (by_start.get(start) for start in steps(report.since, report.until, report.step))
    values = tuple(None if group is None else value(group) for group in found)
    return Series(name, label or name, values)


def _over_time(
    report: Report,
    name: str,
    title: str,
    description: str,
    series: Sequence[Series],
    write: Callable[[float], str],
    *,
    is_stacked: bool = True,
    apart: float = 1,
) -> Chart:
    starts = steps(report.since, report.until, report.step)
    return Chart(
        name, title, description, starts, report.step, tuple(series), write, is_stacked, apart
    )


def _throughput(report: Report) -> Chart:
    top = max(report.timeline, key=lambda it: it.finished)
    text = (
        f"{number(sum(it.finished for it in report.timeline))} messages finished, "
        f"{number(sum(it.dead for it in report.timeline))} of them dead; "
        f"the most, {number(top.finished)}, in the {per_step(report)} from {when(top.at)}."
    )
    by_status = {
        status: [group for group in report.by_status if group.status == status]
        for status in STATUSES
    }
    series = [
        _series(report, groups, lambda it: it.finished, status, status.replace("_", " "))
        for status, groups in by_status.items()
        if groups
    ]
    return _over_time(report, "throughput", "Throughput", text, series, short)


def _rate(report: Report) -> Chart:
    top = max(report.timeline, key=lambda it: it.failure_rate)
    text = "Every message succeeded."
    if top.dead:
        rate = percent(top.failure_rate)
        text = f"At most {rate} failed, in the {per_step(report)} from {when(top.at)}."
    series = [_series(report, report.timeline, lambda it: it.failure_rate, "failed")]
    return _over_time(report, "rate", "Failure rate", text, series, percent, apart=0.001)


def _times(report: Report, kind: str) -> Chart:
    def seconds(name: str) -> Callable[[Group], float | None]:
        def read(group: Group) -> float | None:
            value: timedelta | None = getattr(group, kind)[name]
            return None if value is None else max(value.total_seconds(), 1e-6)

        return read

    times = {} if report.total is None else getattr(report.total, kind)
    text = ", ".join(f"{name} {span(times.get(name))}" for name in (*_QUANTILES, "max"))
    series = [_series(report, report.timeline, seconds(name), name) for name in _QUANTILES]
    return _over_time(
        report, kind, f"{kind.capitalize()} time", f"Over all messages: {text}", series, span,
        is_stacked=False,
    )  # fmt: skip


def _growth(report: Report) -> Chart:
    whole = report.growth[0]
    text = (
        f"{number(whole.now)} messages in this time, {number(whole.before)} in the same time "
        "before."
    )
    each = _series(report, report.timeline, lambda it: it.finished, "p50").values
    sums = Series("p50", "messages since the begin", tuple(accumulate(it or 0 for it in each)))
    return _over_time(report, "growth", "Growth", text, [sums], short)


def _failures(report: Report) -> Bars:
    shown = report.failures[:_MOST_BARS]
    text = "Every message succeeded."
    if shown:
        first = shown[0]
        text = f"Most frequent, {number(first.errors)} times: {cut(first.fingerprint, 120)}"
    series = Series("failed", "failures", tuple(it.errors for it in shown))
    names = tuple(f"{rank}. {it.fingerprint}" for rank, it in enumerate(shown, 1))
    return Bars("failures", "Failures by fingerprint", text, (series,), names, number)


def _slowest(report: Report) -> Bars:
    shown = slowest(report)[:_MOST_BARS]
    text = "No message was handled."
    if shown:
        first = shown[0]
        text = (
            f"Slowest: {cut(first.queue or '', 80)}, where 95 % of the messages waited up to "
            f"{span(first.wait['p95'])} and ran up to {span(first.run['p95'])}."
        )

    def seconds(value: timedelta | None) -> float | None:
        return None if value is None else value.total_seconds()

    series = (
        Series("p50", "wait, p95", tuple(seconds(it.wait["p95"]) for it in shown)),
        Series("p99", "run, p95", tuple(seconds(it.run["p95"]) for it in shown)),
    )
    names = tuple(clean(it.queue or "") for it in shown)
    return Bars("slowest", "Slowest queues", text, series, names, span)
