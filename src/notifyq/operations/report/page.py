"""The report as one HTML file with its charts, without scripts and external resources."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from notifyq import __version__
from notifyq.operations import texts
from notifyq.operations.report.charts import change, charts, per_step, slowest, when
from notifyq.operations.report.data import Report
from notifyq.operations.report.picture import STYLE

_MOST_GROWN = 15
"""Queues in the table of growth."""


def page(report: Report) -> str:
    """The page as HTML, with the style sheet and the parts of the dashboard."""
    environment = Environment(
        loader=ChoiceLoader(
            [
                PackageLoader("notifyq.operations", f"{it}/templates")
                for it in ("report", "dashboard")
            ]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        name: getattr(texts, name) for name in ("clean", "cut", "number", "percent", "span")
    } | {"change": change, "when": when}
    return environment.get_template("page.html").render(
        charts=charts(report),
        grown=report.growth[1 : _MOST_GROWN + 1],
        more_grown=max(0, len(report.growth) - 1 - _MOST_GROWN),
        report=report,
        slowest=slowest(report),
        step=per_step(report),
        style=Markup(STYLE),  # noqa: S704  our own file
        version=__version__,
    )
