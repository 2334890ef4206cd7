"""Workers: their state, and the messages that they have locked."""

from starlette.responses import Response

from notifyq.operations import monitor
from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View

section = Section("workers", "Workers", key="w")

_KINDS = {
    "gone": "bad", "unresponsive": "warn", "blocked": "warn", "stopping": "warn",
    "working": "good", "idle": "good", "unknown": "quiet",
}  # fmt: skip
"""The badges of states, those first that need attention."""


@section.page("/workers", "workers")
async def workers(view: View) -> Response:
    """All workers, those first that need attention."""
    found = await monitor.workers(view.database)
    order = list(_KINDS)
    found.sort(key=lambda it: (order.index(it.state) if it.state in order else 9, it.name))
    return view.render("workers.html", title="Workers", workers=found, kinds=_KINDS)
