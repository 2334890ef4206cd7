"""The audit: changes that people have made."""

import json

from starlette.responses import Response

from notifyq.operations.dashboard.section import Section
from notifyq.operations.dashboard.view import View
from notifyq.operations.monitor import audit_entries

section = Section("audit", "Audit", key="a")

_MOST = 100


@section.page("/audit", "audit")
async def audit(view: View) -> Response:
    """The latest changes, and earlier ones."""
    rows = await audit_entries(
        view.database,
        before=view.number("before"),
        actor=view.query("actor") or None,
        action=view.query("action") or None,
        subject=view.query("subject") or None,
        most=_MOST + 1,
        masks=view.masks,
    )
    following = view.here(before=rows[_MOST - 1].id) if len(rows) > _MOST else ""
    return view.render(
        "audit.html",
        title="Audit",
        rows=[(row, json.dumps(row.details, ensure_ascii=False)) for row in rows[:_MOST]],
        following=following,
    )
