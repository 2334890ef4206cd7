"""Draw figures of runs of the public benchmark, a panel for each.

`python -m bench.hardbyte.picture PICTURE.png FOLDER:FIGURE:TITLE …`; a folder has the results of a
run, a figure is a column of its table. Bars are medians of the rounds, lines their spread.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from bench.charts import prepare
from bench.results import Results
from notifyq.operations.report.picture import as_png

_PHASE = "clean"
_OURS, _OTHERS = "#1d6fd8", "#9aa5b1"


def draw(panels: list[tuple[Path, str, str]], path: Path) -> None:
    """Draw each figure of the results in a folder; raises ConfigurationError as `prepare` does."""
    prepare()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.8 * len(panels)))
    for number, (folder, name, title) in enumerate(panels, start=1):
        rounds: dict[str, list[float]] = {}
        for it in Results.read(folder / "results.json").samples:
            if it.variant == _PHASE:
                rounds.setdefault(it.system, []).append(it.values[name])
        systems = sorted(rounds, reverse=True)  # drawn from below
        middle = [median(rounds[it]) for it in systems]
        axes = figure.add_subplot(len(panels), 1, number)
        drawn = axes.barh(
            systems,
            middle,
            xerr=[
                [high - min(rounds[it]) for it, high in zip(systems, middle, strict=True)],
                [max(rounds[it]) - low for it, low in zip(systems, middle, strict=True)],
            ],
            color=[_OURS if it == "notifyq" else _OTHERS for it in systems],
        )
        axes.bar_label(drawn, [f"{it:,.0f}" for it in middle], padding=6, fontsize=8)
        axes.margins(x=0.12)
        axes.set_title(title, fontsize=9, loc="left")
    figure.tight_layout()
    path.write_bytes(as_png(figure, dpi=150))


def main() -> None:
    """Read the arguments and draw."""
    picture, *panels = sys.argv[1:]
    parts = [it.split(":", 2) for it in panels]
    draw([(Path(folder), name, title) for folder, name, title in parts], Path(picture))


if __name__ == "__main__":
    main()
