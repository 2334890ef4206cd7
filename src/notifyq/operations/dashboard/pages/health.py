"""Health: how the database is, what keeps it busy, and what to do about that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from notifyq.operations import monitor
from notifyq.operations.dashboard.checks import checked, state
from notifyq.operations.dashboard.section import Section
from notifyq.operations.doctor import Level
from notifyq.operations.masks import redacted_statement

if TYPE_CHECKING:
    from starlette.responses import Response

    from notifyq.operations.dashboard.view import View
    from notifyq.operations.monitor import Health

section = Section("health", "Health", key="h")

_OWN = {"notifyq dashboard", "notifyq dashboard bell", "notifyq doctor"}
_ORDER = {Level.FAIL: 0, Level.WARN: 1, Level.SKIPPED: 2, Level.OK: 3}


@section.page("/health", "health")
async def health(view: View) -> Response:
    """Findings, sessions in the way, tables, the notifications, pg_cron."""
    database, cache = view.database, view.desk.cache
    figures, holders, activity, cron, found = await asyncio.gather(
        cache.get("health", 5, lambda: monitor.health(database)),
        cache.get("holders", 2, lambda: monitor.holders(database, most=20)),
        cache.get("activity", 2, lambda: monitor.activity(database, most=20)),
        cache.get("cron", 5, lambda: monitor.cron_entries(database)),
        checked(view.desk),
    )
    findings = sorted(found.findings, key=lambda it: _ORDER[it[1].level]) if found else []
    return view.render(
        "health.html",
        title="Health",
        health=state(found),
        checked_at=found and found.at,
        is_complete=found is None or found.is_complete,
        findings=findings,
        figures=figures,
        tables=_tables(figures),
        # What this page itself asks is over when it is seen.
        holders=[it for it in holders if it.application not in _OWN],
        activity=[it for it in activity if it.application not in _OWN],
        cron=cron,
        statement=lambda it: redacted_statement(it, view.masks),
    )


def _tables(figures: Health) -> list[dict[str, object]]:
    """The figures of each table as a row, the largest first."""
    names = ("table_bytes", "index_bytes", "live_rows", "dead_rows", "vacuum_age", "bloat")
    columns = {name: figures.by_subject(name) for name in names}
    rows: list[dict[str, object]] = [
        {"name": table, **{name: columns[name].get(table) for name in names}}
        for table in columns["table_bytes"]
    ]
    return sorted(rows, key=lambda it: -float(str(it["table_bytes"] or 0)))
