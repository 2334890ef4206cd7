"""Workers: who is there, what each is doing, and who is gone with messages locked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifyq.operations import monitor
from notifyq.operations.dashboard.section import Section

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View

section = Section("workers", "Workers", key="w")

KINDS = {
    "working": "good", "idle": "good", "stopping": "warn", "silent": "warn", "gone": "bad",
    "unknown": "quiet",
}  # fmt: skip
"""How a state is shown."""


@section.page("/workers", "workers")
async def workers(view: View) -> Response:
    """All workers, those first that need attention."""
    found = await monitor.workers(view.database)
    order = ["gone", "silent", "stopping", "working", "idle", "unknown"]
    found.sort(key=lambda it: (order.index(it.state) if it.state in order else 9, it.name))
    return view.render("workers.html", title="Workers", workers=found, kinds=KINDS)
