"""The audit: what people have done, and who they were."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from notifyq.operations.dashboard.section import Section
from notifyq.operations.monitor import audit_entries

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View

section = Section("audit", "Audit", key="a")

_MOST = 100


@section.page("/audit", "audit")
async def audit(view: View) -> Response:
    """The latest actions, and those before."""
    actor, action, subject = (view.query(name) or None for name in ("actor", "action", "subject"))
    rows = await audit_entries(
        view.database,
        before=view.number("before"),
        actor=actor,
        action=action,
        subject=subject,
        most=_MOST + 1,
        masks=view.masks,
    )
    following = view.here(before=rows[_MOST - 1].id) if len(rows) > _MOST else ""
    return view.render(
        "audit.html", title="Audit", rows=rows[:_MOST], following=following, said=_said
    )


def _said(details: Any) -> str:
    return json.dumps(details, ensure_ascii=False)
