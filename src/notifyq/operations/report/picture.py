"""The charts as pictures: SVG with the colours of the page, or one PNG of all charts."""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from dataclasses import fields
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

from notifyq.errors import ConfigurationError
from notifyq.operations.report.charts import CHARTS, Colours, change, per_step, when
from notifyq.operations.texts import number, percent, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifyq.operations.report.charts import Chart
    from notifyq.operations.report.data import Report

LIGHT = Colours(
    ink="#1b1f24",
    faint="#59636e",
    grid="#dfe3e8",
    success="#2a9d8f",
    rejected="#e9a23b",
    failed="#d1495b",
    lock_expired="#7d5ba6",
    p50="#4a90d9",
    p95="#2f5fa8",
    p99="#1d2f5e",
)
DARK = Colours(
    ink="#e6e8eb",
    faint="#a3adb8",
    grid="#333b44",
    success="#43b8a8",
    rejected="#f2b85c",
    failed="#ec6a7b",
    lock_expired="#a98ad0",
    p50="#6db0f2",
    p95="#a7cdf7",
    p99="#e2effc",
)
_NAMES = [field.name for field in fields(Colours)]
# Placeholders: each colour occurs nowhere else and is replaced by a variable of the page.
_PLACEHOLDERS = Colours(**{name: f"#fe01{index:02x}" for index, name in enumerate(_NAMES)})
_TALL = {"failures": 4.2, "slowest": 5.2}
_STYLE: dict[str, Any] = {
    # Or a text with two dollar signs would be set as mathematics.
    "text.parse_math": False,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "axes.unicode_minus": True,
}


@contextmanager
def _drawing(name: str = "report") -> Iterator[Any]:
    """Give a function that makes figures; ConfigurationError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            "the report needs more packages: pip install 'notifyq[report]'"
        ) from error

    def figure(**options: Any) -> Any:
        made = Figure(**options)
        FigureCanvasAgg(made)
        return made

    # Ids in a picture depend on the salt: the pictures of a page must not share ids.
    style: Any = {**_STYLE, "svg.hashsalt": name}
    with mpl.rc_context(style), warnings.catch_warnings():
        # Queue names may use any script; a browser has the characters that our font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield figure


def svg(report: Report, chart: Chart, *, is_narrow: bool) -> str:
    """Draw a chart as SVG whose colours are CSS variables: --ink, --failed, …."""
    size = (4.2 if is_narrow else 9.6, _TALL.get(chart.name, 2.8 if is_narrow else 2.9))
    with _drawing(f"{chart.name}{is_narrow}") as figure:
        drawn = figure(figsize=size, layout="constrained")
        drawn.patch.set_visible(False)
        chart.draw(drawn.add_subplot(), report, _PLACEHOLDERS, is_narrow)
        text = StringIO()
        drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    markup = text.getvalue()
    markup = markup[markup.index("<svg") :]
    markup = re.sub(r"<metadata>.*?</metadata>", "", markup, flags=re.DOTALL)
    # Ids of groups are the same in all pictures, and nothing refers to them.
    markup = re.sub(r'<g id="[^"]*"', "<g", markup)
    # The page sets the size.
    markup = re.sub(r'(<svg [^>]*?)width="[^"]*"', r"\1", markup, count=1)
    markup = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", markup, count=1)
    markup = re.sub(r"font-family: [^;\"]*|font: ([\d.]+px) [^;\"]*", _font, markup)
    for name in _NAMES:
        markup = markup.replace(getattr(_PLACEHOLDERS, name), f"var(--{name.replace('_', '-')})")
    return markup


def _font(found: re.Match[str]) -> str:
    return f"font-size: {found[1]}" if found[1] else "font-family: inherit"


def picture(report: Report) -> bytes:
    """Draw all charts as one PNG."""
    with _drawing() as figure:
        made = figure(figsize=(13, 16.5), facecolor="white")
        made.text(0.04, 0.977, "Report of messages", fontsize=20, color=LIGHT.ink, weight="bold")
        for index, line in enumerate(_head(report)):
            made.text(0.04, 0.961 - 0.014 * index, line, fontsize=10.5, color=LIGHT.faint)
        if report.is_empty:
            made.set_size_inches(13, 3)
        else:
            _draw_all(made, report)
        data = BytesIO()
        made.savefig(data, format="png", dpi=110, metadata={"Software": None})
    return data.getvalue()


def _head(report: Report) -> list[str]:
    lines = [
        f"{report.database}, {when(report.since)} to {when(report.until)} UTC, "
        f"by {per_step(report)}"
    ]
    total = report.total
    if total is None:
        return [*lines, "There are no messages in this time."]
    return [
        *lines,
        f"{number(total.finished)} messages ({change(report.growth[0].change)})   ·   "
        f"{percent(total.failure_rate)} dead   ·   {number(total.retried)} retried   ·   "
        f"wait p95 {span(total.wait['p95'])}   ·   run p95 {span(total.run['p95'])}",
    ]


def _draw_all(made: Any, report: Report) -> None:
    grid = made.add_gridspec(
        4, 2, left=0.055, right=0.97, top=0.915, bottom=0.03, hspace=0.34, wspace=0.16,
        height_ratios=(1, 1, 1.5, 1),
    )  # fmt: skip
    cells = {
        "throughput": grid[0, :],
        "wait": grid[1, 0],
        "run": grid[1, 1],
        "failures": grid[2, 0],
        "slowest": grid[2, 1],
        "rate": grid[3, 0],
        "growth": grid[3, 1],
    }
    for chart in CHARTS:
        axes = made.add_subplot(cells[chart.name])
        chart.draw(axes, report, LIGHT, chart.name != "throughput")
        axes.set_title(chart.title, loc="left", fontsize=12, color=LIGHT.ink, weight="bold", pad=12)
