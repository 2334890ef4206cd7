"""Charts of a report: each draws into axes, in the colours that it is given."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from notifyq.operations.report.axes import bars, legend, numbers, time_axis
from notifyq.operations.report.data import STATUSES
from notifyq.operations.report.texts import cut, number, percent, short, span, when

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from notifyq.operations.report.axes import Colours, Row
    from notifyq.operations.report.data import Group, Report


MOST_BARS = 8

_ORIGIN = datetime(2000, 1, 3, tzinfo=UTC)
_QUANTILES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class Chart:
    """A chart: its heading, who draws it, and what it says to those who do not see it."""

    name: str
    title: str
    draw: Callable[[Any, Report, Colours, bool], None]
    says: Callable[[Report], str]


def _starts(report: Report) -> list[datetime]:
    """Where the steps of the range begin, also those without messages."""
    first = _ORIGIN + (report.since - _ORIGIN) // report.step * report.step
    count = -((first - report.until) // report.step)
    return [first + report.step * place for place in range(count)]


def _series(
    report: Report, groups: Sequence[Group], value: Callable[[Group], float | None], empty: float
) -> list[float]:
    by_start = {group.at: group for group in groups}
    values = [by_start.get(start) for start in _starts(report)]
    found = [empty if group is None else value(group) for group in values]
    return [empty if it is None else it for it in found]


def _throughput(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    starts = _starts(report)
    edges = numbers([*starts, starts[-1] + report.step])
    base = [0.0] * len(starts)
    for status in STATUSES:
        groups = [group for group in report.by_status if group.status == status]
        if not groups:
            continue
        top = [
            low + more
            for low, more in zip(
                base, _series(report, groups, lambda it: it.finished, 0.0), strict=True
            )
        ]
        axes.stairs(
            top, edges, baseline=base, fill=True, color=getattr(colours, status),
            label=status.replace("_", " "),
        )  # fmt: skip
        base = top
    axes.set_ylim(0, max(base) * 1.08 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    time_axis(axes, report, colours, is_narrow)
    legend(axes, colours)


def _rate(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    rates = _series(report, report.timeline, lambda it: it.failure_rate, float("nan"))
    starts = _starts(report)
    axes.stairs(
        rates, numbers([*starts, starts[-1] + report.step]), baseline=None, color=colours.failed,
        linewidth=1.6,
    )  # fmt: skip
    top = max((rate for rate in rates if rate == rate), default=0)  # noqa: PLR0124  not a number
    axes.set_ylim(0, min(1, top * 1.15) or 0.01)
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    time_axis(axes, report, colours, is_narrow)


def _times(kind: str) -> Callable[[Any, Report, Colours, bool], None]:
    def draw(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
        starts = _starts(report)
        edges = numbers([*starts, starts[-1] + report.step])
        for name in reversed(_QUANTILES):

            def seconds(group: Group, name: str = name) -> float | None:
                value = getattr(group, kind)[name]
                return None if value is None else max(value.total_seconds(), 1e-6)

            values = _series(report, report.timeline, seconds, float("nan"))
            axes.stairs(
                values, edges, baseline=None, color=getattr(colours, name), label=name,
                linewidth=1.6,
            )  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: span(value))
        axes.yaxis.set_minor_formatter(lambda *_: "")
        time_axis(axes, report, colours, is_narrow)
        legend(axes, colours)

    return draw


def _failures(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    rows: list[Row] = [
        (f"{place}. {it.fingerprint}", [(it.errors, colours.failed, number(it.errors))])
        for place, it in enumerate(report.failures[:MOST_BARS], 1)
    ]
    bars(axes, rows, colours, is_narrow=is_narrow)


def _slowest(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    rows: list[Row] = []
    for group in slowest(report)[:MOST_BARS]:
        wait, run = group.wait["p95"], group.run["p95"]
        pair = [
            (value.total_seconds(), colour, f"{word} {span(value)}")
            for value, colour, word in ((wait, colours.p50, "wait"), (run, colours.p99, "run"))
            if value is not None
        ]
        rows.append((group.queue or "", pair))
    bars(axes, rows, colours, is_narrow=is_narrow)


def _growth(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    starts = _starts(report)
    total, sums = 0.0, [0.0]
    for value in _series(report, report.timeline, lambda it: it.finished, 0.0):
        total += value
        sums.append(total)
    edges = numbers([*starts, starts[-1] + report.step])
    axes.fill_between(edges, sums, color=colours.p50, alpha=0.25, linewidth=0)
    axes.plot(edges, sums, color=colours.p50, linewidth=1.8)
    axes.set_ylim(0, total * 1.08 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    time_axis(axes, report, colours, is_narrow)


def slowest(report: Report) -> list[Group]:
    """The queues by what 95 of 100 messages take at most, wait and run together."""

    def total(group: Group) -> timedelta:
        return sum((it for it in (group.wait["p95"], group.run["p95"]) if it), timedelta())

    known = [group for group in report.queues if group.run["p95"] is not None]
    return sorted(known, key=total, reverse=True)


def _says_throughput(report: Report) -> str:
    total = report.total
    if total is None:
        return "No messages."
    top = max(report.timeline, key=lambda it: it.finished)
    return (
        f"{number(total.finished)} messages finished, {number(total.dead)} of them dead; "
        f"most in the {_step(report)} from {when(top.at)} on: {number(top.finished)}."
    )


def _says_rate(report: Report) -> str:
    top = max(report.timeline, key=lambda it: it.failure_rate, default=None)
    if top is None or not top.dead:
        return "Every message succeeded."
    return f"At most {percent(top.failure_rate)} died, in the {_step(report)} from {when(top.at)}."


def _says_times(kind: str) -> Callable[[Report], str]:
    def says(report: Report) -> str:
        times = {} if report.total is None else getattr(report.total, kind)
        return "Over all messages: " + ", ".join(
            f"{name} {span(times.get(name))}" for name in (*_QUANTILES, "max")
        )

    return says


def _says_failures(report: Report) -> str:
    if not report.failures:
        return "Every message succeeded."
    first = report.failures[0]
    return f"Most frequent, {number(first.errors)} times: {cut(first.fingerprint, 120)}"


def _says_slowest(report: Report) -> str:
    rows = slowest(report)
    if not rows:
        return "No message was handed out."
    first = rows[0]
    return (
        f"Slowest: {cut(first.queue or '', 80)}, of whose messages 95 in 100 waited up to "
        f"{span(first.wait['p95'])} and ran up to {span(first.run['p95'])}."
    )


def _says_growth(report: Report) -> str:
    whole = report.growth[0]
    return (
        f"{number(whole.now)} messages in this time, {number(whole.before)} in that of the same "
        "length before."
    )


def _step(report: Report) -> str:
    hours = report.step // timedelta(hours=1)
    name = {1: "hour", 24: "day", 168: "week"}.get(hours)
    return name or (f"{hours} hours" if hours < 24 else f"{hours // 24} days")


def per_step(report: Report) -> str:
    """What the steps of the range are called: hour, 3 hours, day."""
    return _step(report)


CHARTS = (
    Chart("throughput", "Throughput", _throughput, _says_throughput),
    Chart("rate", "Failure rate", _rate, _says_rate),
    Chart("wait", "Time waited", _times("wait"), _says_times("wait")),
    Chart("run", "Time run", _times("run"), _says_times("run")),
    Chart("failures", "Failures by fingerprint", _failures, _says_failures),
    Chart("slowest", "Slowest queues", _slowest, _says_slowest),
    Chart("growth", "Growth", _growth, _says_growth),
)
