"""The report as one HTML file with its charts, without scripts and external resources."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from notifyq import __version__
from notifyq.errors import ConfigurationError
from notifyq.operations import texts
from notifyq.operations.report.charts import CHARTS, change, per_step, slowest, when
from notifyq.operations.report.picture import DARK, LIGHT, svg

if TYPE_CHECKING:
    from notifyq.operations.report.charts import Colours
    from notifyq.operations.report.data import Report

_MOST_GROWN = 15
"""Queues in the table of growth."""


def page(report: Report) -> str:
    """The page as HTML."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigurationError(
            "the report needs more packages: pip install 'notifyq[report]'"
        ) from error
    environment = Environment(
        loader=PackageLoader("notifyq.operations.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(texts, name) for name in ("clean", "cut", "number", "percent", "span")
    } | {"change": change, "when": when}
    charts = {}
    if not report.is_empty:
        for chart in CHARTS:
            # matplotlib has escaped the texts in its output.
            wide, narrow = (
                Markup(svg(report, chart, is_narrow=is_narrow))  # noqa: S704
                for is_narrow in (False, True)
            )
            charts[chart.name] = {
                "name": chart.name,
                "title": chart.title,
                "description": texts.clean(chart.description(report)),
                "wide": wide,
                "narrow": narrow,
            }
    return environment.get_template("page.html").render(
        charts=charts,
        colours={"light": _variables(LIGHT), "dark": _variables(DARK)},
        grown=report.growth[1 : _MOST_GROWN + 1],
        more_grown=max(0, len(report.growth) - 1 - _MOST_GROWN),
        report=report,
        slowest=slowest(report),
        step=per_step(report),
        version=__version__,
    )


def _variables(colours: Colours) -> dict[str, str]:
    return {field.name.replace("_", "-"): getattr(colours, field.name) for field in fields(colours)}
