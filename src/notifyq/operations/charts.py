"""Charts as SVG, without scripts; the style sheet sets the colours."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup, escape

from notifyq.models.message import Status
from notifyq.operations.texts import cut, short, span

_TICKS = [timedelta(seconds=it) for it in (10, 30)]
_TICKS += [timedelta(minutes=it) for it in (1, 2, 5, 10, 15, 30)]
_TICKS += [timedelta(hours=it) for it in (1, 2, 3, 6, 12)] + [
    timedelta(days=it) for it in (1, 2, 7)
]
_ORIGIN = datetime(2000, 1, 3, tzinfo=UTC)
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 20


@dataclass(frozen=True, slots=True)
class Series:
    """One value for each time step, or None."""

    name: str
    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Chart:
    """A chart over time, in steps."""

    name: str
    title: str
    description: str
    """Its contents in words, for screen readers and the caption."""
    starts: tuple[datetime, ...]
    step: timedelta
    series: tuple[Series, ...]
    write: Callable[[float], str]
    is_stacked: bool = False
    apart: float = 1
    """The smallest distance between the rules of a stacked chart."""

    @property
    def columns(self) -> list[str]:
        """The columns of the chart as a table."""
        return ["From", *(f"#{series.label}" for series in self.series)]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(it for series in self.series for it in series.values)

    def svg(self, width: int = 760, height: int = 190) -> Markup:
        """The picture, for about this width."""
        frame = _Frame(self, width, height)
        parts = [frame.rules(), *(frame.bars() if self.is_stacked else frame.lines())]
        return _svg(self, width, height, [*parts, *frame.hovers()])


@dataclass(frozen=True)
class Bars:
    """Named rows of horizontal bars, each with its label."""

    name: str
    title: str
    description: str
    series: tuple[Series, ...]
    """Of which each row has a bar."""
    rows: tuple[str, ...]
    write: Callable[[float], str]

    def svg(self, width: int = 760, height: int = 0) -> Markup:
        """The picture, for about this width and at least this height."""
        right = width - 90
        thick = 26 / len(self.series)
        most = max((it for series in self.series for it in series.values if it), default=1)
        parts = []
        for index, row in enumerate(self.rows):
            top = 56 * index + 14
            # Above its bars, because names are long.
            name = cut(" ".join(row.split()), width // 7)
            parts.append(Markup('<text class="row-name" x="0" y="{}">{}</text>').format(top, name))
            for number, series in enumerate(self.series):
                if (value := series.values[index]) is None:
                    continue
                low, wide = top + 6 + thick * number, max(1.0, right * value / most)
                parts.append(
                    Markup(
                        '<path class="f-{}" d="M0 {:.1f}h{:.1f}v{:.1f}H0z"/>'
                        '<text x="{:.1f}" y="{:.1f}">{}</text>'
                    ).format(
                        series.name, low, wide, thick * 0.85, wide + 5, low + thick * 0.42 + 4,
                        self.write(value),
                    )
                )  # fmt: skip
        return _svg(self, width, max(height, 56 * len(self.rows)), parts)


def _svg(chart: Chart | Bars, width: int, height: int, parts: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d">'
        '<title id="{name}-t">{title}</title><desc id="{name}-d">{description}</desc>{all}</svg>'
    ).format(
        width=width, height=height, name=f"{chart.name}-{width}", title=chart.title,
        description=chart.description, all=Markup("").join(parts),
    )  # fmt: skip


class _Frame:
    """The coordinates of a picture."""

    def __init__(self, chart: Chart, width: int, height: int) -> None:
        self.chart = chart
        self.right, self.bottom = width - _RIGHT, height - _BOTTOM
        self.count = max(1, len(chart.starts))
        self.unit = (self.right - _LEFT) / self.count
        if chart.is_stacked:
            columns = zip(*(it.values for it in chart.series), strict=True)
            self.ticks = _linear(
                max((sum(it or 0 for it in column) for column in columns), default=0), chart.apart
            )
        else:
            known = [it for series in chart.series for it in series.values if it]
            self.ticks = _logarithmic(known)

    def x(self, index: float) -> float:
        return _LEFT + index * self.unit

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.chart.is_stacked:
            part = value / high
        else:
            value = min(max(value, low), high)
            part = math.log(value / low) / math.log(high / low)
        return self.bottom - part * (self.bottom - _TOP)

    def rules(self) -> Markup:
        parts = []
        for tick in self.ticks:
            at = self.y(tick)
            parts.append(
                f'<line class="rule" x1="{_LEFT}" x2="{self.right}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text x="{_LEFT - 6}" y="{at + 3.5:.1f}" text-anchor="end">'
                f"{escape(self.chart.write(tick))}</text>"
            )
        first, whole = self.chart.starts[0], self.chart.step * self.count
        most = max(2, int((self.right - _LEFT) / 72))
        apart = next((it for it in _TICKS if whole / it <= most), whole)
        is_days = apart >= timedelta(days=1)
        at_time = _ORIGIN + -((_ORIGIN - first) // apart) * apart
        while at_time <= first + whole:
            at = self.x((at_time - first) / self.chart.step)
            text = at_time.strftime(
                "%m-%d" if is_days else "%H:%M:%S" if apart < timedelta(minutes=1) else "%H:%M"
            )
            if _LEFT + 10 <= at <= self.right - 10:
                parts.append(
                    f'<text x="{at:.1f}" y="{self.bottom + 15}" text-anchor="middle" '
                    f'data-at="{at_time.isoformat()}">{text}</text>'
                )
            at_time += apart
        return Markup("").join(Markup(part) for part in parts)  # noqa: S704  numbers, and escaped

    def bars(self) -> list[Markup]:
        """One path for each series, stacked."""
        base = [0.0] * self.count
        found = []
        gap = min(1.0, self.unit * 0.15)
        for series in self.chart.series:
            path = []
            for index, value in enumerate(series.values):
                if not value:
                    continue
                low, high = self.y(base[index]), self.y(base[index] + value)
                base[index] += value
                left, wide = self.x(index) + gap / 2, self.unit - gap
                path.append(f"M{left:.1f} {low:.1f}V{high:.1f}h{wide:.1f}V{low:.1f}z")
            if path:
                found.append(
                    Markup('<path class="f-{}" d="{}"/>').format(series.name, "".join(path))
                )
        return found

    def lines(self) -> list[Markup]:
        """One line for each series, interrupted where values are missing."""
        found = []
        for series in self.chart.series:
            path, is_down = [], False
            for index, value in enumerate(series.values):
                if value is None:
                    is_down = False
                    continue
                at = self.y(value)
                # A line within the step: a single step must be visible, too.
                path.append(f"{'L' if is_down else 'M'}{self.x(index + 0.1):.1f} {at:.1f}")
                path.append(f"L{self.x(index + 0.9):.1f} {at:.1f}")
                is_down = True
            if path:
                found.append(
                    Markup('<path class="line s-{}" d="{}"/>').format(series.name, "".join(path))
                )
        return found

    def hovers(self) -> list[Markup]:
        """The values of each step as a tooltip."""
        found = []
        for index, start in enumerate(self.chart.starts):
            parts = [
                f"{series.label} {self.chart.write(value)}"
                for series in self.chart.series
                if (value := series.values[index])
            ]
            if parts:
                found.append(
                    Markup(
                        '<rect class="hover" x="{:.1f}" y="{}" width="{:.1f}" height="{}">'
                        "<title>{} UTC: {}</title></rect>"
                    ).format(
                        self.x(index), _TOP, self.unit, self.bottom - _TOP,
                        start.strftime("%m-%d %H:%M:%S"), ", ".join(parts),
                    )
                )  # fmt: skip
        return found


def steps(since: datetime, until: datetime, step: timedelta) -> tuple[datetime, ...]:
    """The starts of time steps, at multiples of the step."""
    first = _ORIGIN + (since - _ORIGIN) // step * step
    return tuple(first + step * index for index in range(-((first - until) // step)))


def finished_chart(
    title: str,
    description: str,
    starts: tuple[datetime, ...],
    step: timedelta,
    counts: Mapping[tuple[Any, Any], int],
) -> Chart:
    """The messages that finished in each step; `counts` is by status and start."""
    series = tuple(
        Series(status.value, status.value.replace("_", " "), values)
        for status in Status
        if any(values := tuple(counts.get((status, start), 0) for start in starts))
    )
    return Chart("throughput", title, description, starts, step, series, short, is_stacked=True)


def times_chart(
    kind: str,
    description: str,
    starts: tuple[datetime, ...],
    step: timedelta,
    found: Mapping[str, Mapping[Any, timedelta | None]],
) -> Chart:
    """Wait times or run times: percentiles by name, each by start."""
    series = tuple(
        Series(name, name, tuple(_seconds(values.get(start)) for start in starts))
        for name, values in found.items()
    )
    return Chart(kind, f"{kind.capitalize()} time", description, starts, step, series, span)


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else max(value.total_seconds(), 1e-6)


def _linear(most: float, least: float) -> list[float]:
    """Ticks at round numbers from 0 to at least the largest value."""
    if most <= 0:
        return [0, least]
    size = 10 ** math.floor(math.log10(most / 4))
    apart = next(size * it for it in (1, 2, 2.5, 5, 10) if size * it * 4 >= most)
    apart = max(least, apart)
    return [apart * index for index in range(math.ceil(most / apart) + 1)]


def _logarithmic(known: Sequence[float]) -> list[float]:
    """Ticks at powers of 10 or 100 around the values."""
    low = math.floor(math.log10(max(min(known, default=0.1), 1e-4)))
    high = math.ceil(math.log10(max(max(known, default=1), 1e-3)))
    high = max(high, low + 1)
    every = 1 if high - low <= 4 else 2
    ticks = [10.0**power for power in range(low, high + every, every)]
    return ticks if len(ticks) > 1 else [10.0**low, 10.0 ** (low + 1)]
