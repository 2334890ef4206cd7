"""What the charts have in common: colours, an axis of time, bars with their names above."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, TypeAlias

from notifyq.operations.report.texts import cut

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from notifyq.operations.report.data import Report

Row: TypeAlias = tuple[str, list[tuple[float, str, str]]]
"""A name, and of each of its bars how long it is, its colour, and what it says."""


@dataclass(frozen=True)
class Colours:
    """The colours of a chart, each by what it is for."""

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


def numbers(instants: Sequence[datetime]) -> Any:
    """Instants as numbers of an axis of time."""
    from matplotlib import dates

    typed: Any = dates
    return typed.date2num(list(instants))


def time_axis(axes: Any, report: Report, colours: Colours, is_narrow: bool) -> None:  # noqa: FBT001
    """Make the axes those of the range of a report."""
    from matplotlib import dates

    typed: Any = dates
    locator = typed.AutoDateLocator(tz=UTC, minticks=3, maxticks=5 if is_narrow else 9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(typed.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(*numbers([report.since, report.until]))
    axes.grid(axis="y", color=colours.grid, linewidth=0.8)
    _plain(axes, colours)


def bars(
    axes: Any,
    rows: Sequence[Row],
    colours: Colours,
    *,
    is_narrow: bool,
) -> None:
    """Bars to the right, the name of each above it: names are long."""
    most = max((value for _, bars in rows for value, _, _ in bars), default=0) or 1
    for place, (name, bars) in enumerate(rows):
        thick = 0.42 / max(1, len(bars))
        axes.text(
            0, place - 0.12, cut(name, 44 if is_narrow else 72), va="bottom", ha="left",
            color=colours.ink, fontsize=9,
        )  # fmt: skip
        for number_, (value, colour, label) in enumerate(bars):
            at = place + thick * number_
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


def legend(axes: Any, colours: Colours) -> None:
    """Say above the axes which colour is what."""
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9,
        labelcolor=colours.ink, handlelength=1, borderpad=0, columnspacing=1.2,
    )  # fmt: skip
