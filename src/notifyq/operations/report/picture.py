"""The charts as one PNG, in the light colours of the dashboard."""

import re
import warnings
from datetime import UTC
from importlib.resources import files
from io import BytesIO
from typing import Any

from notifyq.errors import ConfigurationError
from notifyq.operations.charts import Bars, Chart
from notifyq.operations.report.charts import change, charts, per_step, when
from notifyq.operations.report.data import Report
from notifyq.operations.texts import cut, number, percent, span

STYLE = (files("notifyq.operations") / "dashboard/static/dashboard.css").read_text("utf-8")
_COLOURS = dict(re.findall(r"--(\w+): light-dark\((#\w+)", STYLE))
# Without parse_math off, a text with two dollar signs would be set as mathematics.
_OPTIONS: Any = {
    "text.parse_math": False, "font.family": "sans-serif", "text.color": _COLOURS["ink"],
    "xtick.color": _COLOURS["faint"], "ytick.color": _COLOURS["faint"],
    "axes.edgecolor": _COLOURS["line"],
}  # fmt: skip


def picture(report: Report) -> bytes:
    """Draw all charts as one PNG; ConfigurationError without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(
            "a report as a picture needs more packages: pip install 'notifyq[report]'"
        ) from error
    with mpl.rc_context(_OPTIONS), warnings.catch_warnings():
        # Queue names may use any script, and our font does not have all.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        drawn: Any = Figure(figsize=(13, 3 if report.is_empty else 16.5), facecolor="white")
        FigureCanvasAgg(drawn)
        drawn.text(0.04, 0.977, "Report of messages", fontsize=20, weight="bold")
        for index, line in enumerate(_head(report)):
            drawn.text(0.04, 0.961 - 0.014 * index, line, fontsize=10.5, color=_COLOURS["faint"])
        grid = drawn.add_gridspec(
            4, 2, left=0.055, right=0.97, top=0.915, bottom=0.03, hspace=0.34, wspace=0.16,
            height_ratios=(1, 1, 1.5, 1),
        )  # fmt: skip
        cells = [grid[0, :], *(grid[row, column] for row in (1, 2, 3) for column in (0, 1))]
        for cell, chart in zip(cells, charts(report).values(), strict=False):
            axes = drawn.add_subplot(cell)
            axes.set_title(chart.title, loc="left", fontsize=12, weight="bold", pad=12)
            axes.tick_params(labelsize=9, which="both", length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.set_axisbelow(True)
            if isinstance(chart, Bars):
                _draw_bars(axes, chart)
            else:
                _draw(axes, chart)
        return as_png(drawn, dpi=110)


def as_png(drawn: Any, dpi: int) -> bytes:
    """Return a matplotlib figure as a small PNG."""
    data = BytesIO()
    drawn.savefig(data, format="png", dpi=dpi, metadata={"Software": None})
    return shrink(data.getvalue())


def shrink(png: bytes) -> bytes:
    """Give a picture of charts and text a palette: a third of the bytes, and as crisp."""
    # Other methods merge colours that few pixels have, such as those of a legend.
    from PIL import Image  # matplotlib needs it, too

    data = BytesIO()
    image = Image.open(BytesIO(png)).convert("RGB")
    few = image.quantize(96, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    few.save(data, "PNG", optimize=True)
    return data.getvalue()


def _head(report: Report) -> list[str]:
    first = (
        f"{report.database}, {when(report.since)} to {when(report.until)} UTC, "
        f"by {per_step(report)}"
    )
    total = report.total
    if total is None:
        return [first, "There are no messages in this time."]
    return [
        first,
        f"{number(total.finished)} messages ({change(report.growth[0].change)})   ·   "
        f"{percent(total.failure_rate)} dead   ·   {number(total.retried)} retried   ·   "
        f"wait p95 {span(total.wait['p95'])}   ·   run p95 {span(total.run['p95'])}",
    ]


def _draw(axes: Any, chart: Chart) -> None:
    from matplotlib import dates

    typed: Any = dates
    edges = typed.date2num([*chart.starts, chart.starts[-1] + chart.step])
    base = [0.0] * len(chart.starts)
    for series in chart.series:
        shape = {"color": _COLOURS[series.name], "label": series.label}
        if chart.is_stacked:
            top = [low + (more or 0) for low, more in zip(base, series.values, strict=True)]
            axes.stairs(top, edges, baseline=base, fill=True, **shape)
            base = top
        else:
            values = [float("nan") if it is None else it for it in series.values]
            axes.stairs(values, edges, baseline=None, linewidth=1.6, **shape)
    if chart.is_stacked:
        axes.set_ylim(0, max(base) * 1.08 or chart.apart)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.yaxis.set_major_formatter(lambda value, _: chart.write(value))
    locator = typed.AutoDateLocator(tz=UTC, minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(typed.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlim(edges[0], edges[-1])
    axes.grid(axis="y", color=_COLOURS["line"], linewidth=0.8)
    _legend(axes, chart)


def _draw_bars(axes: Any, chart: Bars) -> None:
    thick = 0.42 / len(chart.series)
    for index, row in enumerate(chart.rows):
        name = cut(" ".join(row.split()), 72)
        axes.text(0, index - 0.12, name, va="bottom", ha="left", fontsize=9)
    for level, series in enumerate(chart.series):
        known = [(at, it) for at, it in enumerate(series.values) if it is not None]
        drawn = axes.barh(
            [at + thick * level for at, _ in known], [it for _, it in known], thick * 0.85,
            align="edge", color=_COLOURS[series.name], label=series.label,
        )  # fmt: skip
        labels = [chart.write(it) for _, it in known]
        axes.bar_label(drawn, labels, padding=4, color=_COLOURS["faint"], fontsize=8)
    axes.set_ylim(max(len(chart.rows), 3) - 0.4, -0.6)
    axes.set_xlim(0, axes.dataLim.xmax * 1.2 if chart.rows else 1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
    _legend(axes, chart)


def _legend(axes: Any, chart: Chart | Bars) -> None:
    if len(chart.series) > 1:
        axes.legend(
            loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, fontsize=9,
            handlelength=1, borderpad=0, columnspacing=1.2,
        )  # fmt: skip
