"""The charts of a report: each draws into matplotlib axes with the given colours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from notifyq.operations.report.data import STATUSES
from notifyq.operations.texts import NONE, cut, number, percent, short, span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from notifyq.operations.report.data import Group, Report

    Draw: TypeAlias = Callable[[Any, Report, "Colours", bool], None]
    Row: TypeAlias = tuple[str, list[tuple[float, str, str]]]
    """A name, and the length, the colour and the label of each of its bars."""

_MOST_BARS = 8
_ORIGIN = datetime(2000, 1, 3, tzinfo=UTC)
_QUANTILES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class Colours:
    """The colours of a chart."""

    ink: str
    faint: str
    grid: str
    success: str
    rejected: str
    failed: str
    lock_expired: str
    p50: str
    p95: str
    p99: str


@dataclass(frozen=True)
class Chart:
    """A chart: how it is drawn, and its description in words."""

    name: str
    title: str
    draw: Draw
    description: Callable[[Report], str]


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


def _starts(report: Report) -> list[datetime]:
    """The starts of all time steps, also those without messages."""
    first = _ORIGIN + (report.since - _ORIGIN) // report.step * report.step
    count = -((first - report.until) // report.step)
    return [first + report.step * index for index in range(count)]


def _edges(report: Report) -> Any:
    """The limits of the time steps, as numbers of the time axis."""
    return _numbers([*(starts := _starts(report)), starts[-1] + report.step])


def _numbers(instants: Sequence[datetime]) -> Any:
    from matplotlib import dates

    typed: Any = dates
    return typed.date2num(list(instants))


def _series(
    report: Report, groups: Sequence[Group], value: Callable[[Group], float | None], empty: float
) -> list[float]:
    by_start = {group.at: group for group in groups}
    found = [by_start.get(start) for start in _starts(report)]
    values = [None if group is None else value(group) for group in found]
    return [empty if it is None else it for it in values]


def _throughput(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    edges = _edges(report)
    base = [0.0] * (len(edges) - 1)
    for status in STATUSES:
        groups = [group for group in report.by_status if group.status == status]
        if not groups:
            continue
        more = _series(report, groups, lambda it: it.finished, 0.0)
        top = [low + value for low, value in zip(base, more, strict=True)]
        axes.stairs(
            top, edges, baseline=base, fill=True, color=getattr(colours, status),
            label=status.replace("_", " "),
        )  # fmt: skip
        base = top
    axes.set_ylim(0, max(base) * 1.08 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    _time_axis(axes, report, colours, is_narrow)
    _legend(axes, colours)


def _rate(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    rates = _series(report, report.timeline, lambda it: it.failure_rate, float("nan"))
    axes.stairs(rates, _edges(report), baseline=None, color=colours.failed, linewidth=1.6)
    top = max((rate for rate in rates if rate == rate), default=0)  # noqa: PLR0124  not a number
    axes.set_ylim(0, min(1, top * 1.15) or 0.01)
    axes.yaxis.set_major_formatter(lambda value, _: percent(value))
    _time_axis(axes, report, colours, is_narrow)


def _times(kind: str) -> Draw:
    def draw(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
        for name in reversed(_QUANTILES):

            def seconds(group: Group, name: str = name) -> float | None:
                value = getattr(group, kind)[name]
                return None if value is None else max(value.total_seconds(), 1e-6)

            axes.stairs(
                _series(report, report.timeline, seconds, float("nan")), _edges(report),
                baseline=None, color=getattr(colours, name), label=name, linewidth=1.6,
            )  # fmt: skip
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: span(value))
        axes.yaxis.set_minor_formatter(lambda *_: "")
        _time_axis(axes, report, colours, is_narrow)
        _legend(axes, colours)

    return draw


def _failures(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    rows: list[Row] = [
        (f"{rank}. {it.fingerprint}", [(it.errors, colours.failed, number(it.errors))])
        for rank, it in enumerate(report.failures[:_MOST_BARS], 1)
    ]
    _bars(axes, rows, colours, is_narrow)


def _slowest(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    rows: list[Row] = []
    for group in slowest(report)[:_MOST_BARS]:
        pair = [
            (value.total_seconds(), colour, f"{word} {span(value)}")
            for value, colour, word in (
                (group.wait["p95"], colours.p50, "wait"),
                (group.run["p95"], colours.p99, "run"),
            )
            if value is not None
        ]
        rows.append((group.queue or "", pair))
    _bars(axes, rows, colours, is_narrow)


def _growth(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    total, sums = 0.0, [0.0]
    for value in _series(report, report.timeline, lambda it: it.finished, 0.0):
        total += value
        sums.append(total)
    edges = _edges(report)
    axes.fill_between(edges, sums, color=colours.p50, alpha=0.25, linewidth=0)
    axes.plot(edges, sums, color=colours.p50, linewidth=1.8)
    axes.set_ylim(0, total * 1.08 or 1)
    axes.yaxis.set_major_formatter(lambda value, _: short(value))
    _time_axis(axes, report, colours, is_narrow)


def _time_axis(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    from matplotlib import dates

    typed: Any = dates
    locator = typed.AutoDateLocator(tz=UTC, minticks=3, maxticks=5 if is_narrow else 9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(typed.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(*_numbers([report.since, report.until]))
    axes.grid(axis="y", color=colours.grid, linewidth=0.8)
    _plain(axes, colours)


def _bars(axes: Any, rows: Sequence[Row], colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    """Horizontal bars, each below its name, because names are long."""
    most = max((value for _, bars in rows for value, _, _ in bars), default=0) or 1
    for index, (name, bars) in enumerate(rows):
        thick = 0.42 / max(1, len(bars))
        axes.text(
            0, index - 0.12, cut(" ".join(name.split()), 44 if is_narrow else 72), va="bottom",
            ha="left", color=colours.ink, fontsize=9,
        )  # fmt: skip
        for bar, (value, colour, label) in enumerate(bars):
            at = index + thick * bar
            axes.barh(at, value, thick * 0.85, align="edge", color=colour)
            axes.annotate(
                label, (value, at + thick * 0.42), xytext=(4, 0), textcoords="offset points",
                va="center", ha="left", color=colours.faint, fontsize=8,
            )  # fmt: skip
    axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
    axes.set_xlim(0, most * (1.45 if is_narrow else 1.2))
    axes.set_xticks([])
    axes.set_yticks([])
    _plain(axes, colours)
    axes.spines["bottom"].set_visible(False)


def _plain(axes: Any, colours: Colours) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(colours.faint)
    axes.tick_params(colors=colours.faint, labelsize=9, which="both", length=0)
    axes.xaxis.get_offset_text().set_color(colours.faint)
    axes.set_axisbelow(True)
    axes.patch.set_visible(False)


def _legend(axes: Any, colours: Colours) -> None:
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9,
        labelcolor=colours.ink, handlelength=1, borderpad=0, columnspacing=1.2,
    )  # fmt: skip


def _describe_throughput(report: Report) -> str:
    total = report.total
    if total is None:
        return "No messages."
    top = max(report.timeline, key=lambda it: it.finished)
    return (
        f"{number(total.finished)} messages finished, {number(total.dead)} of them dead; "
        f"the most, {number(top.finished)}, in the {per_step(report)} from {when(top.at)}."
    )


def _describe_rate(report: Report) -> str:
    top = max(report.timeline, key=lambda it: it.failure_rate, default=None)
    if top is None or not top.dead:
        return "Every message succeeded."
    rate = percent(top.failure_rate)
    return f"At most {rate} failed, in the {per_step(report)} from {when(top.at)}."


def _describe_times(kind: str) -> Callable[[Report], str]:
    def describe(report: Report) -> str:
        times = {} if report.total is None else getattr(report.total, kind)
        return "Over all messages: " + ", ".join(
            f"{name} {span(times.get(name))}" for name in (*_QUANTILES, "max")
        )

    return describe


def _describe_failures(report: Report) -> str:
    if not report.failures:
        return "Every message succeeded."
    first = report.failures[0]
    return f"Most frequent, {number(first.errors)} times: {cut(first.fingerprint, 120)}"


def _describe_slowest(report: Report) -> str:
    rows = slowest(report)
    if not rows:
        return "No message was handled."
    first = rows[0]
    return (
        f"Slowest: {cut(first.queue or '', 80)}, where 95 % of the messages waited up to "
        f"{span(first.wait['p95'])} and ran up to {span(first.run['p95'])}."
    )


def _describe_growth(report: Report) -> str:
    whole = report.growth[0]
    return (
        f"{number(whole.now)} messages in this time, {number(whole.before)} in the same time "
        "before."
    )


CHARTS = (
    Chart("throughput", "Throughput", _throughput, _describe_throughput),
    Chart("rate", "Failure rate", _rate, _describe_rate),
    Chart("wait", "Wait time", _times("wait"), _describe_times("wait")),
    Chart("run", "Run time", _times("run"), _describe_times("run")),
    Chart("failures", "Failures by fingerprint", _failures, _describe_failures),
    Chart("slowest", "Slowest queues", _slowest, _describe_slowest),
    Chart("growth", "Growth", _growth, _describe_growth),
)
