"""The results as charts: a PNG file for each case and headline metric."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

from notifyq.errors import ConfigurationError
from notifyq.operations.report.picture import as_png

from .report import machine_line, number
from .results import METRICS, Results

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_FAR = 10
"""The scale is logarithmic from this ratio of the longest bar to the shortest."""


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw into the folder and return the files; raises ConfigurationError without matplotlib."""
    prepare()
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for case in results.names("case"):
        for name, metric in METRICS.items():
            if metric.is_headline and (path := _draw_case(results, case, name, folder)):
                made.append(path)
    return made


def draw_rates(rates: Mapping[str, float], title: str, path: Path) -> None:
    """Draw a bar of rows a second for each way; raises ConfigurationError without matplotlib."""
    prepare()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.2 + 0.35 * len(rates)))
    axes = figure.add_subplot()
    drawn = axes.barh(list(rates)[::-1], list(rates.values())[::-1])  # from below
    axes.bar_label(drawn, [f"{rate:,.0f}" for rate in list(rates.values())[::-1]], padding=2)
    axes.margins(x=0.12, y=0.01)
    axes.set_xlabel("rows/s")
    axes.set_title(title)
    figure.tight_layout()
    path.write_bytes(as_png(figure, dpi=150))


def draw_lines(
    positions: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    labels: tuple[str, str],
    path: Path,
) -> None:
    """Draw a line for each name, on a logarithmic scale; raises ConfigurationError as draw does."""
    prepare()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5))
    axes = figure.add_subplot()
    for name, values in lines.items():
        axes.plot(positions, values, marker="o", markersize=3, label=name)
    axes.set_yscale("log")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    path.write_bytes(as_png(figure, dpi=150))


def prepare() -> None:
    """Choose a backend without a screen; raises ConfigurationError without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigurationError("charts need matplotlib: pip install 'notifyq[bench]'") from error
    mpl.use("Agg")


def _draw_case(results: Results, case: str, name: str, folder: Path) -> Path | None:
    from matplotlib.figure import Figure

    metric = METRICS[name]
    systems = results.names("system", case)[::-1]  # bars are drawn from below
    bars = {
        variant: [results.median(case, variant, system, name) for system in systems]
        for variant in results.names("variant", case)
    }
    bars = {variant: values for variant, values in bars.items() if any(values)}
    if not bars:
        return None
    height = 0.8 / len(bars)
    figure = Figure(figsize=(9, 1.5 + 0.35 * len(systems) * max(1, len(bars) / 2)))
    axes = figure.add_subplot()
    for index, (variant, values) in enumerate(bars.items()):
        drawn = axes.barh(
            [row + 0.4 - height * (index + 0.5) for row in range(len(systems))],
            [(value or 0) * metric.scale for value in values],
            height,
            label=variant,
        )
        shown = ["" if value is None else number(metric, value) for value in values]
        axes.bar_label(drawn, shown, fontsize=6, padding=2)
    axes.set_yticks(range(len(systems)), systems)
    axes.margins(x=0.1, y=0.01)
    label = f"{metric.label}, {metric.unit}"
    drawn_values = [value for values in bars.values() for value in values if value]
    if max(drawn_values) > _FAR * min(drawn_values) > 0:
        axes.set_xscale("log")  # peers differ by factors of a hundred
        label += " (log scale)"
    axes.set_xlabel(label)
    axes.set_title(f"{case}: median of {results.options['rounds']} rounds")
    axes.legend(fontsize=7)
    figure.text(0.01, 0.005, fill(machine_line(results), 200), fontsize=5)
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    path = folder / f"{case}-{name}.png"
    path.write_bytes(as_png(figure, dpi=150))
    return path
