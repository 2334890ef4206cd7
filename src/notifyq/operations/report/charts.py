"""The charts of a report, each with its description in words."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import accumulate

from notifyq.operations.charts import Bars, Chart, Series, finished_chart, steps, times_chart
from notifyq.operations.report.data import Group, Report
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


def _starts(report: Report) -> tuple[datetime, ...]:
    return steps(report.since, report.until, report.step)


def _values(report: Report, value: Callable[[Group], float | None]) -> tuple[float | None, ...]:
    """A value of each time step, None of those without messages."""
    by_start = {group.at: value(group) for group in report.timeline}
    return tuple(by_start.get(start) for start in _starts(report))


def _throughput(report: Report) -> Chart:
    top = max(report.timeline, key=lambda it: it.finished)
    text = (
        f"{number(sum(it.finished for it in report.timeline))} messages finished, "
        f"{number(sum(it.dead for it in report.timeline))} of them dead; "
        f"the most, {number(top.finished)}, in the {per_step(report)} from {when(top.at)}."
    )
    counts = {(group.status, group.at): group.finished for group in report.by_status}
    return finished_chart("Throughput", text, _starts(report), report.step, counts)


def _rate(report: Report) -> Chart:
    top = max(report.timeline, key=lambda it: it.failure_rate)
    text = "Every message succeeded."
    if top.dead:
        rate = percent(top.failure_rate)
        text = f"At most {rate} failed, in the {per_step(report)} from {when(top.at)}."
    rates = Series("failed", "failed", _values(report, lambda it: it.failure_rate))
    return Chart(
        "rate", "Failure rate", text, _starts(report), report.step, (rates,), percent,
        is_stacked=True, apart=0.001,
    )  # fmt: skip


def _times(report: Report, kind: str) -> Chart:
    times = {} if report.total is None else getattr(report.total, kind)
    text = ", ".join(f"{name} {span(times.get(name))}" for name in (*_QUANTILES, "max"))
    found = {
        name: {group.at: getattr(group, kind)[name] for group in report.timeline}
        for name in _QUANTILES
    }
    return times_chart(kind, f"Over all messages: {text}", _starts(report), report.step, found)


def _growth(report: Report) -> Chart:
    whole = report.growth[0]
    text = (
        f"{number(whole.now)} messages in this time, {number(whole.before)} in the same time "
        "before."
    )
    each = _values(report, lambda it: it.finished)
    sums = Series("p50", "messages since the begin", tuple(accumulate(it or 0 for it in each)))
    return Chart(
        "growth", "Growth", text, _starts(report), report.step, (sums,), short, is_stacked=True
    )


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
